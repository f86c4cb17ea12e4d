"""Chat templates: Jinja as Hugging Face transformers runs it, in a sandbox and with bounded work.

Templates are untrusted code of model authors: they can format messages and nothing else. A template that has not
ended after _MOST_STEPS, or makes a text or list longer than _MOST_LENGTH, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.runtime import Context, LoopContext

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

_MOST_STEPS = 100_000  # items that loops go over, and calls
_MOST_LENGTH = 16 << 20  # of a value that is given a name, in characters or items
_MOST_BITS = 4096  # of a number that is multiplied
_LONGEST_RANGE = 10_000


class TextError(ValueError):
    """A tokenizer or template that cannot be used, or a request that it cannot serve; one line."""


class Template:
    """A chat template, compiled.

    Raises:
        TextError: it is not valid Jinja.
    """

    def __init__(self, source: str) -> None:
        self._environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _refuse
        self._environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # also Python's own, of nesting that is too deep
            raise TextError(f"the chat template is not valid Jinja ({one_line(error)})") from None

    def render(self, messages: Sequence[Message], marks: Mapping[str, str]) -> str:
        """The text of a chat up to where the next answer begins. TextError where the template refuses the messages."""
        self._environment.steps = 0
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **marks
            )
        except Exception as error:  # a template can raise any: it calls methods of texts, lists and numbers
            raise TextError(f"the chat template refuses these messages ({one_line(error)})") from None


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also counts: loops take their items here, and every call and assignment passes."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.steps = 0
        self.filters[_ITEMS], self.filters[_VALUE] = _items, _value
        self.globals["range"] = _range

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _ITEMS, [], [], None, None, lineno=loop.lineno)
        for given in tree.find_all(nodes.Assign):
            given.node = nodes.Filter(given.node, _VALUE, [], [], None, None, lineno=given.lineno)
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = nodes.Filter(block.filter, _VALUE, [], [], None, None, lineno=block.lineno)
        return tree

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        self.spend(1)
        if isinstance(function, LoopContext):  # a recursive loop goes over its argument
            arguments = (_items(context, arguments[0]), *arguments[1:])
        return _value(context, super().call(context, function, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        lengths = [len(value) for value in (left, right) if isinstance(value, (str, list, tuple))]
        numbers = [abs(value) for value in (left, right) if isinstance(value, int)]
        repeats = operator == "*" and lengths and numbers and lengths[0] * numbers[0] > _MOST_LENGTH
        powers = operator == "**" and len(numbers) == 2 and numbers[0].bit_length() * numbers[1] > _MOST_BITS
        if repeats or powers or any(number.bit_length() > _MOST_BITS for number in numbers):
            raise jinja2.TemplateError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MOST_STEPS:
            raise jinja2.TemplateError(f"it has not ended after {_MOST_STEPS} steps")


# Filters that no template can name. With the context as an argument they are not run when a template is compiled.
_ITEMS, _VALUE = "items of a loop", "value of a name"


@jinja2.pass_context
def _items(context: Context, values: Iterable[Any]) -> list[Any]:
    found = list(islice(values, _MOST_STEPS + 1))
    cast("_Sandbox", context.environment).spend(len(found))
    return found


@jinja2.pass_context
def _value(context: Context, value: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict)) and len(value) > _MOST_LENGTH:
        raise jinja2.TemplateError(f"it makes a value longer than {_MOST_LENGTH}")
    return value


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > _LONGEST_RANGE:
        raise jinja2.TemplateError(f"a range is longer than {_LONGEST_RANGE}")
    return found


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> Any:
    raise jinja2.TemplateError(message)


def one_line(error: BaseException) -> str:
    """What an error says, short enough for a sentence of ours."""
    return " ".join(str(error).split())[:200] or type(error).__name__
