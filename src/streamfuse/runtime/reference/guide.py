"""The constraint along the paths of a draft: what may follow each drafted token, and what must. core/guide.cpp and
core/constraint.cpp are the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Protocol, runtime_checkable

import numpy as np

from streamfuse.runtime.backend import BoolArray
from streamfuse.runtime.constraint import MAY_END, MAY_GROW, MUST_END, UNRESTRICTED, Constraint
from streamfuse.runtime.reference.numbers import logarithm

Path = tuple[int, ...]
_FREE = UNRESTRICTED | MAY_END  # of a state in which any token may follow
LONGEST_END = 4  # tokens of a certain end, of closing brackets for example

# How often the model spells forced text in the tokens that are drafted. The core learns this share in planned texts.
FORCED_LOG_PROB = float(logarithm(np.array([20.0 * 0.97 / 20.0]))[0])


class Guide:
    """Asks a constraint about paths, the tokens that may come after the text. Without one everything may follow.

    A constraint has one state, the tokens that it has accepted, so the guide moves it from path to path: it drops
    what the new path does not share and accepts the rest. End tokens are the guide's own affair: they are allowed where
    the text may end, and nothing follows them.

    Methods raise what the constraint raises, and ValueError for a path that nothing can follow. Drafts ask `may_follow`
    and `forced`, which raise nothing: a draft ends where the constraint fails, the text only if the model goes there.
    """

    def __init__(self, constraint: Constraint | None = None, ends: Collection[int] = (), widest: int = 1) -> None:
        """`ends` are the tokens that end the text, `widest` is the number of nodes of the widest draft."""
        self._constraint, self._ends, self._widest = constraint, frozenset(ends), widest
        self._at: list[int] = []  # accepted after the text
        self._length = 0  # accepted tokens of the text
        self._forced: dict[Path, int | None] = {}

    @property
    def constrained(self) -> bool:
        return self._constraint is not None

    def may_follow(self, path: Path, tokens: Sequence[int]) -> list[bool]:
        """Whether each token may be drafted after the path."""
        try:
            return self.allows(path, tokens)
        except Exception:
            return [False] * len(tokens)

    def forced(self, path: Path) -> int | None:
        """The token that must follow the path; None if there is a choice. A span of forced tokens is asked for once: a
        constraint may spell the same text otherwise if it is asked in the middle of it."""
        if self._constraint is None:
            return None
        if path not in self._forced:
            self._forced[path] = None
            at = path
            for token in self._span(path, self._widest):
                self._forced[at] = token
                at = (*at, token)
        return self._forced[path]

    def _span(self, path: Path, room: int) -> list[int]:
        assert self._constraint is not None
        try:
            self._move(path)
            span = list(self._constraint.forced(room))
        except Exception:
            return []
        return list(takewhile(lambda token: token not in self._ends, span))

    def allows(self, path: Path, tokens: Sequence[int]) -> list[bool]:
        """Whether each token may follow the path."""
        if self._constraint is None:
            return [True] * len(tokens)
        state = self._state(path)
        if state & MUST_END:
            return [False] * len(tokens)
        allowed = self._constraint.allows(np.asarray(tokens, np.int64)).tolist()
        may_end = bool(state & MAY_END)
        return [may_end if token in self._ends else ok for token, ok in zip(tokens, allowed, strict=True)]

    def mask(self, path: Path) -> BoolArray | None:
        """bool [V]: the tokens that may follow the path, at least one; None if all may."""
        state = self._state(path)
        if self._constraint is None or state & _FREE == _FREE:
            return None
        if state & MUST_END:
            raise ValueError("nothing can follow a complete text")
        allowed = np.array(self._constraint.mask(), np.bool_)
        allowed[[token for token in self._ends if token < len(allowed)]] = bool(state & MAY_END)
        if not allowed.any():
            raise ValueError(
                "the grammar allows no token of this vocabulary after the first "
                f"{self._length + len(path)} tokens of the text, and the text may not end"
            )
        return allowed

    def restricts(self, path: Path) -> bool:
        """Whether some token may not follow the path."""
        return self._state(path) & _FREE != _FREE

    def certain_end(self, room: int) -> Path:
        """The tokens that end the text, at most `room`, if each of them is the only one that may follow; else none."""
        path = Path() if self._constraint is None else Path(self._span((), LONGEST_END + 1))
        if not 0 < len(path) <= min(room, LONGEST_END):
            return ()
        try:
            certain = bool(self._state(path) & MUST_END) and all(
                self._only(path[:place]) == token for place, token in enumerate(path)
            )
        except Exception:  # of a token that the model may not choose
            return ()
        return path if certain else ()

    def _only(self, path: Path) -> int | None:
        """The only token that may follow; None if there are several."""
        mask = self.mask(path)
        return None if mask is None or mask.sum() != 1 else int(mask.argmax())

    def is_complete(self) -> bool:
        """Whether a text that ends here at a limit is complete."""
        return self._state(()) & (MAY_END | MAY_GROW) == MAY_END

    def must_end(self) -> bool:
        """Whether nothing can follow the text."""
        return bool(self._state(()) & MUST_END)

    def follow(self, path: Path) -> None:
        """Go to the path, which the model has chosen. An end token is not asked for."""
        if path[-1] not in self._ends:
            self._state(path)

    def take(self, path: Path) -> None:
        """The path becomes part of the text."""
        if self._constraint is not None:
            self._move(path)
            self._at.clear()
            self._forced.clear()
            self._length += len(path)

    def _state(self, path: Path) -> int:
        if self._constraint is None:
            return _FREE
        self._move(path)
        state = self._constraint.state()
        return state | MAY_END if state & MUST_END else state

    def _move(self, path: Path) -> None:
        assert self._constraint is not None
        if self._ends.intersection(path):
            raise ValueError("nothing follows an end token")
        common = 0
        while common < min(len(path), len(self._at)) and path[common] == self._at[common]:
            common += 1
        if common < len(self._at):
            self._constraint.rollback(len(self._at) - common)
            del self._at[common:]
        for token in path[common:]:
            self._constraint.accept(token)
            self._at.append(token)


FREE = Guide()


@runtime_checkable
class Guided(Protocol):
    """A drafter that drafts what its guide forces, and nothing that it refuses. Drafts of another one are lossless too,
    but verify tokens that cannot be accepted."""

    guide: Guide
