"""What the model usually says next: a table counted in its own text when its streams were trained.

A static n-gram model with back-off: the longest context that it knows says what follows. It knows nothing but the last
few tokens, and it costs nothing: no weights are read. So it drafts where the streams' pass would cost more than it
brings, and where there are no streams yet. Its probabilities determine what is drafted, never the output.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.reference.coupling import GREEDY, Coupling
from streamfuse.runtime.reference.guide import FORCED_LOG_PROB, FREE, Guide, Path
from streamfuse.runtime.reference.tree import Tree

ANY = -1  # matches any second-to-last token
MAX_DEPTH = 6
LONGEST = 8  # tokens of a context that are looked for
LEAST = math.log(0.02)  # a path less likely than this is not worth a row anywhere

IntRows = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class NgramTable:
    """Continuations of contexts of one token or more.

    Attributes:
        vocab_size: of the model.
        keys: int64 [n], ascending. v * (vocab_size + 1) + u + 1 for the context u, v; u is `ANY` for v alone. A longer
            one has vocab_size * (vocab_size + 1) + c * vocab_size + t: the context in place c, and t before it.
        starts: int32 [n + 1]: where each context's entries begin; the last one is the number of entries m.
        ids: int32 [m], most probable first within a context.
        log_probs: float32 [m], natural log, at most 0.
    """

    vocab_size: int
    keys: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    _known: dict[tuple[int, ...], list[tuple[int, float]]] = field(
        default_factory=dict, repr=False
    )  # contexts met so far

    @classmethod
    def of(cls, vocab_size: int, keys: IntRows, starts: IntRows, ids: IntRows, log_probs: npt.ArrayLike) -> NgramTable:
        """From the arrays of draft.safetensors. ValueError, naming the array, where a shape or a value cannot be."""
        probs = np.asarray(log_probs, np.float32)
        if any(array.ndim != 1 for array in (keys, starts, ids, probs)) or len(ids) != len(probs):
            raise ValueError(
                f"ngram_keys {keys.shape}, ngram_starts {starts.shape}, ngram_ids {ids.shape} and ngram_log_probs "
                f"{probs.shape} do not belong together"
            )
        places = starts.astype(np.int64)  # the difference of two int32 may be none
        if len(places) != len(keys) + 1 or places[0] != 0 or places[-1] != len(ids) or (np.diff(places) < 0).any():
            raise ValueError(f"ngram_starts does not divide {len(ids)} entries among {len(keys)} contexts")
        if (keys[1:] <= keys[:-1]).any():
            raise ValueError("ngram_keys are not ascending")
        if len(keys) and int(keys[0]) < 0:
            raise ValueError(f"ngram_keys names a token outside the vocabulary of {vocab_size}")
        pairs = vocab_size * (vocab_size + 1)
        longer = np.flatnonzero(keys >= pairs)
        shorter = (keys[longer] - pairs) // vocab_size
        if (shorter >= longer).any():
            raise ValueError("ngram_keys lengthens a context that does not come before it")
        if ((keys[shorter] < pairs) & (keys[shorter] % (vocab_size + 1) == 0)).any():
            raise ValueError("ngram_keys lengthens a context of one token; those of two have keys of their own")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise ValueError(f"ngram_ids names a token outside the vocabulary of {vocab_size}")
        if not (np.isfinite(probs) & (probs <= 0)).all():
            raise ValueError("ngram_log_probs holds what is no log-probability")
        if not np.isin(np.flatnonzero(probs[1:] > probs[:-1]) + 1, places).all():
            raise ValueError("ngram_log_probs rises within a context; the most probable comes first")
        return cls(vocab_size, keys.astype(np.int64), starts.astype(np.int32), ids.astype(np.int32), probs)

    def after(self, *context: int) -> list[tuple[int, float]]:
        """Continuations of the longest known end of the context, most probable first: (token, log-probability).

        The last token stands last; `ANY` is no token. Empty where even the last one alone is unknown.
        """
        context = context[-LONGEST:]
        if context not in self._known:
            place = self._place(context)
            part = slice(0, 0) if place is None else slice(int(self.starts[place]), int(self.starts[place + 1]))
            self._known[context] = list(zip(self.ids[part].tolist(), self.log_probs[part].tolist(), strict=True))
        return self._known[context]

    def _place(self, context: Sequence[int]) -> int | None:
        alone = context[-1] * (self.vocab_size + 1)
        if len(context) < 2 or context[-2] == ANY or (place := self._find(alone + context[-2] + 1)) is None:
            return self._find(alone)
        for token in context[-3::-1]:
            key = self.vocab_size * (self.vocab_size + 1) + place * self.vocab_size + token
            if token == ANY or (longer := self._find(key)) is None:
                break
            place = longer
        return place

    def _find(self, key: int) -> int | None:
        place = int(self.keys.searchsorted(key))
        return place if place < len(self.keys) and self.keys[place] == key else None

    def grow(
        self, tokens: Sequence[int], width: int, depth: int, guide: Guide = FREE, coupling: Coupling = GREEDY
    ) -> Tree:
        """The most probable tree of at most `width` nodes, min(depth, MAX_DEPTH) levels below tokens[-1], best first.

        Equal paths stand in the order in which they were found. Paths below a probability of 0.02 are left out. A token
        that the guide forces is its parent's only child, and does not count as one of MAX_DEPTH levels.
        """
        drafted, parents, probs, levels, paths = [tokens[-1]], [-1], [0.0], [0], [Path()]
        count = 0
        heap: list[tuple[float, int, int, int]] = []  # (-log-probability, order, parent's row, rank among its children)

        def after(path: Path) -> list[tuple[int, float]]:
            """The continuations of a path, the most probable first."""
            found = self.after(*[*tokens, *path][-LONGEST:])
            if not found:
                return found
            ids, log_probs = zip(*found, strict=True)
            coupled = coupling.apply(len(tokens) + len(path), ids, np.array(log_probs)).tolist()
            return sorted(zip(ids, coupled, strict=True), key=lambda one: -one[1])

        children = [after(Path())]

        def offer(parent: int, rank: int) -> None:
            """The forced child, or the best one from this rank on that may follow."""
            nonlocal count
            if guide.forced(paths[parent]) is not None:
                path = probs[parent] + FORCED_LOG_PROB
            else:
                allowed = guide.may_follow(paths[parent], [token for token, _ in children[parent][rank:]])
                if True not in allowed:
                    return
                rank += allowed.index(True)
                path = probs[parent] + children[parent][rank][1]
            if path > LEAST:
                heapq.heappush(heap, (-path, count, parent, rank))
                count += 1

        if depth > 0:
            offer(0, 0)
        while heap and len(drafted) < width:
            path, _, parent, rank = heapq.heappop(heap)
            forced = guide.forced(paths[parent])
            token, row = children[parent][rank][0] if forced is None else forced, len(drafted)
            drafted.append(token)
            parents.append(parent)
            probs.append(-path)
            levels.append(levels[parent] + (forced is None))
            paths.append((*paths[parent], token))
            children.append(after(paths[row]) if levels[row] < MAX_DEPTH else [])
            if forced is None:
                offer(parent, rank + 1)
            if len(paths[row]) < depth:
                offer(row, 0)
        return Tree.of(drafted, parents, probs)
