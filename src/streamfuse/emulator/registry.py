"""Operations by their MIL name.

An operation is a function whose parameters are MIL's inputs, with MIL's defaults, on arrays in carrier types
(values.py); a text input is a str, `values` a list of arrays. It returns an array or a tuple of arrays. Operations
compute in float32, and the interpreter rounds results to their declared dtypes. Operations that only move values are
marked as such and not rounded again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How one type of operation is computed; with `moves`, results only contain values of the inputs."""

    compute: Callable[..., Any]
    moves: bool


RULES: dict[str, Rule] = {}


def operation(*kinds: str, moves: bool = False) -> Callable[[_Function], _Function]:
    """Registers the decorated function for these MIL operations."""

    def register(function: _Function) -> _Function:
        RULES.update(dict.fromkeys(kinds, Rule(function, moves)))
        return function

    return register
