"""Data formats: the field names of each, and the template that makes a prompt and an answer from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from string import Formatter
from typing import Any

from streamfuse.extras import need
from streamfuse.runtime.text import ROLES, Message, TextError, checked

from .templates import TEMPLATES, Template

Row = dict[str, Any]
_MEANING = re.compile(r"\s*\w[\w ]*\[[^\]]*\]")  # the beginning of an E2E meaning representation: name[Aromi]


class DataError(ValueError):
    """Data cannot be used; the message names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of prompt and completion together; tokens from `start` (at least 1) on are the completion."""

    input_ids: list[int]
    start: int


# The categories of MT-bench.
_MT_BENCH = frozenset(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: a prompt and its reference answers.

    Attributes:
        turns: the user's messages; empty if the row has token ids.
        references: correct answers to the last turn; empty if the model generates its own.
        source: the row's origin (`source` or `category`), else the format's name.
        schema: the `CREATE TABLE` statements that a query runs on (SQL only).
        before: the chat before the first turn (in rows of `messages`).
        tools: functions that the model may call, in OpenAI's form (in rows of `messages`).
        calls: the answer in the row is tool calls, which are no reference.
        ids: token ids of prompt and completion, in a file that `streamfuse data distill` wrote.
        number: `question_id` of Spec-Bench, `prompt_id` of MT-bench; None if the row has none.
    """

    turns: tuple[str, ...]
    references: tuple[str, ...] = ()
    source: str = ""
    schema: str = ""
    before: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    calls: bool = False
    ids: Example | None = None
    number: int | None = None

    @property
    def kind(self) -> str:
        """The group that results of this row are reported in: `source`, but "mt-bench" for MT-bench's eight categories,
        which Spec-Bench (arXiv 2401.07851) reports as one."""
        return "mt-bench" if self.number is not None and self.source in _MT_BENCH else self.source


@dataclass(frozen=True, slots=True)
class Format:
    """`columns`: a field of the template -> its possible names, those of this project and of the public data sets."""

    template: Template
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


FORMATS = {
    "e2e": Format(
        TEMPLATES["e2e"],
        {
            "prompt": ("meaning_representation", "mr", "prompt"),
            "completion": ("human_reference", "ref", "target", "completion"),
        },
    ),
    "sql": Format(TEMPLATES["sql"]),
    "dialogsum": Format(TEMPLATES["dialogsum"]),
    "chat": Format(Template("{prompt}", "{completion}", "references", chat_template=None)),
}
NAMES = (*FORMATS, "messages", "spec-bench", "distilled")  # values of --format


def recognise(row: Row, place: str) -> str:
    """The format of a row, one of `NAMES`. DataError if its fields match none."""
    prompt = row.get("prompt")
    if {"input_ids", "completion_ids"} <= row.keys():
        return "distilled"
    if "messages" in row:
        return "messages"
    if "turns" in row or isinstance(prompt, list):
        return "spec-bench"
    if {"question", "answer"} <= row.keys() and "create table" in str(row.get("context")).lower():
        return "sql"
    if "dialogue" in row:
        return "dialogsum"
    if row.keys() & {"meaning_representation", "mr"} or (isinstance(prompt, str) and _MEANING.match(prompt)):
        return "e2e"
    if "prompt" in row:
        return "chat"
    raise DataError(
        f"{place}: fields {_listed(row)} match no format; docs/training.md, Formats, lists the fields of each. Rename "
        "them, or give a --template to commands that take one"
    )


def reader(format: str | None, template: Template | None = None) -> Callable[[Row, str], Sample]:
    """A function that makes a sample of a row and its location, for a format or a template over the row's own
    fields.

    Raises:
        DataError: the format's prompts are not made by a template.
    """
    if template is not None and format in ("distilled", "spec-bench", "messages"):
        raise DataError(f"--template does not go with --format {format}, whose prompts are complete; leave one out")
    if format == "distilled":
        return _distilled
    if format == "spec-bench":
        return _questions
    if format == "messages":
        return _messages
    form = Format(template) if template else FORMATS[str(format)]
    return lambda row, place: _templated(row, place, form, format)


