"""One way in for training data: JSON lines -> `Example`s -> padded batches over cached lower hidden states.

In lossless mode the layers below the streams are frozen, so their outputs are computed once per example and stored
(`LowerStates`); a step then runs the top layers only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from streamfuse.model.streams import StreamFused


class DataError(ValueError):
    """A data file cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Example:
    """Token ids of prompt and completion together; tokens from `start` on are the completion."""

    input_ids: list[int]
    start: int


def read_examples(path: Path, max_tokens: int, limit: int | None = None) -> list[Example]:
    """Read a distilled file (`input_ids` of the prompt and `completion_ids` per line); examples are cut at `max_tokens`."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    examples = []
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                prompt, completion = row["input_ids"], row["completion_ids"]
            except (json.JSONDecodeError, KeyError) as error:
                raise DataError(f"{path}, line {number}: expected an object with input_ids and completion_ids ({error!r})") from None
            ids = (prompt + completion)[:max_tokens]
            if len(ids) - len(prompt) >= 4:  # shorter answers have nothing for the streams to learn
                examples.append(Example(ids, len(prompt)))
            if limit and len(examples) == limit:
                break
    if not examples:
        raise DataError(f"{path}: no usable example")
    return examples


def choose_stream_vocab(examples: list[Example], size: int, vocab_size: int) -> Tensor:
    """The `size` token ids that the model itself writes most often; ties and the rest by prompt frequency, then by id.

    Returns an ascending int64 tensor. The idea is VocabTrim's (arXiv 2506.22694): rank by the target's own output.
    """
    written, read = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for example in examples:
        np.add.at(written, example.input_ids[example.start :], 1)
        np.add.at(read, example.input_ids[: example.start], 1)
    order = np.lexsort((np.arange(vocab_size), -read, -written))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


class LowerStates:
    """Hidden states below the streams for every token of the examples, float16 [tokens, hidden_size], in a file that is reused."""

    def __init__(self, model: StreamFused, examples: list[Example], path: Path, progress: object = None) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([len(e.input_ids) for e in examples])])
        shape = (int(self.offsets[-1]), model.base.config.hidden_size)
        # The shape and a checksum of the ids in the name: another data set or layer count never reads a stale file.
        digest = hash((model.num_lower_layers, *(tuple(e.input_ids) for e in examples))) & 0xFFFFFFFF
        self.path = path.with_name(f"{path.name}-{digest:08x}.npy")
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".tmp.npy")
            states = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
            with torch.inference_mode():
                for i, example in enumerate(examples):
                    lower = model.base.lower(torch.tensor([example.input_ids]), model.num_lower_layers)[0]
                    states[self.offsets[i] : self.offsets[i + 1]] = lower.to(torch.float16).numpy()
                    if progress:
                        progress(len(example.input_ids))  # type: ignore[operator]
            states.flush()
            temporary.rename(self.path)
        self.states = np.load(self.path, mmap_mode="r")

    def __getitem__(self, i: int) -> Tensor:
        return torch.from_numpy(np.array(self.states[self.offsets[i] : self.offsets[i + 1]], np.float32))


class StreamDataset(Dataset):
    """Examples `first` to `last` with their lower states, as dicts (`ids` [T], `lower` [T, h], `start`)."""

    def __init__(self, examples: list[Example], lower: LowerStates, first: int, last: int) -> None:
        self.examples, self.lower, self.first = examples[first:last], lower, first

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> dict:
        example = self.examples[i]
        return {"ids": torch.tensor(example.input_ids), "lower": self.lower[self.first + i], "start": example.start}


def collate(rows: list[dict]) -> dict[str, Tensor]:
    """Right-pad: ids [B, T] (-1 in the padding), lower [B, T, h], at [B, P] positions that carry streams, carried bool [B, P].

    Streams stand on the last prompt token and on completion tokens only (segment attention, paper appendix C).
    """
    length = max(len(r["ids"]) for r in rows)
    ids = torch.full((len(rows), length), -1)
    lower = torch.zeros(len(rows), length, rows[0]["lower"].shape[-1])
    positions = max(len(r["ids"]) - r["start"] for r in rows)
    at = torch.zeros(len(rows), positions, dtype=torch.int64)
    carried = torch.zeros(len(rows), positions, dtype=torch.bool)
    for i, row in enumerate(rows):
        n, count = len(row["ids"]), len(row["ids"]) - row["start"]
        ids[i, :n], lower[i, :n] = row["ids"], row["lower"]
        at[i, :count], carried[i, :count] = torch.arange(row["start"] - 1, n - 1), True
    return {"ids": ids, "lower": lower, "at": at, "carried": carried}
