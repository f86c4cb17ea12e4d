"""The methods of texts, lists and dicts that a template may call, each charged before it works."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.exceptions import UndefinedError
from jinja2.utils import Cycler
from markupsafe import Markup

from streamfuse.chat_template.budget import kind, repr_of, spend, spend_bytes, text_of, weigh

TEXT = {
    "capitalize", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper", "join", "ljust", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit",
    "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "zfill",
}  # fmt: skip
_OTHERS: dict[type, frozenset[str]] = {
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    Cycler: frozenset(("next", "reset", "current")),
}


MISSING = object()


class Method:
    """A method of a value, to be called."""

    def __init__(self, value: Any, name: str) -> None:
        self.value, self.name = value, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        value, name = self.value, self.name
        spend(1)
        if isinstance(value, str):
            return _of_text(value, name, arguments, named)
        if name == "copy":
            spend(len(value))
        elif isinstance(value, dict):
            weigh(arguments[:1] if arguments and isinstance(arguments[0], tuple) else None)
        elif name in ("count", "index"):
            weigh(value)
            if name == "index" and (len(arguments) != 1 or arguments[0] not in value):
                raise TemplateError("the value is not in the list")
        return getattr(value, name)(*arguments, **named)


def attribute(value: Any, name: str) -> Any:
    """A method or another attribute of a value, MISSING where there is none. An error where it is not for templates."""
    if name.startswith("__"):
        raise TemplateError(f"access to attribute {name!r} is not safe")
    if isinstance(value, str):
        if isinstance(value, Markup) and hasattr(value, name):
            raise TemplateError(f"{name!r} of a safe text is not for chat templates")
        if name in TEXT:
            return Method(value, name)
    for known, names in _OTHERS.items():
        if isinstance(value, known) and name in names:
            return getattr(value, name) if name == "current" else Method(value, name)
    if isinstance(value, tuple) and name in getattr(value, "_fields", ()):  # of groupby
        return getattr(value, name)
    if value is not None and hasattr(value, name):
        raise TemplateError(f"{name!r} of a {kind(value)} is not for chat templates")
    return MISSING


def needed_text(name: str, value: Any) -> str:
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if type(value) is not str:
        raise TemplateError(f"{name} needs a text, and not a {kind(value)}")
    return value


def needed_whole(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise TemplateError(f"{name} needs a whole number, and not a {kind(value)}")
    return int(value)


def _of_text(text: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    spend(1 + len(text) // 64)
    if name == "format":
        return formatted(text, arguments, named)
    for argument in [*arguments, *named.values()]:
        if isinstance(argument, str):
            needed_text(name, argument)
            spend_bytes(len(argument))
        elif isinstance(argument, tuple):
            weigh(argument)
    result_cost: Callable[..., None] | None = _COSTS.get(name)
    if result_cost is not None:
        result_cost(text, *arguments, **named)
    return getattr(text, name)(*arguments, **named)


def _cost_replace(text: str, old: Any = None, new: Any = None, count: Any = -1) -> None:
    old, new, count = needed_text("replace", old), needed_text("replace", new), needed_whole("replace", count)
    found = len(text) + 1 if not old else text.count(old)
    found = found if count < 0 else min(found, count)
    spend_bytes(len(text) + found * len(new))
    spend(found // 16)


def _cost_padded(text: str, width: Any = 0, fill: Any = " ") -> None:
    spend_bytes(max(needed_whole("width", width), len(text)))


def _cost_parts(text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    most = needed_whole("split", maxsplit)
    if sep is None:
        parts = len(text) // 2
    else:
        sep = needed_text("split", sep)
        parts = text.count(sep) if sep else 0
    spend(parts if most < 0 else min(parts, most))


def _cost_lines(text: str, keepends: Any = False) -> None:
    if keepends:
        raise TemplateError("splitlines with ends is not supported")
    spend(sum(text.count(end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))


def _cost_strip(text: str, characters: Any = None) -> None:
    if characters is not None:
        spend((len(text) // 64 + 1) * (1 + len(needed_text("strip", characters)) // 8))


def _only_ascii(text: str) -> None:
    if not text.isascii():
        raise TemplateError("a test of the letters of a text that is not ASCII is not supported")


_COSTS: dict[str, Callable[..., None]] = {
    "replace": _cost_replace,
    "split": _cost_parts,
    "rsplit": _cost_parts,
    "splitlines": _cost_lines,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _cost_padded),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _cost_strip),
    **dict.fromkeys(("upper", "lower", "title", "capitalize"), lambda text: spend_bytes(3 * len(text))),
    **dict.fromkeys(("isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isupper"), _only_ascii),
}


def joined(between: str, items: Any) -> str:
    """between.join(items), of texts alone."""
    found = []
    for number, item in enumerate(items):
        if type(item) is not str:
            raise TemplateError(f"sequence item {number}: expected str instance, {kind(item)} found")
        spend(1 + (len(item) + len(between)) // 64)
        found.append(item)
    return between.join(found)


_PERCENT = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?[-+ 0]*(?P<width>\d*)(?:\.(?P<precision>\d*))?[hlL]?(?P<kind>.|$)", re.S
)
_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?0?(?P<width>\d*),?(?:\.(?P<precision>\d+))?[sdf]?", re.S)
_FIELD = re.compile(r"[^.\[\]{}!:]*")


def percent(form: str, values: Any) -> str:
    """form % values"""
    spend_bytes(len(form))
    for number, found in enumerate(_PERCENT.finditer(form)):
        if found["kind"] not in tuple("sdifr%"):
            raise TemplateError("a format of this kind is not supported")
        _spend_width(found)
        if found["kind"] == "%":
            if len(found[0]) > 2:
                raise TemplateError("a percent sign with a width is not supported")
        elif found["kind"] in ("d", "i") and found["precision"] is not None:
            raise TemplateError("a whole number with a precision is not supported")
        elif found["name"] is not None and isinstance(values, dict):
            repr_of(values.get(found["name"]))
        elif number == 0 or found["name"] is not None:
            for value in values if isinstance(values, tuple) else [values]:
                repr_of(value)
    return form % values


def _spend_width(found: re.Match[str]) -> None:
    for part in (found["width"], found["precision"]):
        if part and len(part) > 9:
            raise TemplateError("a width is too large")
        spend_bytes(4 * int(part or 0))
    if found["precision"] and int(found["precision"]) > 1000:
        raise TemplateError("a precision is too large")


def formatted(form: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """form.format(*arguments, **named), with names and numbers in its fields."""
    spend_bytes(len(form))
    following = 0
    for _, field, spec, conversion in string.Formatter().parse(form):
        if field is None:
            continue
        found = _SPEC.fullmatch(spec or "")
        if not _FIELD.fullmatch(field) or found is None or conversion not in (None, "s", "r"):
            raise TemplateError("a format of this kind is not supported")
        _spend_width(found)
        key = field or str(following)
        following += not field
        inside = key.isdigit() and len(key) < 9 and int(key) < len(arguments)
        value = arguments[int(key)] if inside else named.get(key)
        repr_of(value) if conversion == "r" else text_of(value)
        if (spec and isinstance(value, (bool, type(None), Undefined))) or type(value) is Markup:
            raise TemplateError(f"the format {spec!r} of a {kind(value)} is not supported")
    return form.format(*arguments, **named)
