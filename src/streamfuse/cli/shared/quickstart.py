"""The steps of `streamfuse quickstart`, each of which keeps what an earlier run has finished.

In the output folder: answers.jsonl (the model's own text), ngrams.safetensors (an adapter with the table counted in it
and no streams), bundle/, and quickstart.json, which says what these were made from.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamfuse.api import GenerationOptions, load
from streamfuse.bundle import BundleError, open_bundle
from streamfuse.cli.shared.compare import Comparison, Comparisons, compare
from streamfuse.cli.shared.console import err, say
from streamfuse.cli.shared.engine import settle
from streamfuse.cli.shared.exporting import run_with_progress
from streamfuse.digest import sha256_of
from streamfuse.durable import write_text
from streamfuse.options import OptionError

if TYPE_CHECKING:
    from streamfuse.model.config import ModelConfig
    from streamfuse.model.transformer import Transformer
    from streamfuse.train.config import DistillConfig
    from streamfuse.train.distill import Item

ANSWER_TOKENS = 128  # new tokens of an answer, at most
_BATCH = 32  # answers that are generated together, and written together
_LONGEST_PROMPT = 4096
_CONTEXT = 1024
_LEAST_ANSWER = 16  # tokens that the context must leave for the answer to a compared prompt
_TEXTS = (
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
_PROBE_STEPS = 4
STEPS = ("own text", "n-gram table", "bundle", "comparison")


class Quickstart:
    """One output folder and the model that it is for.

    Args:
        word: the model as the user gave it, for the commands that come next.
        folder: its checkpoint.
        out: the output folder.
        tokens: how many the model's own text shall have.
        options: fields of ExportConfig.

    Raises:
        OptionError: an option does not fit the model; or the folder was made with another model.
        CheckpointError, TextError: the model, its tokenizer or its chat template cannot be used.
    """

    def __init__(self, word: str, folder: Path, out: Path, tokens: int, options: dict[str, Any]) -> None:
        from streamfuse.export.adapter import configure
        from streamfuse.export.preview import preview
        from streamfuse.model.checkpoint import load_config
        from streamfuse.train.formats import Sample
        from streamfuse.train.general_prompts import HELD_OUT, PROMPTS
        from streamfuse.train.prompts import open_text, prompt_items
        from streamfuse.train.readers import encode_prompt

        self.word, self.folder, self.out, self.tokens = word, folder, out, tokens
        self.answers, self.table, self.bundle = out / "answers.jsonl", out / "ngrams.safetensors", out / "bundle"
        self.skipped: list[str] = []
        self._state = out / "quickstart.json"
        self._check_model()
        self.config: ModelConfig = load_config(folder)
        context = options.get("max_context_len")
        if context is None:
            context = max(min(_CONTEXT, self.config.max_position_embeddings) // 32 * 32, 32)
        self.options = {**options, "max_context_len": context, "overwrite": True}
        # What the export would refuse is refused before minutes of generating.
        preview(configure(self.bundle, str(folder), "none", self.options)[0])
        text = open_text(folder, raw=True)
        self.chats = text.can_chat
        self.held_out = HELD_OUT
        longest = max(len(encode_prompt(Sample((prompt,)), text)) for prompt in HELD_OUT)
        if longest + _LEAST_ANSWER > context:
            raise OptionError(
                f"--max-context-len must be at least {longest + _LEAST_ANSWER} for the prompts that are compared, "
                f"not {context}"
            )
        self.new_tokens = min(ANSWER_TOKENS, context - longest)
        self._items = prompt_items([Sample((prompt,), source="general") for prompt in PROMPTS], text, None, 0)

    def _check_model(self) -> None:
        """A folder of another model is refused: its answers and its table would be of no use, and are not deleted."""
        made = self._read().get("model")
        if made is None and self.answers.exists():
            raise OptionError(
                f"--output-dir {self.out} has an answers.jsonl that `streamfuse quickstart` did not write; give another"
            )
        if made not in (None, self._identity):
            raise OptionError(
                f"--output-dir {self.out} was made with another model ({made['folder']}, or its files have changed); "
                "give another folder, or delete it"
            )

    @property
    def _identity(self) -> dict[str, Any]:
        """The checkpoint: hashing gigabytes in every run would take longer than reading sizes and times."""
        from streamfuse.model.shards import shards

        files = [self.folder / "config.json", self.folder / "tokenizer.json", *shards(self.folder)]
        stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        return {"folder": str(self.folder.resolve()), "files": stamps}

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OptionError(
                f"--output-dir {self.out}: {self._state.name} is damaged; give another folder, or delete it"
            )
        return found

    def _note(self, **facts: Any) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(self._state, json.dumps({**self._read(), "model": self._identity, **facts}, indent=2) + "\n")

    def write_answers(self) -> int:
        """Generate the model's own text up to the number of tokens asked for; returns how many there are."""
        from streamfuse.train.config import DistillConfig
        from streamfuse.train.distill import pending, provenance_of, rows_written

        batch = min(_BATCH, math.ceil(self.tokens / ANSWER_TOKENS))
        config = DistillConfig(batch, _LONGEST_PROMPT, ANSWER_TOKENS)
        written = sum(len(row["completion_ids"]) for row in rows_written(self.answers, "an answer"))
        enough = written >= self.tokens
        todo = [] if enough else pending(self._items, self.answers, config, provenance_of(config, None))
        if not todo:
            self._skip("own text", f"{written:,} tokens in {self.answers}")
        else:
            self._note()
            written += self._generate(todo, config, self.tokens - written)
        if written < self.tokens:
            say(
                f"All built-in prompts are answered, in {written:,} tokens, less than --tokens; `streamfuse data "
                "synthesize` and `data distill` give more text, for training too."
            )
        return written

    def _generate(self, todo: list[Item], config: DistillConfig, tokens: int) -> int:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from streamfuse.train.distill import distill, in_batches, load_writer, provenance_of

        with err.status("loading the model"):
            base, provenance = load_writer(self.folder, None, config), provenance_of(config, None)
            seconds = _estimate(base, todo, config, tokens)
        say(f"own text: {tokens:,} tokens to generate, about {_duration(seconds)} on this machine (Ctrl-C is safe)")
        written = 0
        columns = (TextColumn("Generating"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
        with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
            task = progress.add_task("", total=tokens)
            # In groups, so that the same prompts are answered whether or not a run was interrupted.
            for start in range(0, len(self._items), config.batch_size):
                group = self._items[start : start + config.batch_size]
                for part in distill(in_batches(base), group, self.answers, config, provenance):
                    written += part.tokens
                    progress.update(task, completed=min(written, tokens))
                if written >= tokens:
                    break
        return written

    def count_table(self) -> dict[str, int]:
        """Count the n-gram table in the answers; returns its size."""
        from streamfuse.model.checkpoint import read_adapter, save_ngrams
        from streamfuse.model.config import CheckpointError
        from streamfuse.model.ngrams import bytes_of
        from streamfuse.train.ngram_counts import answers_in, count_ngrams, tokens_of

        try:
            _, state, facts = read_adapter(self.table)
            arrays = {name.removeprefix("ngrams."): value for name, value in state.items()}
            whole = facts.get("answers") == self._digest()
        except CheckpointError:
            whole = False
        if whole:
            self._skip("n-gram table", f"{self.table} is of these answers")
            tokens = int(facts["tokens"])
        else:
            with err.status("counting n-grams"):
                examples = answers_in([str(self.answers)], self.config.vocab_size)
                arrays, tokens = count_ngrams(examples, self.config.vocab_size), tokens_of(examples)
                save_ngrams(self.table, self.config, arrays, {"answers": self._digest(), "tokens": str(tokens)})
        found = {"tokens": tokens, "contexts": len(arrays["keys"]), "entries": len(arrays["ids"])}
        if not whole:
            say(
                f"n-gram table: {found['contexts']:,} contexts, {bytes_of(arrays) / 1e6:.1f} MB, from {tokens:,} tokens"
            )
        return {**found, "bytes": bytes_of(arrays)}

    def _digest(self) -> str:
        return sha256_of([self.answers])

    def export(self) -> None:
        """Write the bundle: the table and look-up, no streams."""
        from streamfuse.export.adapter import configure
        from streamfuse.export.preview import preview

        config, _ = configure(self.bundle, str(self.folder), str(self.table), self.options)
        texts = [file for name in _TEXTS if (file := self.folder / name).is_file()]
        text = {file.name: sha256_of([file]) for file in texts}
        made_from = {"options": config.to_dict(), "answers": self._digest(), "text": text}
        if self._read().get("bundle") == made_from and _is_whole(self.bundle):
            self._skip("bundle", f"{self.bundle} is of this table and these options")
            return
        expected = preview(config)
        if expected.cost is not None:
            say(f"bundle: exporting, about {_duration(expected.cost.cpu_seconds)} of one core")
        report = run_with_progress(config, expected, {"model": self.word, "adapter": str(self.table)})
        self._note(bundle=made_from)
        say(f"bundle: {sum(report.bytes.values()) / 1e6:.0f} MB in {self.bundle}")

    def compare(self, threads: int | None) -> Comparisons:
        """Decode the held-out prompts plainly and speculatively, greedily."""
        rows: list[tuple[str, Comparison]] = []
        asked = GenerationOptions(max_new_tokens=self.new_tokens, temperature=0.0, repetition_penalty=1.0)
        say(f"comparison: {len(self.held_out)} prompts that are not among those of the table, plain and speculative")
        with load(self.bundle, threads=threads) as model:
            settle(model, plan=True)
            for prompt in self.held_out:
                rows.append(
                    (prompt, compare(model, partial(model.stream, prompt, raw=not self.chats, **asked), 1, err))
                )
        return Comparisons(rows)

    def next_commands(self) -> Iterator[tuple[str, str]]:
        """What to do next, and the command for it."""
        model = shlex.quote(self.word)
        prompts, more, train, trained = (
            shlex.quote(str(self.out / name)) for name in ("prompts.jsonl", "more.jsonl", "train", "trained")
        )
        bundle, answers = shlex.quote(str(self.bundle)), shlex.quote(str(self.answers))
        fast = open_bundle(self.bundle, verify=False).manifest.backend == "kernels"
        by = f"--bundle {bundle}" if fast else f"--model {model}"
        talk = f"chat {bundle}" if self.chats else f'run {bundle} "Once upon a time" --raw'
        yield "see who drafts each token", f"streamfuse {talk} --show-drafts"
        data = f"--data {answers}"
        if self.chats:
            more_text = "more of the model's own text (or prompts of your kind)"
            yield more_text, f"streamfuse data synthesize {prompts} --model {model}"
            yield "its answers", f"streamfuse data distill {prompts} {more} {by}"
            data = f"--data {more} {data}"
        yield "train streams on it", f"streamfuse train {data} -o {train} --model {model}"
        yield (
            "export with streams",
            f"streamfuse export --model {model} --adapter {train}/adapter.safetensors -o {trained}",
        )

    def _skip(self, step: str, why: str) -> None:
        self.skipped.append(step)
        say(f"{step}: done before, {why}")


def _is_whole(bundle: Path) -> bool:
    try:
        open_bundle(bundle)
    except BundleError:
        return False
    return True


def _estimate(model: Transformer, todo: list[Item], config: DistillConfig, tokens: int) -> float:
    """Seconds for so many new tokens, from a prefill and a few steps of the first batch."""
    from streamfuse.train.generate import generate_batch

    prompts, taken = [item["input_ids"] for item in todo[: config.batch_size]], []
    for steps in (1, 1 + _PROBE_STEPS):
        started = time.perf_counter()
        generate_batch(model, prompts, replace(config, max_new_tokens=steps))
        taken.append(time.perf_counter() - started)
    step = max(taken[1] - taken[0], 0.0) / _PROBE_STEPS
    batch = taken[0] + step * (config.max_new_tokens - 1)
    return batch * tokens / (len(prompts) * config.max_new_tokens)


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 90 else f"{math.ceil(seconds / 60)} min"
