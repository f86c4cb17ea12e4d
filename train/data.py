"""One way in for training data: JSON lines -> `Example`s -> padded batches over cached lower hidden states.

In lossless mode the layers below the streams are frozen, so their outputs are computed once per example and stored
(`LowerStates`); a step then runs the top layers only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from streamfuse.model.streams import StreamFused

_MIN_COMPLETION_TOKENS = 4  # shorter answers have nothing for the streams to learn
_FLOAT16_SAFE = 32_768.0  # half of float16's range


class DataError(ValueError):
    """A data file cannot be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of prompt and completion together; tokens from `start` (at least 1) on are the completion."""

    input_ids: list[int]
    start: int


def read_examples(path: Path, max_tokens: int, vocab_size: int | None = None) -> list[Example]:
    """Read a distilled file (`input_ids` of the prompt, `completion_ids`, per line); examples are cut at `max_tokens`.

    Examples whose completion has fewer than four tokens (after the cut) are left out, and so is a last line that a
    stopped writer has not finished.

    Raises:
        DataError: the file is missing, a line is not such an object, a token is not below `vocab_size` (where given),
            or no example is left.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; `streamfuse distill` writes one")
    examples = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            prompt, completion = _token_ids(line, vocab_size, f"{path}, line {number}")
            ids = (prompt + completion)[:max_tokens]
            if len(ids) - len(prompt) >= _MIN_COMPLETION_TOKENS:
                examples.append(Example(ids, len(prompt)))
    if not examples:
        raise DataError(
            f"{path}: no example has {_MIN_COMPLETION_TOKENS} completion tokens or more within {max_tokens} tokens"
        )
    return examples


def _token_ids(line: str, vocab_size: int | None, place: str) -> tuple[list[int], list[int]]:
    try:
        row = json.loads(line)
        lists = (row["input_ids"], row["completion_ids"])
    except (ValueError, KeyError, TypeError, IndexError):
        raise DataError(
            f"{place}: expected an object with input_ids and completion_ids, as `streamfuse distill` writes"
        ) from None
    for name, ids in zip(("input_ids", "completion_ids"), lists, strict=True):
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise DataError(f"{place}: {name} is not a list of token ids")
        if vocab_size is not None and max(ids, default=0) >= vocab_size:
            raise DataError(f"{place}: {name} holds token {max(ids)}, the model's vocabulary has {vocab_size} tokens")
    if not lists[0]:
        raise DataError(f"{place}: input_ids is empty; a completion needs a token before it")
    return lists


def choose_stream_vocab(examples: list[Example], size: int, vocab_size: int) -> Tensor:
    """The `size` token ids that the model itself writes most often; ties and the rest by prompt frequency, then by id.

    Returns an ascending int64 tensor [size]. The idea is VocabTrim's (arXiv 2506.22694): rank by the target's own text.
    """
    written, read = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for example in examples:
        np.add.at(written, example.input_ids[example.start :], 1)
        np.add.at(read, example.input_ids[: example.start], 1)
    order = np.lexsort((np.arange(vocab_size), -read, -written))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def digest_of(examples: list[Example]) -> str:
    """A short name of the examples' tokens, the same in every process."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(np.array([example.start, len(example.input_ids), *example.input_ids], "<i8").tobytes())
    return digest.hexdigest()[:16]


class LowerStates:
    """Hidden states below the streams for every token of the examples, [tokens, hidden_size], in a file that is reused.

    The file's name holds a digest of the examples and of the lower layers' weights, so other data or another model
    never reads a stale one. Rows are float16 where the states fit (some models have rows beyond its range), else
    float32. A file that a stopped run left unfinished (`.tmp.npy`) is continued.
    """

    def __init__(
        self,
        model: StreamFused,
        examples: list[Example],
        path: Path,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([len(example.input_ids) for example in examples])])
        self.path = path.with_name(f"{path.name}-{_digest_below(model)}-{digest_of(examples)}.npy")
        if not self.path.exists():
            self._compute(model, examples, progress)
        self.states = np.load(self.path, mmap_mode="r")

    def _compute(self, model: StreamFused, examples: list[Example], progress: Callable[[int], None]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp.npy")
        states = self._open(temporary, model, examples[0])
        for i, example in enumerate(examples):
            start, end = self.offsets[i], self.offsets[i + 1]
            if not states[end - 1].any():  # else written by a run that was stopped
                states[start:end] = _lower(model, example)
                if not np.isfinite(states[start:end]).all():
                    raise DataError(f"example {i + 1}: hidden states below the streams exceed {states.dtype}")
            progress(len(example.input_ids))
        states.flush()
        temporary.rename(self.path)

    def _open(self, temporary: Path, model: StreamFused, first: Example) -> Any:
        """The unfinished file, writable (a numpy memmap)."""
        if temporary.exists():
            return np.lib.format.open_memmap(temporary, "r+")
        dtype = np.float16 if np.abs(_lower(model, first)).max() < _FLOAT16_SAFE else np.float32
        shape = (int(self.offsets[-1]), model.base.config.hidden_size)
        return np.lib.format.open_memmap(temporary, "w+", dtype, shape)

    def __getitem__(self, i: int) -> Tensor:
        """Example i's states, float32 [tokens, hidden_size]."""
        return torch.from_numpy(np.array(self.states[self.offsets[i] : self.offsets[i + 1]], np.float32))


@torch.inference_mode()
def _lower(model: StreamFused, example: Example) -> npt.NDArray[np.float32]:
    device = model.stream_vocab.device
    lower = model.base.lower(torch.tensor([example.input_ids], device=device), model.num_lower_layers)
    states: npt.NDArray[np.float32] = lower[0].float().cpu().numpy()
    return states


def _digest_below(model: StreamFused) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for module in (model.base.embed_tokens, *model.base.blocks[: model.num_lower_layers]):
        for parameter in module.parameters():
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


class StreamDataset(Dataset[dict[str, Any]]):
    """Examples `first` to `last` with their lower states, as dicts (`ids` [T], `lower` [T, h], `start`)."""

    def __init__(self, examples: list[Example], lower: LowerStates, first: int, last: int) -> None:
        self.examples, self.lower, self.first = examples[first:last], lower, first

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        example = self.examples[i]
        return {"ids": torch.tensor(example.input_ids), "lower": self.lower[self.first + i], "start": example.start}


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Right-pad a batch of `StreamDataset` rows.

    Returns ids int64 [B, T] (-1 in the padding), lower float32 [B, T, h], at int64 [B, P] (tokens that carry streams)
    and carried bool [B, P] (False in the padding of `at`). Streams stand on the last prompt token and on completion
    tokens only (segment attention, paper appendix C).
    """
    length = max(len(row["ids"]) for row in rows)
    positions = max(len(row["ids"]) - row["start"] for row in rows)
    ids = torch.full((len(rows), length), -1)
    lower = torch.zeros(len(rows), length, rows[0]["lower"].shape[-1])
    at = torch.zeros(len(rows), positions, dtype=torch.int64)
    carried = torch.zeros(len(rows), positions, dtype=torch.bool)
    for i, row in enumerate(rows):
        n, count = len(row["ids"]), len(row["ids"]) - row["start"]
        ids[i, :n], lower[i, :n] = row["ids"], row["lower"]
        at[i, :count], carried[i, :count] = torch.arange(row["start"] - 1, n - 1), True
    return {"ids": ids, "lower": lower, "at": at, "carried": carried}