def _templated(row: Row, place: str, form: Format, name: str | None) -> Sample:
    fields = dict(row)
    for wanted, names in form.columns.items():
        found = [name for name in names if name in row]
        if found:
            fields[wanted] = row[found[0]]
    prompt = _render(form.template.prompt, fields, place)
    references = _references(fields, place, form.template, required=name is None)
    schema = str(fields["context"]) if name == "sql" else ""
    return Sample((prompt,), references, _origin(row, name or "template"), schema)


def _references(fields: Row, place: str, template: Template, required: bool) -> tuple[str, ...]:
    """The listed references; else those in numbered fields (`summary1`, ...); else the one answer, if there is one."""
    listed = fields.get(template.references or "")
    if listed:
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise DataError(f"{place}: field {template.references!r} must be a list of texts")
        return tuple(one.strip() for one in listed if one.strip())
    if template.completion is None:
        return ()
    answer = re.fullmatch(r"\{(\w+)\}", template.completion)
    if answer and answer[1] not in fields and not required:
        numbered = sorted(key for key in fields if re.fullmatch(rf"{answer[1]}\d+", key))
        return tuple(_render(f"{{{key}}}", fields, place) for key in numbered)
    return (_render(template.completion, fields, place),)


def _questions(row: Row, place: str) -> Sample:
    """Spec-Bench, MT-bench."""
    name = "turns" if "turns" in row else "prompt"
    turns = row.get(name)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise DataError(f"{place}: field {name!r} must be a list of texts, none of them empty")
    number = row.get("question_id", row.get("prompt_id"))
    return Sample(tuple(turns), (), _origin(row, "spec-bench"), number=number if type(number) is int else None)


def _messages(row: Row, place: str) -> Sample:
    """A chat in OpenAI's form. Its last answer is the reference; there is none if the last message is the user's."""
    turns = _turns(row.get("messages"), place)
    answer = turns.pop() if turns and turns[-1]["role"] == "assistant" else {}
    if not turns or turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
        raise DataError(f"{place}: field 'messages' must end with a user's message, or with one and its answer")
    calls = "tool_calls" in answer
    references = (answer["content"],) if answer and not calls else ()
    return Sample(
        (turns[-1]["content"],),
        references,
        _origin(row, "messages"),
        before=tuple(turns[:-1]),
        tools=_tools(row.get("tools"), place),
        calls=calls,
    )


# Fields of a message that chat templates read, besides `role`, `content` and `tool_calls`.
_FIELDS = {"assistant": ("reasoning_content",), "tool": ("tool_call_id", "name")}


def _turns(chat: object, place: str) -> list[Message]:
    """The messages of a chat, as `streamfuse serve` takes them from requests."""
    try:
        return [_turn(message, place) for message in checked(chat)]
    except TextError as error:
        raise DataError(f"{place}: {error}") from None


def _turn(message: Message, place: str) -> Message:
    """A message with what chat templates read of it. A field that is null is like none: in some data sets every message
    has every field."""
    role, calls = ROLES.get(message["role"]), message.get("tool_calls") or []
    if role is None:
        raise DataError(
            f"{place}: field 'role' of a message must be one of {', '.join(ROLES)}, not {message['role']!r:.40}"
        )
    if message.get("function_call") is not None:
        raise DataError(f"{place}: field 'function_call' of a message is not supported; write it as 'tool_calls'")
    made: Message = {"role": role, "content": message.get("content") or ""}  # "", which every template can write
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise DataError(f"{place}: field 'tool_calls' must be a list, in a message of the assistant")
        made["tool_calls"] = [_call(call, place) for call in calls]
    for name in _FIELDS.get(role, ()):
        if (value := message.get(name)) is not None:
            if not isinstance(value, str):
                raise DataError(f"{place}: field {name!r} of a message must be a text")
            made[name] = value
    return made


