"""Constraints for tests, written in Python: grammars of token ids as small automata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamfuse.runtime.backend import BoolArray, IntArray
from streamfuse.runtime.constraint import MAY_END, MUST_END, UNRESTRICTED

FREE = -1  # the state in which everything is allowed, until the trigger


class GrammarFailed(Exception):
    """What an automaton raises where a test says so."""


@dataclass
class Automaton:
    """The texts that lead from state 0 along edges, {token: next state} per state, to a state that may end.

    A state without edges must end, or is a dead end if it may not. A state with one edge that may not end forces it.
    With a `trigger` every token is allowed before it, and state 0 comes after it; `free_may_end` says whether the text
    may end before. `raises` is a function of the
    constraint and the state in which it raises GrammarFailed; `accept` raises when it would enter that state.
    """

    edges: Sequence[Mapping[int, int]]
    may_end: Sequence[int]
    vocab_size: int = 64
    trigger: int | None = None
    free_may_end: bool = True
    raises: tuple[str, int] | None = None
    states: list[int] = field(init=False)  # after each accepted token, the start first

    def __post_init__(self) -> None:
        self.states = [0 if self.trigger is None else FREE]

    def accept(self, token: int) -> None:
        entered = self._after(token)
        assert entered is not None, f"token {token} is refused"
        self._fail("accept", entered)
        self.states.append(entered)

    def rollback(self, n: int) -> None:
        assert 0 < n < len(self.states), "no more tokens are dropped than were accepted"
        del self.states[-n:]

    def state(self) -> int:
        self._fail("state")
        now = self.states[-1]
        if now == FREE:
            return UNRESTRICTED | (MAY_END if self.free_may_end else 0)
        return 0 if now not in self.may_end else MAY_END if self.edges[now] else MAY_END | MUST_END

    def allows(self, tokens: IntArray) -> BoolArray:
        self._fail("allows")
        return np.array([self._after(token) is not None for token in tokens.tolist()], np.bool_)

    def mask(self) -> BoolArray:
        self._fail("mask")
        return np.array([self._after(token) is not None for token in range(self.vocab_size)], np.bool_)

    def forced(self, room: int) -> list[int]:
        self._fail("forced")
        found: list[int] = []
        now = self.states[-1]
        while now != FREE and now not in self.may_end and len(self.edges[now]) == 1 and len(found) < room:
            token, now = next(iter(self.edges[now].items()))
            found.append(token)
        return found

    def choice_key(self) -> int:
        """States with equally many edges, if they are few, are alike."""
        now = self.states[-1]
        return 0 if now == FREE or len(self.edges[now]) > 5 else len(self.edges[now])

    def _after(self, token: int) -> int | None:
        now = self.states[-1]
        if now == FREE:
            return 0 if token == self.trigger else FREE
        return self.edges[now].get(token)

    def _fail(self, name: str, state: int | None = None) -> None:
        now = self.states[-1] if state is None else state
        if self.raises == (name, now):
            raise GrammarFailed(f"{name} fails in state {now}")


def random_automaton(rng: np.random.Generator, vocab_size: int = 64) -> Automaton:
    """Up to ten states: forced spans, choices of few and of many tokens, ends, rarely a dead end."""
    count = int(rng.integers(2, 11))
    edges: list[dict[int, int]] = []
    for state in range(count - 1):
        many = 1 if rng.random() < 0.45 else int(rng.choice([2, 5, vocab_size // 2, vocab_size - 2]))
        tokens = rng.permutation(vocab_size)[:many].tolist()
        nexts = rng.integers(0, count, many) if rng.random() < 0.5 else np.full(many, state + 1)
        edges.append(dict(zip(tokens, nexts.tolist(), strict=True)))
    ends = [state for state in range(count - 1) if rng.random() < 0.2]
    if rng.random() < 0.9:
        ends.append(count - 1)
    trigger = int(rng.integers(vocab_size)) if rng.random() < 0.2 else None
    return Automaton([*edges, {}], ends, vocab_size, trigger)
