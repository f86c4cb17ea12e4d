"""Counts the n-gram table of the model's own text when streams are trained; it is stored in the adapter.

Contexts have up to `LONGEST` tokens. Each has a gain over the next shorter context, and a bundle takes the best ones up
to its size limit (model/ngrams.py). The arrays are those of docs/contracts.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamfuse.model.ngrams import MOST_BYTES, pruned

from .formats import DataError, Example
from .readers import read_samples, to_examples

LONGEST = 5  # tokens of a context
_MOST = 4  # continuations per context
_LEAST = 0.04  # a less probable continuation is hardly ever worth a row
_SEEN = 2  # minimum occurrences of a context of two or more tokens

Ints = npt.NDArray[np.int64]
Entries = dict[int, float]  # probability by token


@dataclass(slots=True)
class _Level:
    """Contexts of one length [n]: index of the shorter context, the token before it, continuations, and gain."""

    shorter: Ints
    token: Ints
    entries: list[Entries]
    gain: npt.NDArray[np.float64]


def count_ngrams(examples: Iterable[Example], vocab_size: int, max_bytes: int = MOST_BYTES) -> dict[str, Tensor]:
    """Contexts of one to `LONGEST` tokens and their continuations in the completions, at most `max_bytes`.

    Probabilities are interpolated after Witten and Bell (1991, method C): for a context seen n times with t different
    continuations, its own counts have the weight n / (n + t), and the shorter context has the rest. The probability
    that remains at the end belongs to no token, so that a context that was seen once has little weight.

    Returns the arrays of an n-gram table, and `gains` float32 [contexts], by which contexts are selected for a smaller
    table: how much a context's probabilities add to the log-likelihood of the text compared with the shorter context
    (after Stolcke's relative entropy pruning, 1998). Each continuation is counted once less than it was seen, as an
    estimate for other text. A context's gain is at least that of its extensions.
    """
    nexts, befores = _places(examples)
    here = np.arange(len(nexts))  # positions in the text with a context of this length
    context = np.zeros(len(nexts), np.int64)  # per position: the index of its context of the previous length ...
    prob = np.full(len(nexts), 1.0 / vocab_size)  # ... and the next token's probability after it
    levels = [_Level(context, context, [{}], prob)]  # the empty context
    for length in range(1, LONGEST + 1):
        before = befores[here, length - 1]
        here, before = here[before >= 0], before[before >= 0]
        found, mine = np.unique(context[here] * vocab_size + before, return_inverse=True)
        often = np.bincount(mine, minlength=len(found)) >= (_SEEN if length > 1 else 1)
        here, mine = here[often[mine]], (np.cumsum(often) - 1)[mine[often[mine]]]
        shorter, token = np.divmod(found[often], vocab_size)
        pairs, sample, of_pair, counts = np.unique(
            mine * vocab_size + nexts[here], return_index=True, return_inverse=True, return_counts=True
        )
        owner, after = np.divmod(pairs, vocab_size)
        seen, kinds = np.bincount(mine, minlength=len(token)), np.bincount(owner, minlength=len(token))
        behind = prob[here[sample]]
        probs = (counts + (length > 1) * kinds[owner] * behind) / (seen + kinds)[owner]
        gain = np.bincount(owner, (counts - 1) * np.log(probs / behind), len(token))
        context[here], prob[here] = mine, probs[of_pair]
        likely = probs >= _LEAST
        starts = np.searchsorted(owner[likely], np.arange(len(token) + 1)).tolist()
        after, own = after[likely].tolist(), probs[likely].tolist()
        inherited = (kinds / (seen + kinds)).tolist()
        entries = [
            _entries(zip(after[a:b], own[a:b], strict=True), levels[-1].entries[number], share)
            for (a, b), number, share in zip(pairwise(starts), shorter.tolist(), inherited, strict=True)
        ]
        levels.append(_Level(shorter, token, entries, gain.astype(np.float64)))
    return pruned(_arrays(levels[1:], vocab_size), vocab_size, max_bytes)


def answers_in(files: Iterable[str], vocab_size: int) -> list[Example]:
    """The answers that `streamfuse data distill` wrote, whole.

    Raises:
        DataError: a file has text instead of the model's tokens, or there is no answer.
    """
    samples = [sample for name in files for sample in read_samples(name)]
    if any(sample.ids is None for sample in samples):
        raise DataError("--data: the table is counted in the tokens that `streamfuse data distill` writes")
    longest = max((len(sample.ids.input_ids) for sample in samples if sample.ids), default=0)
    return to_examples(samples, None, None, longest, vocab_size)


def tokens_of(examples: Iterable[Example]) -> int:
    """Tokens of the completions, in which the table is counted."""
    return sum(len(example.input_ids) - example.start for example in examples)


def _places(examples: Iterable[Example]) -> tuple[Ints, Ints]:
    """Each token of the completions [n], and the tokens before it [n, LONGEST], nearest first, -1 if there is none."""
    befores, nexts = [], []
    for example in examples:
        text = np.array([-1] * LONGEST + example.input_ids, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(text, LONGEST + 1)[example.start :]
        befores.append(windows[:, LONGEST - 1 :: -1] if LONGEST > 1 else windows[:, :1])
        nexts.append(windows[:, LONGEST])
    return np.concatenate(nexts), np.concatenate(befores)


def _entries(own: Iterable[tuple[int, float]], shorter: Entries, share: float) -> Entries:
    """A context's most probable continuations, best first: its own, and the shorter context's with weight `share`."""
    probs = {token: p * share for token, p in shorter.items() if p * share >= _LEAST}
    probs.update(own)
    return dict(sorted(probs.items(), key=lambda one: (-one[1], one[0]))[:_MOST])


def _arrays(levels: list[_Level], vocab_size: int) -> dict[str, Tensor]:
    """The table of all levels: contexts of one and two tokens by their last token, longer ones after them."""
    for shorter, longer in zip(levels[-2::-1], levels[:0:-1], strict=True):
        np.maximum.at(shorter.gain, longer.shorter, longer.gain)
    one = levels[0]
    keys = [one.token * (vocab_size + 1)]
    if len(levels) > 1:
        two = levels[1]
        keys.append(one.token[two.shorter] * (vocab_size + 1) + two.token + 1)
    both = np.concatenate(keys)
    order = np.argsort(both)
    place = np.empty(len(both), np.int64)
    place[order] = np.arange(len(both))
    rows = [entries for level in levels[:2] for entries in level.entries]
    entries, all_keys = [rows[i] for i in order.tolist()], [both[order]]
    gains = [np.concatenate([level.gain for level in levels[:2]])[order]]
    place = place[len(one.token) :]  # of contexts of two tokens
    for level in levels[2:]:
        # Contexts of a level are ordered by the index of their shorter context, so they are sorted by its new index.
        keyed = vocab_size * (vocab_size + 1) + place[level.shorter] * vocab_size + level.token
        order = np.argsort(keyed)
        first = sum(map(len, all_keys))
        place = np.empty(len(order), np.int64)
        place[order] = first + np.arange(len(order))
        all_keys.append(keyed[order])
        gains.append(level.gain[order])
        entries += [level.entries[i] for i in order.tolist()]
    lengths = torch.tensor([0, *map(len, entries)], dtype=torch.int64)
    return {
        "keys": torch.from_numpy(np.concatenate(all_keys)),
        "starts": lengths.cumsum(0).to(torch.int32),
        "ids": torch.tensor([token for row in entries for token in row], dtype=torch.int32),
        "log_probs": torch.tensor([math.log(p) for row in entries for p in row.values()], dtype=torch.float16),
        "gains": torch.from_numpy(np.concatenate(gains).astype(np.float32)),
    }
