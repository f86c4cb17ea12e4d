"""Options, declared once: a field of a frozen dataclass says its type, its default and its help.

From the declaration follow the flag of the command line (cli/shared/declared.py), the key of a configuration file, the
keyword of the Python function, the check of the value, and the row on the site (tools/command_reference.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

AUTO = "auto"
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
T = TypeVar("T")


class NamesOptions(ValueError):
    """An error in one sentence that names options.

    It is written with the flags of the command line, which shows `flags`. As text, which Python callers see, it has the
    keywords: `--max-new-tokens` becomes `max_new_tokens`.
    """

    def __init__(self, flags: str) -> None:
        self.flags = flags
        super().__init__(_FLAG.sub(lambda flag: flag[1].replace("-", "_"), flags))


class OptionError(NamesOptions):
    """A value that an option does not take; the sentence has the range. The command line exits with code 2."""


@dataclass(frozen=True, slots=True)
class Option:
    """What the declaration of an option says besides its type and its default.

    Attributes:
        help: one or two sentences.
        group: the heading in the help and in the docs.
        shown: the default in words, if the value does not say it.
        metavar: the value in the help; empty: it follows from the type.
        common: whether most users need it, so that `--help` shows it; `--help-all` shows all.
        least, above, most, below: bounds of a number, two of them inclusive.
    """

    help: str
    group: str = ""
    shown: str = ""
    metavar: str = ""
    common: bool = False
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    @property
    def range(self) -> str:
        """The bounds in words; empty if there are none."""
        low = f"at least {self.least}" if self.least > -math.inf else ""
        low = f"above {self.above}" if self.above > -math.inf else low
        high = f"at most {self.most}" if self.most < math.inf else ""
        high = f"below {self.below}" if self.below < math.inf else high
        if low.startswith("at least") and high:
            return f"from {self.least} to {high.removeprefix('at most ')}"
        return " and ".join(filter(None, (low, high)))

    def holds(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        return self.least <= value <= self.most and self.above < value < self.below


def option(default: T, help: str, group: str = "", **more: Any) -> T:
    """A field that is an option; `more` are fields of Option."""
    metadata = {"option": Option(help, group, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)  # type: ignore[return-value]
    return field(default=default, metadata=metadata)


@cache
def declared(config: type) -> dict[str, Option]:
    """The options of a dataclass, by name."""
    return {f.name: f.metadata["option"] for f in fields(config) if "option" in f.metadata}


@cache
def types_of(config: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return get_type_hints(config)


def choices_of(config: type, name: str) -> tuple[str, ...]:
    """The words that an option takes; empty if it is not a choice. `auto` is left out if the default has words."""
    kind = types_of(config)[name]
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return tuple(word for word in words if word != AUTO or not declared(config)[name].shown)


def flag_of(name: str) -> str:
    """--max-new-tokens for max_new_tokens."""
    return f"--{name.replace('_', '-')}"


def is_number(value: object) -> bool:
    """Whether it is a real one, numpy's included; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A wrong value as a sentence has it, of at most 40 characters. Python writes no integer of more than 4,300
    digits."""
    number = is_number(value)
    try:
        text = str(value) if number else repr(value)
    except ValueError:
        return "a number of thousands of digits" if number else type(value).__name__
    return f"{text[:20]}... ({len(text.lstrip('-'))} digits)" if number and len(text) > 40 else text[:40]


def check_choice(flag: str, value: object, choices: tuple[Any, ...], where: str = "") -> None:
    """OptionError unless `value` is one of the choices; `where` says to what they apply."""
    if value not in choices:
        allowed = choices[0] if len(choices) == 1 else f"one of {', '.join(map(str, choices))}"
        raise OptionError(f"{flag} must be {allowed}{where}, not {value}")


def check(config: Any) -> None:
    """OptionError for an option that is out of its declared choices or bounds, or is no number if it should be one."""
    made: type = type(config)
    for name, facts in declared(made).items():
        value: Any = getattr(config, name)
        kind = types_of(made)[name]
        if (choices := choices_of(made, name)) and value not in get_args(kind):
            check_choice(flag_of(name), value, choices)
        (only, *others) = [part for part in get_args(kind) if part is not NoneType] or [kind]
        if others or only not in (int, float) or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float) if only is float else int):
            raise OptionError(f"{flag_of(name)} must be a number, not {shown(value)}")
        if not facts.holds(value):
            words = f"{value:g}" if isinstance(value, float) else shown(value)
            raise OptionError(f"{flag_of(name)} must be {facts.range or 'a finite number'}, not {words}")


def converted(config: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a caller may give them, as a dataclass has them: a list as a tuple, a path in a text as a Path.

    Raises:
        TypeError: there is no option of that name.
    """
    kinds = types_of(config)
    for name in given:
        if name not in kinds:
            raise TypeError(f"there is no option {name}; the options are {', '.join(declared(config))}")
    return {name: _converted(kinds[name], value) for name, value in given.items()}


def _converted(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        return (value,) if isinstance(value, str) else tuple(value)
    return Path(value) if value is not None and Path in (kind, *get_args(kind)) else value
