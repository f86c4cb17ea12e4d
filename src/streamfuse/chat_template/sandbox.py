"""jinja2's sandbox as transformers sets it up, which charges all work before it is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.exceptions import UndefinedError
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace
from markupsafe import Markup

from streamfuse.chat_template import filters, methods, rewriting
from streamfuse.chat_template.budget import (
    BUDGET,
    MOST_DEPTH,
    MOST_NUMBER,
    MOST_RANGE,
    MOST_TOKENS,
    SIZED,
    VIEWS,
    Stream,
    kind,
    spend,
    text_of,
    weigh,
)

_LOOP = frozenset(
    ("index", "index0", "revindex", "revindex0", "length", "first", "last", "depth", "depth0", "previtem", "nextitem")
)
_DATES = re.compile(r"(?:[^%\0]|%[aAbBdeHIjmMpSyYFTDRuwUWVGn%t]|%-[dmHIMSj])*")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])
    intercepted_unops = frozenset(["+", "-"])

    def __init__(self) -> None:
        extensions: list[Any] = [_Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        every: dict[str, Any] = filters.filters()
        self.filters = every | {
            rewriting.SPEND: _spend,
            rewriting.TEXT: _text,
            rewriting.OPERAND: _operand,
            rewriting.ITEMS: _items,
            rewriting.SLICE: _slice,
        }
        self.tests = dict[str, Any](filters.tests())
        self.globals = {
            "range": _range,
            "dict": _dict,
            "namespace": _Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise,
            "strftime_now": _now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if sum(1 for _ in self._tokenize(source, name, filename)) > MOST_TOKENS:
            raise TemplateError(f"it has more than {MOST_TOKENS} tokens")
        return rewriting.rewrite(super()._parse(source, name, filename), self)

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = self.attribute(obj, attribute)
        if found is methods.MISSING and isinstance(obj, dict):
            found = obj.get(attribute, found)
        return self.undefined(obj=obj, name=attribute) if found is methods.MISSING else found

    def getitem(self, obj: Any, argument: Any) -> Any:
        weigh(argument)
        if isinstance(argument, Markup):
            raise TemplateError("a safe text as the name of an item is not supported")
        if isinstance(obj, Undefined):
            raise UndefinedError(obj._undefined_message)
        if isinstance(obj, (str, list, tuple, dict, range)):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                pass
        if isinstance(argument, str):
            found = self.attribute(obj, argument)
            if found is not methods.MISSING:
                return found
        return self.undefined(obj=obj, name=argument if isinstance(argument, str) else f"of the kind {kind(argument)}")

    def attribute(self, value: Any, name: str) -> Any:
        """An attribute of a value that is no item, or MISSING."""
        spend(1 + len(name) // 64)
        if isinstance(value, Undefined):
            raise UndefinedError(value._undefined_message)
        if isinstance(value, Namespace) and not name.startswith("__"):
            return getattr(value, name, methods.MISSING)
        if isinstance(value, LoopContext):
            if name in ("cycle", "changed"):
                return _LoopMethod(value, name)
            if name in _LOOP:
                return getattr(value, name)
        return methods.attribute(value, name)

    def call(__self, __context: Context, __function: Any, *arguments: Any, **named: Any) -> Any:
        spend(1 + len(arguments) + len(named))
        budget = BUDGET.get()
        is_join = isinstance(__function, methods.Method) and __function.name == "join"
        if is_join and not named and len(arguments) == 1:
            return methods.joined(__function.value, _items(__context, arguments[0]))
        if isinstance(__function, Undefined):
            raise UndefinedError(__function._undefined_message)
        if not isinstance(__function, (methods.Method, _LoopMethod, Macro, LoopContext, Joiner)) and (
            __function not in __self.globals.values()
            and not isinstance(getattr(__function, "__self__", None), _Generation)
        ):
            raise TemplateError(f"'{kind(__function)}' object is not callable")
        if isinstance(__function, LoopContext):  # a recursive loop goes over its argument
            arguments = (_items(__context, arguments[0]), *arguments[1:])
        if budget.calls >= MOST_DEPTH:
            raise TemplateError("it calls itself, or is nested, too deep")
        budget.calls += 1
        try:
            return __context.call(__function, *arguments, **named)
        finally:
            budget.calls -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spend(1)
        if operator == "%" and type(left) is str:
            return methods.percent(left, right)
        for value in (left, right):
            if isinstance(value, Undefined):
                raise UndefinedError(value._undefined_message)
        types = type(left), type(right)
        if operator == "+" and types[0] is types[1] and types[0] in (str, list, tuple):
            _spend_length(types[0], len(left) + len(right))
        elif operator == "*" and (types[0] in (str, list, tuple)) != (types[1] in (str, list, tuple)):
            whole, times = (left, right) if types[0] in (str, list, tuple) else (right, left)
            _spend_length(type(whole), len(whole) * max(methods.needed_whole("*", times), 0))
        elif not all(isinstance(value, (int, float)) for value in (left, right)):
            raise TemplateError(f"unsupported operand types for {operator}: '{kind(left)}' and '{kind(right)}'")
        elif operator == "**":
            _only_small_power(left, right)
        return _small(super().call_binop(context, operator, left, right))

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        if isinstance(arg, Undefined):
            raise UndefinedError(arg._undefined_message)
        return _small(super().call_unop(context, operator, arg))


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: where the model's own text stands, which trainers ask for. Here it changes nothing."""

    tags = frozenset(["generation"])  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    def __init__(*arguments: Any, **named: Any) -> None:
        self, *given = arguments
        fields = _dict(*given, **named)
        for name in fields:
            _check_name(name)
        Namespace.__init__(self, fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if type(name) is not str or name.startswith("_"):
        raise TemplateError("a namespace has attributes with names that do not begin with '_'")


class _LoopMethod:
    def __init__(self, loop: LoopContext, name: str) -> None:
        self.loop, self.name = loop, name

    def __call__(self, *items: Any) -> Any:
        if self.name == "changed":
            weigh(items)
        return getattr(self.loop, self.name)(*items)


def _spend_length(kind: type, length: int) -> None:
    spend(length // 64 if kind is str else length)


def _only_small_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * max(exponent, 0) > 128 and abs(base) > 1:
            raise TemplateError("a number has more than 64 bits")
    elif base < 0 and exponent != int(exponent):
        raise TemplateError("a power of such numbers is not supported")


def _small(value: Any) -> Any:
    if isinstance(value, int) and not -MOST_NUMBER <= value < MOST_NUMBER:
        raise TemplateError("a number has more than 64 bits")
    return value


@pass_context
def _spend(context: Context, value: Any, steps: int) -> Any:
    spend(steps)
    return value


@pass_context
def _text(context: Context, value: Any) -> str:
    return text_of(value)


@pass_context
def _operand(context: Context, value: Any) -> Any:
    weigh(value)
    return value


@pass_context
def _items(context: Context, value: Any) -> Any:
    if isinstance(value, SIZED):
        if isinstance(value, Markup):
            raise TemplateError("a loop over a safe text is not supported")
        spend(len(value))
    elif not isinstance(value, (Stream, Undefined)):
        raise TemplateError(f"'{kind(value)}' object is not iterable")
    return value


@pass_context
def _slice(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if type(value) not in (str, list, tuple):
        raise TemplateError(f"a slice of a {kind(value)} is not supported")
    _spend_length(type(value), len(value))
    return value[start:stop:step]


def _range(*bounds: int) -> range:
    for bound in bounds:
        methods.needed_whole("range", bound)
        _small(bound)
    found = range(*bounds)
    if len(found) > MOST_RANGE:
        raise TemplateError(f"a range is longer than {MOST_RANGE}")
    return found


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    for given in arguments:
        if isinstance(given, (str, Undefined)) or not isinstance(given, (dict, list, tuple, Stream, *VIEWS)):
            raise TemplateError("a dict is made of pairs")
    found: dict[Any, Any] = {}
    for given in arguments[:1]:
        for pair in given.items() if isinstance(given, dict) else given:
            name, value = pair
            weigh(name)
            found[name] = value
    if len(arguments) > 1:
        raise TemplateError("dict takes at most 1 argument")
    return found | named


def _raise(message: Any) -> Any:
    raise TemplateError(text_of(message))


def _now(form: Any) -> str:
    if type(form) is not str or len(form) > 256 or not _DATES.fullmatch(form):
        raise TemplateError(f"strftime_now cannot write {str(form)[:50]!r}")
    return datetime.now().strftime(form)
