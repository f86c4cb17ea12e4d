"""The work that a chat template may do, charged before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError, Undefined
from markupsafe import Markup

# text/src/jinja has the same limits.
MOST_STEPS = 1_000_000  # a node that is run, an item, or 64 bytes of text, each
MOST_BYTES = 1 << 20  # of a template
MOST_TOKENS = 25_000  # of a template: names are resolved in a time that is the square of this
MOST_RANGE = 100_000  # of jinja2's sandbox
MOST_DEPTH = 100  # of lists in lists, and of calls
MOST_NUMBER = 1 << 63


class Budget:
    def __init__(self) -> None:
        self.left = MOST_STEPS
        self.calls = 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise TemplateError(f"it needs more than {MOST_STEPS} steps")

    def spend_bytes(self, count: int) -> None:
        self.spend(count // 64)


BUDGET: ContextVar[Budget] = ContextVar("budget")


def spend(steps: int) -> None:
    BUDGET.get().spend(steps)


def spend_bytes(count: int) -> None:
    BUDGET.get().spend(count // 64)


def weigh(value: Any, of_text: int = 1, is_written: bool = False) -> None:
    """Charges for all that a value holds, as often as it holds it: an item, and `of_text` bytes for each of a text."""
    budget, left = BUDGET.get(), [(value, 0)]
    while left:
        value, depth = left.pop()
        budget.spend(1)
        if is_written and (not isinstance(value, _PLAIN) or isinstance(value, Markup)):
            raise TemplateError(f"a {kind(value)} cannot be written")
        if isinstance(value, str):
            budget.spend_bytes(of_text * len(value))
            continue
        if isinstance(value, dict):
            items: Any = [part for pair in value.items() for part in pair]
        elif isinstance(value, (list, tuple, *VIEWS)):
            items = value
        else:
            continue
        if depth >= MOST_DEPTH:
            raise TemplateError(f"a value is nested deeper than {MOST_DEPTH}")
        left += [(item, depth + 1) for item in items]


VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
SIZED: Any = (str, list, tuple, dict, range, *VIEWS)
_PLAIN: Any = (str, int, float, type(None), Undefined, list, tuple, dict, range, *VIEWS)


def text_of(value: Any) -> str:
    """str(value), which is also what a template writes of it."""
    if isinstance(value, str):
        spend_bytes(len(value))
        return str(value)
    weigh(value, of_text=4, is_written=True)  # an escape may be so long
    return str(value)


def repr_of(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, Markup):
        spend_bytes(4 * len(value))
        return repr(value)
    return "Undefined" if isinstance(value, Undefined) else text_of([value])[1:-1]


def kind(value: Any) -> str:
    return "generator" if isinstance(value, Stream) else type(value).__name__


class Stream:
    """A generator of a lazy filter, whose items are charged."""

    def __init__(self, items: Iterable[Any], depth: int) -> None:
        if depth >= MOST_DEPTH:
            raise TemplateError(f"a value is nested deeper than {MOST_DEPTH}")
        self._items = iter(items)
        self.depth = depth + 1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        spend(1)
        return next(self._items)


def depth_of(value: Any) -> int:
    return value.depth if isinstance(value, Stream) else 0
