"""The base model generates the targets for a prompt file: in batches, resumable, greedily or sampled.

Answers are appended to a JSON-lines file as they are finished, `{"id", "source", "prompt", "input_ids",
"completion_ids", "finished"}`; a second run skips existing ids. The first row also has `"provenance"`: the model and
the settings, which a second run must share. Token ids are stored because a re-tokenized text may have other tokens than
the model generated.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from streamfuse.model.checkpoint import adapter_digest, load_base, load_with_adapter
from streamfuse.model.shards import checkpoint_digest
from streamfuse.model.transformer import Transformer
from streamfuse.options import OptionError, flag_of

from .config import DistillConfig
from .dtype import choose_dtype
from .formats import DataError
from .generate import generate_batch

# {"id": int, "source": str, "prompt": str, "input_ids": list[int]}, and of some chats "before", the messages before the
# prompt, and "tools", which the model may call
Item = dict[str, Any]
_BATCHES_PER_CHUNK = 4
_DIGESTS = ("bundle", "model", "adapter", "after")  # entries of a provenance that are digests of files
ANSWER = "an answer of `streamfuse data distill`"


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that a batch added to the file."""

    answers: int
    tokens: int


# An item, the token ids of its answer, and whether the answer ended by itself. They come in groups, which are written
# together.
Answer = tuple[Item, list[int], bool]
Answering = Callable[[list[Item], DistillConfig], Iterator[list[Answer]]]


def distill(
    answering: Answering, items: list[Item], out_path: Path, config: DistillConfig, provenance: Mapping[str, Any]
) -> Iterator[Written]:
    """Write completions of `items`; yields after each group of them. `provenance`: as by `provenance_of`.

    Items that are in `out_path` already are skipped, and so are those with longer prompts than
    `config.max_prompt_tokens` (`pending` returns the rest).

    Raises:
        DataError: as `pending` and `appending`.
    """
    with appending(out_path) as file:
        first_row = first_row_facts(out_path, provenance)
        for answers in answering(pending(items, out_path, config, provenance), config):
            for item, tokens, finished in answers:
                row = {**item, "completion_ids": tokens, "finished": finished, **first_row}
                file.write(json.dumps(row) + "\n")
                first_row = {}
            file.flush()
            yield Written(len(answers), sum(len(tokens) for _, tokens, _ in answers))


def in_batches(model: Transformer) -> Answering:
    """Answers by PyTorch, `config.batch_size` at once.

    Items are processed in the given order in chunks and sorted by length within a chunk, so that an early stop leaves
    an unbiased part.
    """
    eos = set(model.config.eos_token_ids)

    def answering(items: list[Item], config: DistillConfig) -> Iterator[list[Answer]]:
        for batch in _batches(items, config.batch_size):
            seeds = [seed_of(item, config) for item in batch]
            completions = generate_batch(model, [item["input_ids"] for item in batch], config, seeds)
            yield [(item, tokens, tokens[-1] in eos) for item, tokens in zip(batch, completions, strict=True)]

    return answering


def seed_of(item: Item, config: DistillConfig) -> int:
    """A seed per item: its text does not depend on other items or on resuming."""
    return (config.seed << 32) + int(item["id"])


def load_writer(
    folder: Path, adapter: Path | None, config: DistillConfig, device: torch.device | str = "cpu"
) -> Transformer:
    """The base model that answers on the device, with the adapters of `adapter` that tune it and its end token.

    Raises:
        CheckpointError: a file cannot be used.
    """
    dtype = choose_dtype(config.dtype, device)
    base = load_with_adapter(folder, adapter, dtype).base if adapter else load_base(folder, dtype)
    return base.to(device)


def provenance_of(
    config: DistillConfig, folder: Path | None, adapter: Path | None = None, **more: Any
) -> dict[str, Any]:
    """What determines a file's texts besides their prompts, for comparison with the file that a run continues.

    Args:
        folder: the model's; None where the caller checks that a file is continued by the same model.
        more: further settings by the names of their flags, as JSON has them.
    """
    return {
        "bundle": None,
        "model": folder and checkpoint_digest(folder),
        "adapter": adapter and adapter_digest(adapter),
        **settings_of(config),
        "dtype": config.dtype,
        **more,
    }


def settings_of(config: DistillConfig) -> dict[str, Any]:
    """The settings that determine a text, whatever computes it."""
    return {name: getattr(config, name) for name in ("max_new_tokens", "temperature", "top_p", "seed")}


