"""Examples -> packed batches over cached hidden states.

The layers below the lowest trained one are frozen, so their outputs are computed once per example and stored
(`FrozenStates`); a training step only runs the layers above.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from streamfuse.durable import reserve
from streamfuse.model.streams import StreamFused

from .formats import DataError, Example

_FROZEN_BATCH = 8  # examples of similar length per batch through the frozen layers
_DIGESTED_ROWS = 1 << 14
_FLOAT16_SAFE = 32_768.0  # half of float16's range


def choose_stream_vocab(examples: list[Example], size: int, vocab_size: int, given: Tensor | None = None) -> Tensor:
    """The `size` token ids that the model itself generates most often; ties and the rest by prompt frequency, then by
    id.

    Ids in `given` come before all others. Returns an ascending int64 tensor [size]. The idea is VocabTrim's (arXiv
    2506.22694): rank by the target's own text.
    """
    written, read = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for example in examples:
        np.add.at(written, example.input_ids[example.start :], 1)
        np.add.at(read, example.input_ids[: example.start], 1)
    if given is not None:
        written[given.numpy()] = np.iinfo(np.int64).max
    order = np.lexsort((np.arange(vocab_size), -read, -written))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def split_held_out(examples: list[Example], count: int) -> tuple[list[Example], list[Example]]:
    """Splits by prompt: the first example of each of `count` prompts is held out, evenly spaced (data files are often
    sorted by length in chunks); the examples of the other prompts are trained on. Returns these, then the held-out
    ones. If there are not more than `count` different prompts, splits by example.
    """
    keys: list[Hashable] = [tuple(example.input_ids[: example.start]) for example in examples]
    if len(set(keys)) <= count:
        keys = list(range(len(examples)))
    first: dict[Hashable, Example] = {}
    for key, example in zip(keys, examples, strict=True):
        first.setdefault(key, example)
    distinct = list(first)
    held = {distinct[round((i + 0.5) * len(distinct) / count - 0.5)] for i in range(count)}
    train = [example for key, example in zip(keys, examples, strict=True) if key not in held]
    return train, [first[key] for key in distinct if key in held]


def without_prompts_of(held_out: list[Example], examples: list[Example]) -> list[Example]:
    """The examples whose prompts are not those of held-out ones; if all examples have the same prompt, those that are
    not held-out examples themselves."""

    def prompt(example: Example) -> Hashable:
        return tuple(example.input_ids[: example.start])

    def whole(example: Example) -> Hashable:
        return tuple(example.input_ids)

    key = prompt if len({prompt(example) for example in examples}) > 1 else whole
    held = {key(example) for example in held_out}
    return [example for example in examples if key(example) not in held]


def digest_of(examples: list[Example]) -> str:
    """A short digest of the examples' tokens, the same in every process."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(np.array([example.start, len(example.input_ids), *example.input_ids], "<i8").data)
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Share:
    """The index of this process among `count` processes of this machine, a barrier for all of them, and a collective
    call that returns whether any of them passed true."""

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None
    any_of: Callable[[bool], bool] = lambda value: value


class Stopped(Exception):
    """The frozen layers are not computed to the end, because a process was asked to stop."""


