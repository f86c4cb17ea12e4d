"""The n-gram table of the model's own text: counted where the streams are trained, it travels with the adapter."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from .formats import Example

# Ten times as many entries (8, 0.01, 2) bring 1 % more tokens per second on Spec-Bench, counted by replay.
_MOST = 4  # continuations of one context
_LEAST = 0.04  # a continuation less likely than this is hardly ever worth a row
_SEEN = 4  # occurrences of a context of two tokens; what is rarer is chance


def count_ngrams(examples: Iterable[Example], vocab_size: int) -> dict[str, Tensor]:
    """Contexts of one and two tokens, with what followed them in the completions: the arrays of an n-gram table.

    Probabilities are interpolated after Witten and Bell (1991, method C): a context seen n times with t different
    continuations gives n / (n + t) to its own counts and the rest to the shorter context; what is left of that goes to
    no token, so that a context seen once counts for little.
    """
    pairs: defaultdict[int, Counter[int]] = defaultdict(Counter)
    triples: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for example in examples:
        text = example.input_ids
        for place in range(example.start, len(text)):
            pairs[text[place - 1]][text[place]] += 1
            if place > 1:
                triples[text[place - 2], text[place - 1]][text[place]] += 1
    shorter = {token: _shares(counts, {}) for token, counts in pairs.items()}
    rows = {token * (vocab_size + 1): shares for token, shares in shorter.items()}
    for (before, token), counts in triples.items():
        if sum(counts.values()) >= _SEEN:
            rows[token * (vocab_size + 1) + before + 1] = _shares(counts, shorter[token])
    keys = sorted(key for key in rows if rows[key])
    entries = [sorted(rows[key].items(), key=lambda one: (-one[1], one[0]))[:_MOST] for key in keys]
    lengths = torch.tensor([0, *map(len, entries)], dtype=torch.int64)
    return {
        "keys": torch.tensor(keys, dtype=torch.int64),
        "starts": lengths.cumsum(0).to(torch.int32),
        "ids": torch.tensor([token for row in entries for token, _ in row], dtype=torch.int32),
        "log_probs": torch.tensor([math.log(p) for row in entries for _, p in row], dtype=torch.float16),
    }


def _shares(counts: Counter[int], shorter: dict[int, float]) -> dict[int, float]:
    """Probability per continuation; those below `_LEAST` are left out."""
    seen, kinds = sum(counts.values()), len(counts)
    own = 1 / (seen + kinds)
    shares = {token: share * kinds * own for token, share in shorter.items()}
    for token, count in counts.items():
        shares[token] = shares.get(token, 0.0) + count * own
    return {token: share for token, share in shares.items() if share >= _LEAST}