def check_provenance(path: Path, provenance: Mapping[str, Any], of: str, stage: str | None = None) -> None:
    """Check that the first row of the file, if any, has this provenance.

    Args:
        of: what a row is, for the message about a file of other rows.
        stage: the recipe's stage that writes the file, for the next step in the message.

    Raises:
        DataError: it does not; the message names the difference.
    """
    if (row := next(rows_written(path, of), None)) is None:
        return
    before = row.get("provenance")
    if not isinstance(before, dict):
        raise DataError(f"{path}: its first row does not record the model and settings; give another file")
    for name, value in provenance.items():
        was = before.get(name)
        if was == value:
            continue
        step = "delete it, or give another file"
        if stage:
            setting = "" if was is None or name in _DIGESTS else f"--set {stage}.{name}={was} to continue it, or "
            step = f"add {setting}--no-resume to write it again"
        raise DataError(f"{path}: {_difference(name, was, value)}, so it cannot be continued; {step}")


def _difference(name: str, was: Any, now: Any) -> str:
    """How a file was written, compared with now."""
    flag = flag_of(name)
    if name == "model" and None in (was, now):
        return "its first row does not record its model" if was is None else "written by another command"
    if was is None:
        return f"written without {flag}"
    if name in _DIGESTS:
        return f"written with {flag}" if now is None else f"written with another {flag}"
    return f"written with {flag} {was}" + ("" if now is None else f", not {now}")


def first_row_facts(path: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The field that the next row gets: the provenance if the file is empty, none if it has rows."""
    return {} if path.stat().st_size else {"provenance": dict(provenance)}


def pending(
    items: list[Item], out_path: Path, config: DistillConfig, provenance: Mapping[str, Any], stage: str | None = None
) -> list[Item]:
    """The items that `distill` would process now. `stage`: as in `check_provenance`.

    Raises:
        DataError: `out_path` has other contents, answers to other prompts, or another provenance.
    """
    done = _written(out_path)
    for item in items:
        if done.get(item["id"], item["input_ids"]) != item["input_ids"]:
            step = "Add --no-resume to write it again" if stage else "Give another output file"
            raise DataError(
                f"{out_path}: its answer {item['id']} is for another prompt; the file was written with another prompt "
                f"file, --seed or --system. {step}"
            )
    todo = [item for item in items if item["id"] not in done and len(item["input_ids"]) <= config.max_prompt_tokens]
    check_provenance(out_path, provenance, ANSWER, stage)
    return todo


def summary(items: list[Item], todo: list[Item], config: DistillConfig) -> str:
    """How many prompts there are, and why some are not answered now; `todo` is what `pending` returns."""
    n_long = sum(len(item["input_ids"]) > config.max_prompt_tokens for item in items)
    n_done = len(items) - n_long - len(todo)
    return f"{len(items)} prompts: {n_long} are too long, {n_done} are answered, {len(todo)} to go."


def check_context(prompts: Iterable[list[int]], config: DistillConfig, most: int) -> None:
    """OptionError if a prompt with its answer can be longer than the model's context of `most` tokens."""
    longest = max(map(len, prompts), default=0)
    if longest and longest + config.max_new_tokens > most:
        raise OptionError(
            f"the longest prompt ({longest} tokens) and --max-new-tokens {config.max_new_tokens} exceed the model's "
            f"context of {most} tokens; lower --max-new-tokens, or --max-prompt-tokens to skip long prompts"
        )


def rows_written(path: Path, of: str) -> Iterator[Item]:
    """Rows of a file that a run appends to, without an unfinished last line.

    Raises:
        DataError: a line is not a JSON object; `of` names what was expected.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                yield {"id": int(row["id"]), **row}
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}, line {number}: not {of}") from None


@contextmanager
def appending(path: Path) -> Iterator[IO[str]]:
    """The file, opened exclusively for appending rows; an unfinished last line of an interrupted run is removed.

    Raises:
        DataError: another process is writing it; or its last line is not such a row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path}: another process is writing it; wait for it, or give another file") from None
        whole, end, rest = path.read_bytes().rpartition(b"\n")
        if rest and not rest.startswith(b"{"):
            raise DataError(f"{path}: its last line is not a row of this format; give another file")
        file.truncate(len(whole) + len(end))
        yield file


def _written(path: Path) -> dict[int, list[int]]:
    """Prompt tokens of the answers in the file, by id."""
    try:
        return {row["id"]: row["input_ids"] for row in rows_written(path, ANSWER)}
    except KeyError:
        raise DataError(f"{path}: has rows that are not answers of `streamfuse data distill`") from None


def _batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    chunk = _BATCHES_PER_CHUNK * size
    for start in range(0, len(items), chunk):
        part = sorted(items[start : start + chunk], key=lambda item: len(item["input_ids"]))
        for at in range(0, len(part), size):
            yield part[at : at + size]
