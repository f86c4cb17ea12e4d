"""Constraints: grammars that restrict a text (sf_constraint in core/streamfuse_core.h), also ones written in Python.

An exception of a constraint written in Python is raised again if it ends the text (runtime/guard.py). In a draft it
only ends the draft, because the model may choose otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamfuse.runtime.backend import BoolArray, IntArray
from streamfuse.runtime.guard import Guard
from streamfuse.runtime.structures import ConstraintTable

MAY_END, MUST_END, UNRESTRICTED, MAY_GROW = 1, 2, 4, 8  # of `state`


class Constraint(Protocol):
    """What the core asks of a grammar. Its state is the list of accepted tokens, at first none.

    A method `choice_key(self) -> int` is optional: a number that states with the same few continuations share, or 0
    where almost anything can follow. Drafts repeat what the model chose in states with the same key.

    The end tokens of a text are never accepted, and what `allows` and `mask` say of them is ignored: they are allowed
    where `state` says that the text may end.
    """

    def accept(self, token: int) -> None:
        """Append a token that is allowed."""

    def rollback(self, n: int) -> None:
        """Drop the last `n` accepted tokens."""

    def state(self) -> int:
        """A sum of MAY_END (the text is complete), MUST_END (and nothing can follow; implies MAY_END), UNRESTRICTED
        (every token is allowed, end tokens only with MAY_END, and none is forced), and MAY_GROW (more text may
        change the last value, such as a number's next digit; a limit here means that the text is incomplete)."""

    def allows(self, tokens: IntArray) -> BoolArray:
        """[n]: whether each of `tokens`, int64 [n], may follow."""

    def mask(self) -> BoolArray:
        """[vocab_size]: whether each token may follow."""

    def forced(self, room: int) -> Sequence[int]:
        """The tokens that spell the only text that can follow, at most `room`; none if there is a choice."""


@dataclass
class Table:
    """A filled sf_constraint, and what it points to. It must live for as long as it is `in_use`."""

    struct: ConstraintTable
    held: list[Any] = field(default_factory=list)
    in_use: bool = False  # the core may call Python functions of it: until it has called `release`
    guard: Guard = field(default_factory=lambda: Guard([]))


def table_of(constraint: Constraint, vocab_size: int, failure: list[BaseException]) -> Table:
    """The constraint's own table (`constraint_table`), which the caller then owns, or one of callbacks, whose
    guard has this `failure`. ValueError if the constraint has another vocabulary."""
    own = getattr(constraint, "constraint_table", None)
    if own is None:
        return _callbacks(constraint, vocab_size, failure)
    if (size := getattr(constraint, "vocab_size", vocab_size)) != vocab_size:
        raise ValueError(f"the constraint's vocabulary has {size} tokens, the model's {vocab_size}")
    return Table(own(), [constraint])


def _callbacks(constraint: Constraint, vocab_size: int, failure: list[BaseException]) -> Table:
    table = Table(ConstraintTable(), in_use=True, guard=Guard(failure))

    def put_state(state: Any) -> None:
        state[0] = constraint.state()

    def put_allowed(tokens: Any, n: int, allowed: Any) -> None:
        given = np.ctypeslib.as_array(tokens, (n,)).copy()
        np.ctypeslib.as_array(allowed, (n,))[:] = constraint.allows(given)

    def put_mask(bits: Any) -> None:
        allowed = np.asarray(constraint.mask(), np.bool_)
        if allowed.shape != (vocab_size,):
            raise ValueError(f"the constraint's mask has the shape {allowed.shape}, the vocabulary {vocab_size} tokens")
        packed = np.packbits(allowed, bitorder="little")
        words = np.zeros(-(-len(packed) // 4), "<u4")
        words.view(np.uint8)[: len(packed)] = packed
        np.ctypeslib.as_array(bits, words.shape)[:] = words

    def put_forced(tokens: Any, room: int, n: Any) -> None:
        found = list(constraint.forced(room))[:room]
        if found:
            np.ctypeslib.as_array(tokens, (len(found),))[:] = found
        n[0] = len(found)

    def put_choice_key(key: Any) -> None:
        key[0] = constraint.choice_key()  # type: ignore[attr-defined]

    bodies: dict[str, Callable[..., None]] = {
        "accept": constraint.accept, "rollback": constraint.rollback, "state": put_state, "allows": put_allowed,
        "mask": put_mask, "forced": put_forced,
        **({"choice_key": put_choice_key} if hasattr(constraint, "choice_key") else {}),
    }  # fmt: skip

    def release(_: Any) -> None:
        table.in_use = False

    types: dict[str, Any] = {name: type_ for name, type_, *_ in ConstraintTable._fields_}
    table.held = [types[name](table.guard(body)) for name, body in bodies.items()]
    for name, function in zip(bodies, table.held, strict=True):
        setattr(table.struct, name, function)
    table.struct.error = types["error"](lambda _: table.guard.sentence)
    table.struct.release = types["release"](release)
    return table
