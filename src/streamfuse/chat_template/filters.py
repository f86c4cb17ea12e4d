"""jinja2's filters and tests that a template may use, each charged before it works."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, cast

from jinja2 import TemplateError, Undefined, pass_context
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS
from jinja2.exceptions import UndefinedError
from jinja2.runtime import Context
from markupsafe import Markup

from streamfuse.chat_template import methods
from streamfuse.chat_template.budget import (
    MOST_DEPTH,
    SIZED,
    Stream,
    depth_of,
    kind,
    spend,
    spend_bytes,
    text_of,
    weigh,
)

_REVERSED: Any = (
    type(reversed([])),
    type(reversed({})),
    type(reversed(range(0))),
    type(reversed(())),
    reversed,
)
_TESTS = [
    "!=", "<", "<=", "==", ">", ">=", "boolean", "callable", "defined", "divisibleby", "eq", "equalto", "escaped",
    "even", "false", "filter", "float", "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan",
    "lower", "lt", "mapping", "ne", "none", "number", "odd", "sameas", "sequence", "string", "test", "true",
    "undefined", "upper",
]  # fmt: skip
_COMPARES = {
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne",
}  # fmt: skip


def filters() -> dict[str, Callable[..., Any]]:
    return {name: _charged(_jinja(DEFAULT_FILTERS[name]), cost) for name, cost in _COSTS.items()} | {
        "tojson": _charged(to_json, _nothing),
        "join": _charged(_join, _nothing),
        "sum": _charged(_sum, _nothing),
        "attr": _charged(_attr, _nothing),
        "string": _charged(_string, _nothing),
        "format": _charged(_format, _nothing),
        "indent": _charged(_indent, _nothing),
        "replace": _charged(_replace, _nothing),
        "center": _charged(_center, _nothing),
        "trim": _charged(_trim, _nothing),
        "int": _charged(_jinja(DEFAULT_FILTERS["int"]), _cost_number),
        "float": _charged(_jinja(DEFAULT_FILTERS["float"]), _cost_number),
    }


def tests() -> dict[str, Callable[..., Any]]:
    return {name: _tested(name, _jinja(DEFAULT_TESTS[name])) for name in _TESTS}


def _jinja(function: Any) -> Callable[..., Any]:
    """A function of jinja2 that is given the context where it wants it, or the environment."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    if wants is None:
        return lambda context, *arguments, **named: function(*arguments, **named)

    def call(context: Context, *arguments: Any, **named: Any) -> Any:
        first = {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}[wants]
        return function(first, *arguments, **named)

    return call


# With the context as an argument, filters and tests are not run when a template is compiled.
def _charged(function: Callable[..., Any], cost: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def work(context: Context, value: Any = None, *arguments: Any, **named: Any) -> Any:
        spend(1)
        if cost is _cost_sorted and isinstance(value, Stream):
            value = list(value)
        cost(value, *arguments, **named)
        found = function(context, value, *arguments, **named)
        if isinstance(found, (GeneratorType, *_REVERSED)):
            return Stream(cast("Iterable[Any]", found), max(map(depth_of, [value, *arguments, *named.values()])))
        return found

    return work


def _tested(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def test(context: Context, value: Any, *arguments: Any, **named: Any) -> bool:
        spend(1)
        if name in _COMPARES:
            weigh([value, *arguments])
        elif name in ("odd", "even", "divisibleby"):
            _only_numbers(value, *arguments)
        elif name in ("lower", "upper"):
            value = text_of(value)
            methods._only_ascii(value)
        elif name == "callable" and isinstance(value, type) and value.__name__ == "Cycler":
            return True
        elif name in ("filter", "test") and not isinstance(value, (int, float, type(None), Undefined)):
            _only_known(name, type(value) is str and function(context, value))
        return bool(function(context, value, *arguments, **named))

    return test


def _only_known(name: str, is_known: Any) -> None:
    if not is_known:
        raise TemplateError(f"'{name}' of such a name is not supported")


def _only_numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, Undefined):
            raise UndefinedError(value._undefined_message)
        if not isinstance(value, (int, float)):
            raise TemplateError(f"a {kind(value)} is no number")


def _soft(name: str, value: Any) -> str:
    if isinstance(value, Markup):
        raise TemplateError(f"the filter '{name}' of a safe text is not supported")
    return text_of(value)


def _nothing(value: Any, *arguments: Any, **named: Any) -> None:
    pass


def _cost_items(value: Any, *arguments: Any, **named: Any) -> None:
    if isinstance(value, SIZED):
        spend(len(value))
    for argument in [*arguments, *named.values()]:
        if isinstance(argument, str):
            spend_bytes(len(argument))


def _cost_rows(value: Any, count: Any = 0, fill_with: Any = None, **named: Any) -> None:
    _cost_items(value)
    count = methods.needed_whole("count", named.get("linecount", named.get("slices", count)))
    if count <= 0:
        raise TemplateError("rows of no items are not supported")
    spend(count)


def _cost_sorted(value: Any, *arguments: Any, **named: Any) -> None:
    weigh(value, of_text=4)
    if isinstance(value, SIZED):
        for _ in range(len(value).bit_length()):
            weigh(value)
    for argument in [*arguments, *named.values()]:
        weigh(argument)


def _cost_text(value: Any, *arguments: Any, **named: Any) -> None:
    spend_bytes(4 * len(_soft("a filter of texts", value)))


def _cost_escaped(value: Any) -> None:
    spend_bytes(5 * len(value if isinstance(value, Markup) else text_of(value)))


def _cost_safe(value: Any) -> None:
    text_of(value)


def _cost_words(value: Any) -> None:
    if not _soft("wordcount", value).isascii():
        raise TemplateError("wordcount of a text that is not ASCII is not supported")


def _cost_number(value: Any, default: Any = 0, base: Any = 10) -> None:
    if isinstance(value, Markup) or (isinstance(value, str) and not value.isascii()) or base != 10:
        raise TemplateError("a number of such a text, or in another base, is not supported")
    spend_bytes(len(value) if isinstance(value, str) else 0)
    if isinstance(value, str) and len(value) > 4000:
        raise TemplateError("a number of such a text is not supported")


def _cost_round(value: Any, precision: Any = 0, method: Any = "common") -> None:
    _only_numbers(value)
    if not 0 <= methods.needed_whole("round", precision) <= 15:
        raise TemplateError("round to such a precision is not supported")


def _cost_map(value: Any, *arguments: Any, **named: Any) -> None:
    for argument in [*arguments, *named.values()]:
        if isinstance(argument, str):
            spend_bytes(len(argument))


_COSTS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(["abs", "d", "default", "first", "items", "last", "length", "count"], _nothing),
    **dict.fromkeys(["list", "reverse"], _cost_items),
    **dict.fromkeys(["batch", "slice"], _cost_rows),
    **dict.fromkeys(["dictsort", "groupby", "max", "min", "sort", "unique"], _cost_sorted),
    **dict.fromkeys(["capitalize", "lower", "title", "upper"], _cost_text),
    **dict.fromkeys(["e", "escape", "forceescape"], _cost_escaped),
    **dict.fromkeys(["map", "reject", "rejectattr", "select", "selectattr"], _cost_map),
    "round": _cost_round,
    "safe": _cost_safe,
    "wordcount": _cost_words,
}