class FrozenStates:
    """Hidden states after the frozen layers for every token of the examples, [tokens, hidden_size], in a reused file.

    The file's name contains a digest of the examples and of those layers' configuration, weights and dtype, so it is
    never reused for other data, another model or another precision. Rows are float16 if the states fit (some models
    exceed its range), else float32. An unfinished file (`.tmp.npy`) of an interrupted run is continued.

    Args:
        progress: called with the estimated number of tokens done by all processes.
        share: every process of the machine writes its part of the file, and returns when the file is complete.
        stop: called before each batch; a process stops when it returns true.

    Raises:
        DataError: an example's states exceed the range of the file's dtype, or the file is damaged.
        OSError: there is no space for the file.
        Stopped: in every process, where `stop` is true in any of them.
    """

    def __init__(
        self,
        model: StreamFused,
        examples: list[Example],
        path: Path,
        progress: Callable[[int], None] = lambda tokens: None,
        share: Share = Share(),
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([len(example.input_ids) for example in examples])])
        self._prefix = f"{path.name}-"
        self.path = path.with_name(f"{self._prefix}{_digest_below(model)}-{digest_of(examples)}.npy")
        missing = not self.path.exists()
        share.wait()  # until all processes have checked
        if missing:
            self._compute(model, examples, progress, share, stop)
        try:
            self.states = np.load(self.path, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise DataError(
                f"{self.path}: damaged ({error}); delete it, and the same command computes it again"
            ) from None

    def _compute(
        self,
        model: StreamFused,
        examples: list[Example],
        progress: Callable[[int], None],
        share: Share,
        stop: Callable[[], bool],
    ) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp.npy")
        if share.index == 0:
            self._open(temporary, model, examples[0])
        share.wait()
        states = np.lib.format.open_memmap(temporary, "r+")
        by_length = sorted(range(len(examples)), key=lambda i: len(examples[i].input_ids))
        stopped = False
        for number, first in enumerate(range(0, len(by_length), _FROZEN_BATCH)):
            if stopped := stop():
                break
            batch = by_length[first : first + _FROZEN_BATCH]
            if number % share.count == share.index:
                self._compute_batch(states, model, examples, batch)
            progress(sum(len(examples[i].input_ids) for i in batch))
        states.flush()
        if share.any_of(stopped):  # no process waits for one that has stopped
            raise Stopped
        if share.index == 0:
            temporary.rename(self.path)
        share.wait()

    def _compute_batch(self, states: Any, model: StreamFused, examples: list[Example], batch: list[int]) -> None:
        if all(states[self.offsets[i + 1] - 1].any() for i in batch):  # written by an interrupted run
            return
        for i, rows in zip(batch, _frozen(model, [examples[i] for i in batch]), strict=True):
            with np.errstate(over="ignore"):
                stored = rows.astype(states.dtype, copy=False)
            if not np.isfinite(stored).all():  # before it is stored, or the next run would take it as written
                raise DataError(
                    f"{self.path}: the hidden states of training example {i + 1} exceed the range of {states.dtype}; "
                    f"leave it out of the data: its token ids begin {', '.join(map(str, examples[i].input_ids[:8]))}"
                )
            states[self.offsets[i] : self.offsets[i + 1]] = stored

    def _open(self, temporary: Path, model: StreamFused, first: Example) -> None:
        """Create the unfinished file if there is none."""
        with suppress(FileNotFoundError, ValueError):  # ValueError: a killed run did not finish the header
            np.lib.format.open_memmap(temporary, "r+")
            return
        dtype = np.float16 if np.abs(_frozen(model, [first])[0]).max() < _FLOAT16_SAFE else np.float32
        shape = (int(self.offsets[-1]), model.base.config.hidden_size)
        np.lib.format.open_memmap(temporary, "w+", dtype, shape).flush()
        try:
            reserve(temporary)
        except OSError:
            temporary.unlink()
            raise

    def delete_others(self) -> None:
        """Delete the folder's states of other examples or models, finished or not: each takes gigabytes, and a run
        uses one file. A process that has opened one keeps it."""
        for other in self.path.parent.glob(f"{self._prefix}*.npy"):
            if other != self.path:
                other.unlink(missing_ok=True)

    def __getitem__(self, i: int) -> Tensor:
        """Example i's states, float32 [tokens, hidden_size]."""
        return torch.from_numpy(np.array(self.states[self.offsets[i] : self.offsets[i + 1]], np.float32))


@torch.inference_mode()
def _frozen(model: StreamFused, examples: list[Example]) -> list[npt.NDArray[np.float32]]:
    """Per example float32 [tokens, hidden_size]; right-padded together, which causal attention does not attend to."""
    ids = pad_sequence([torch.tensor(example.input_ids) for example in examples], batch_first=True)
    states = model.frozen_states(ids.to(model.stream_vocab.device)).float().cpu().numpy()
    return [rows[: len(example.input_ids)] for rows, example in zip(states, examples, strict=True)]


def _digest_below(model: StreamFused) -> str:
    # The layers follow the configuration too: rotary embedding, scales, windows.
    digest = hashlib.blake2b(repr(model.base.config).encode(), digest_size=4)
    frozen = model.num_frozen_layers
    below = max(0, frozen - (model.base.config.num_layers - model.streams_config.base_layers))
    adapters = [model.base_adapters[i] for i in range(below)]  # those of a previously tuned base
    own = model.base.per_layer_modules()
    for module in (model.base.embed_tokens, *own, *model.base.blocks[:frozen], *adapters):
        for parameter in module.parameters():
            digest.update(str(parameter.dtype).encode())  # the weights may be the same in two
            for rows in parameter.detach().split(_DIGESTED_ROWS):  # a float32 copy of a table may not fit into memory
                digest.update(rows.float().cpu().numpy().tobytes())
    return digest.hexdigest()


class StreamDataset(Dataset[dict[str, Any]]):
    """Examples with their frozen states, as dicts (`ids` [T], `frozen` [T, h], `start`)."""

    def __init__(self, examples: list[Example], states: FrozenStates) -> None:
        self.examples, self.states = examples, states

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        example = self.examples[i]
        return {"ids": torch.tensor(example.input_ids), "frozen": self.states[i], "start": example.start}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pack a batch of `StreamDataset` rows: texts are concatenated, without padding.

    Returns ids int64 [T], frozen float32 [T, h], at int64 [P] (positions of the tokens with streams, the anchors), left
    int64 [P] (how many tokens follow each in its text) and segments (per text its number of tokens, and of anchors).
    Only the last prompt token and completion tokens have streams (segment attention, paper appendix C).
    """
    at: list[Tensor] = []
    left: list[Tensor] = []
    segments: list[tuple[int, int]] = []
    end = 0
    for row in rows:
        tokens, most = len(row["ids"]), len(row["ids"]) - row["start"]
        end += tokens
        at.append(torch.arange(end - 1 - most, end - 1))
        left.append(torch.arange(most, 0, -1))
        segments.append((tokens, most))
    return {
        "ids": torch.cat([row["ids"] for row in rows]),
        "frozen": torch.cat([row["frozen"] for row in rows]),
        "at": torch.cat(at),
        "left": torch.cat(left),
        "segments": segments,
    }


def draw_anchors(batch: dict[str, Any], share: float) -> dict[str, Any]:
    """A batch of `collate` with a random share, 0 to 1, of its anchors, at least one per text.

    Call it in the training step, not in the collator: the data loader collates ahead, so there a resumed run would draw
    other anchors.
    """
    kept: list[Tensor] = []
    segments: list[tuple[int, int]] = []
    first = 0
    for tokens, count in batch["segments"]:
        kept.append(first + torch.randperm(count)[: max(1, round(share * count))].sort().values)
        segments.append((tokens, len(kept[-1])))
        first += count
    places = torch.cat(kept).to(batch["at"].device)
    return {**batch, "at": batch["at"][places], "left": batch["left"][places], "segments": segments}
