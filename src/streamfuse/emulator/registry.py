"""Operations by their MIL name.

An operation is a function whose parameters are the inputs that MIL names, with MIL's defaults, on carried arrays
(values.py); a text input is a str, `values` a list of arrays. It returns an array, or a tuple of them. Each computes in
float32 and leaves rounding to the interpreter, which knows the declared type of every result. Operations that only move
values say so and are not rounded again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of operation is computed; `moves` tells that results hold only values of the inputs."""

    compute: Callable[..., Any]
    moves: bool


RULES: dict[str, Rule] = {}


def operation(*kinds: str, moves: bool = False) -> Callable[[_Function], _Function]:
    """Registers the decorated function for these MIL operations."""

    def register(function: _Function) -> _Function:
        RULES.update(dict.fromkeys(kinds, Rule(function, moves)))
        return function

    return register