def _join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    between = text_of(d)
    found = []
    for item in value if attribute is None else _mapped(context, value, attribute):
        spend(1 + len(between) // 64)
        found.append(text_of(item))
    return between.join(found)


def _mapped(context: Context, value: Any, attribute: Any) -> Iterable[Any]:
    found: Iterable[Any] = context.environment.filters["map"](context, value, attribute=attribute)
    return found


def _sum(context: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TemplateError("sum() can't sum strings")
    for item in value if attribute is None else _mapped(context, value, attribute):
        spend(1)
        start = context.environment.call_binop(context, "+", start, item)  # type: ignore[attr-defined]
    return start


def _attr(context: Context, value: Any, name: Any) -> Any:
    found = context.environment.attribute(value, methods.needed_text("attr", name))  # type: ignore[attr-defined]
    return context.environment.undefined(obj=value, name=name) if found is methods.MISSING else found


def _string(context: Context, value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _format(context: Context, value: Any, *arguments: Any, **named: Any) -> str:
    if arguments and named:
        raise TemplateError("can't handle positional and keyword arguments at the same time")
    return methods.percent(_soft("format", value), named or arguments)


def _indent(context: Context, value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:
    text = methods.needed_text("indent", value)
    length = len(width) if isinstance(width, str) else max(methods.needed_whole("indent", width), 0)
    lines = 1 + sum(text.count(end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    spend(lines)
    spend_bytes(len(text) + lines * length + length)
    return DEFAULT_FILTERS["indent"](text, width, first, blank)


def _replace(context: Context, value: Any, old: Any, new: Any, count: Any = None) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    return methods.Method(text, "replace")(old, new, -1 if count is None else count)


def _center(context: Context, value: Any, width: Any = 80) -> str:
    return methods.Method(_soft("center", value), "center")(width)


def _trim(context: Context, value: Any, chars: Any = None) -> str:
    return methods.Method(_soft("trim", value), "strip")(chars)


def to_json(
    context: Context,
    x: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    """json.dumps with the arguments that transformers lets through."""
    if not isinstance(indent, (int, str, type(None))):
        raise TemplateError("tojson: the indent is a whole number or a text")
    is_pair = isinstance(separators, (list, tuple)) and [type(part) for part in separators] == [str, str]
    if separators is not None and not is_pair:
        raise TemplateError("tojson: separators are two texts")
    width = len(indent) if isinstance(indent, str) else max(int(indent or 0), 0)
    between = sum(map(len, separators or ()))
    left = [(x, 1)]
    spend_bytes(width)
    while left:
        value, depth = left.pop()
        spend(1 + between // 64 + width * depth // 64)
        if isinstance(value, str):
            spend_bytes(6 * len(value))  # an escape may be so long
            continue
        if isinstance(value, dict):
            if sort_keys:
                spend(len(value) * len(value).bit_length())
            items: list[Any] = [part for pair in value.items() for part in pair]
        elif isinstance(value, (list, tuple)):
            items = list(value)
        else:
            continue
        if depth > MOST_DEPTH:
            raise TemplateError(f"a value is nested deeper than {MOST_DEPTH}")
        left.extend((item, depth + 1) for item in items)
    return json.dumps(
        x, ensure_ascii=bool(ensure_ascii), indent=indent, separators=separators, sort_keys=bool(sort_keys)
    )