def _call(call: object, place: str) -> dict[str, Any]:
    """A call with its arguments as an object, which templates write; OpenAI's form has them as text."""
    own = call.get("function") if isinstance(call, dict) else None
    name, arguments = (own.get("name"), own.get("arguments")) if isinstance(own, dict) else (None, None)
    if isinstance(arguments, str) or arguments is None:
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(call, dict) or not isinstance(name, str) or not isinstance(arguments, dict):
        raise DataError(
            f"{place}: each of 'tool_calls' must be {{'type': 'function', 'function': {{'name', 'arguments'}}}}, its "
            "arguments a JSON object or the text of one"
        )
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    _check_json(made, "tool_calls", place)
    return made if call.get("id") is None else {"id": str(call["id"]), **made}


def _tools(tools: object, place: str) -> tuple[dict[str, Any], ...]:
    """Tools in OpenAI's form, or as the JSON text of it: a column of a data set has one form for all rows."""
    if isinstance(tools, str):
        with suppress(ValueError, RecursionError):
            tools = json.loads(tools)
    made = []
    for tool in tools if isinstance(tools, list) else [] if tools is None else [tools]:
        own = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(own, dict) or not isinstance(own.get("name"), str):
            raise DataError(
                f"{place}: field 'tools' must be a list of {{'type': 'function', 'function': {{'name', 'parameters'}}}}"
            )
        function = {name: value for name, value in own.items() if value is not None}
        made.append({"type": "function", "function": function})
    _check_json(made, "tools", place)
    return tuple(made)


def _check_json(value: object, field: str, place: str) -> None:
    """DataError for what JSON does not have, such as the dates of an Arrow column."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: field {field!r} cannot be written as JSON ({error}); write such values as text"
        ) from None


def _distilled(row: Row, place: str) -> Sample:
    for name in ("input_ids", "completion_ids"):
        ids = row.get(name)
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise DataError(f"{place}: field {name!r} must be a list of token ids, as `streamfuse data distill` writes")
    if not row["input_ids"]:
        raise DataError(f"{place}: field 'input_ids' must not be empty: a completion follows at least one token")
    prompt = row["input_ids"]
    return Sample((), (), _origin(row, "distilled"), ids=Example(prompt + row["completion_ids"], len(prompt)))


def _origin(row: Row, name: str) -> str:
    return str(row.get("source") or row.get("category") or name)


def _render(form: str, fields: Row, place: str) -> str:
    """The filled template, stripped. Fields that it uses must exist and be text or numbers."""
    try:
        text = _jinja(form, fields) if "{{" in form or "{%" in form else _format(form, fields, place)
    except KeyError as error:
        raise DataError(f"{place}: no field {error}; the row has {_listed(fields)}") from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{place}: the template {form!r} cannot be rendered ({_one_line(error)})") from None
    if not text.strip():
        raise DataError(f"{place}: the template {form!r} renders to empty text")
    return text.strip()


def _format(form: str, fields: Row, place: str) -> str:
    for _, name, _, _ in Formatter().parse(form):
        if name in fields and not isinstance(fields[name], (str, int, float)):
            raise DataError(f"{place}: field {name!r} must be a text or a number, not {type(fields[name]).__name__}")
    return form.format_map(fields)


def _jinja(form: str, fields: Row) -> str:
    """ValueError if the template is invalid or cannot be rendered with these fields."""
    need("row-template")
    from jinja2 import TemplateError

    try:
        return str(_compiled(form).render(fields))
    except TemplateError as error:
        raise ValueError(_one_line(error)) from None


@lru_cache
def _compiled(form: str) -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(undefined=StrictUndefined).from_string(form)


def _listed(row: Row) -> str:
    return ", ".join(map(str, row)) or "nothing"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
