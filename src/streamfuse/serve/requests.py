"""Bodies of requests, as clients of OpenAI's API send them, read into the options of the public API.

A field that would change the answer and cannot be obeyed is an error that names it. One that cannot change it is
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfuse.api import GenerationOptions
from streamfuse.runtime.config import CONSTRAINTS, MOST_TOP_LOG_PROBS
from streamfuse.runtime.text import ROLES, name_tool_results
from streamfuse.serve.errors import RequestError

# Options of the same name and form; the API checks them.
_OPTIONS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop", "stop_token_ids", "width", "regex",
    "grammar",
)  # fmt: skip
_SEEDS = (1 << 64) - 1
_SWITCHES = ("ignore_eos", "speculative")
# Fields without a meaning here: they concern accounts, storage and speed.
_IGNORED = (
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
    "store", "user",
)  # fmt: skip
_ONE_ANSWER = "an answer is one text; send the request several times, each with its own seed"
# Fields that cannot be obeyed: the values that ask for nothing, and the reason and next step for all others.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), _ONE_ANSWER),
    "frequency_penalty": ((0,), "use repetition_penalty"),
    "presence_penalty": ((0,), "use repetition_penalty"),
    "logit_bias": (({},), "use regex, grammar or response_format to restrict the answer"),
}
_REFUSED_CHAT = _REFUSED | {
    "audio": ((), "answers are text"),
    "modalities": ((["text"],), "answers are text"),
    "functions": (([],), "use tools"),
    "function_call": ((), "use tool_choice"),
    "verbosity": ((), "say in a message how long the answer should be"),
    "web_search_options": ((), "describe a search as one of the tools"),
}
_REFUSED_TEXT = _REFUSED | {
    "best_of": ((1,), _ONE_ANSWER),
    "suffix": (("",), "the model continues texts, and does not fill gaps in them"),
}
_MOST_PROMPTS = 64  # of a request: all others wait until they are answered


@dataclass(frozen=True, slots=True)
class Request:
    """One request: messages of a chat, or prompts as text or token ids, and how they are answered."""

    options: GenerationOptions
    model: str
    messages: list[dict[str, Any]] | None = None
    prompts: Sequence[str | list[int]] = ()
    stream: bool = False
    include_usage: bool = False
    limit: str = "max_tokens"  # the field that limits the tokens
    echo: bool = False  # an answer begins with its prompt
    only_echo: bool = False  # and ends with it
    one_call: bool = False  # calls of tools after the first are left out

    @property
    def is_chat(self) -> bool:
        return self.messages is not None


def read_chat(body: object, models: Sequence[str]) -> Request:
    """The request of a body for /v1/chat/completions to one of these models, by default the first. RequestError names
    the field that is wrong."""
    fields = _Fields(body, models, _REFUSED_CHAT)
    messages = _messages(fields.take("messages", list, "a list of messages"))
    options = _options(fields)
    if variables := _variables(fields):
        options["template_variables"] = variables
    if (documents := fields.take("documents", list, "a list of objects")) is not None:
        options["documents"] = documents
    limit = _add_limit(fields, options)
    asked = fields.take("logprobs", bool, "true or false")
    if asked:
        options["log_probs"] = True
    if top := _alternatives(fields, "top_logprobs"):
        if not asked:
            raise RequestError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
        options["top_log_probs"] = top
    one_call = _add_tools(fields, options)
    stream, include_usage = _streaming(fields)
    fields.end()
    return Request(options, fields.model, messages, (), stream, include_usage, limit, one_call=one_call)


def read_completion(body: object, models: Sequence[str]) -> Request:
    """The request of a body for /v1/completions, as `read_chat`."""
    fields = _Fields(body, models, _REFUSED_TEXT)
    prompts = _prompts(fields.take("prompt", object, ""))
    options = _options(fields)
    echo = fields.take("echo", bool, "true or false") or False
    limit = _limit(fields, "max_tokens")
    only_echo = echo and type(limit) is int and limit == 0
    if limit is not None:
        options["max_new_tokens"] = 1 if only_echo else limit
    if (top := _alternatives(fields, "logprobs")) is not None:
        options["log_probs"], options["top_log_probs"] = True, top
    if echo and top is not None and options.get("max_new_tokens") == 1:
        options["ignore_eos"] = True  # clients that score a prompt drop the last token, so there must be another one
    stream, include_usage = _streaming(fields)
    fields.end()
    return Request(options, fields.model, None, prompts, stream, include_usage, echo=echo, only_echo=only_echo)


class _Fields:
    """The fields of a body, each taken once; null is like leaving a field out."""

    def __init__(self, body: object, models: Sequence[str], refused: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
        if not isinstance(body, dict):
            raise RequestError(400, f"the body must be a JSON object, not {body!r:.40}", code="invalid_type")
        self._left = {name: value for name, value in body.items() if value is not None}
        asked = self.take("model", str, "text")
        if asked not in (None, *models):
            has = ", ".join(map(repr, models))
            raise RequestError(
                404, f"there is no model {asked!r:.100}; this server has {has}", "model", "model_not_found"
            )
        self.model: str = asked or models[0]
        for name in _IGNORED:
            self._left.pop(name, None)
        for name, (nothing, instead) in refused.items():
            value = self._left.pop(name, None)
            if value is not None and value not in nothing:
                raise RequestError(
                    400, f"{name} {value!r:.40} is not supported: {instead}", name, "unsupported_parameter"
                )

    def take(self, name: str, kind: type, what: str) -> Any:
        """The value of a field, or None."""
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise _wrong(name, what, value)
        return value

    def end(self) -> None:
        """RequestError for a field that nobody has taken."""
        for name in self._left:
            raise RequestError(400, f"there is no field {name:.100}; leave it out", f"{name:.100}", "unknown_parameter")


def _alternatives(fields: _Fields, name: str) -> int | None:
    """The number of most probable tokens that this field asks for; None: it is left out."""
    found = fields.take(name, object, "")
    if found is not None and (type(found) is not int or not 0 <= found <= MOST_TOP_LOG_PROBS):
        raise _wrong(name, f"an integer from 0 to {MOST_TOP_LOG_PROBS}", found)
    return found


def _wrong(param: str, what: str, value: object) -> RequestError:
    return RequestError(400, f"{param} must be {what}, not {value!r:.40}", param, "invalid_type")


def _options(fields: _Fields) -> GenerationOptions:
    """What restricts and samples an answer, in both endpoints."""
    options: dict[str, Any] = {name: fields.take(name, object, "") for name in _OPTIONS}
    options |= {name: fields.take(name, bool, "true or false") for name in _SWITCHES}
    seed, top_p = options["seed"], options["top_p"]
    if type(seed) is int and -(1 << 63) <= seed < 0:
        options["seed"] = seed & _SEEDS
    if options["stop"] in ("", []):
        options["stop"] = None
    if type(top_p) in (int, float) and top_p == 0:
        options |= {"top_p": None, "top_k": 1}  # the most probable token alone
    if (form := fields.take("response_format", dict, "an object")) is not None:
        options["schema"] = _schema(form)
    found: GenerationOptions = {}
    found.update({name: value for name, value in options.items() if value is not None})  # type: ignore[typeddict-item]
    return found


def _schema(form: Mapping[str, Any]) -> Any:
    """The schema of a response_format; None for free text."""
    kind, given = form.get("type"), form.get("json_schema")
    if kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's server reads a schema here
        given = form.get("schema")
        if given is None:
            return {"type": "object"}
        if not isinstance(given, (Mapping, bool)):
            raise _wrong("response_format.schema", "a schema", given)
        return given
    if kind != "json_schema":
        raise _wrong("response_format.type", "text, json_object or json_schema", kind)
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), (Mapping, bool)):
        raise _wrong("response_format.json_schema", 'an object with a "schema"', given)
    return given["schema"]


def _variables(fields: _Fields) -> dict[str, Any]:
    """Variables of the chat template, which ignores those that it does not have."""
    given = fields.take("chat_template_kwargs", dict, "an object") or {}
    effort = fields.take("reasoning_effort", str, "text")
    if effort is None:
        return given
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {}), **given}


def _limit(fields: _Fields, name: str) -> Any:
    """A limit of tokens. -1 is none, as in llama.cpp's server."""
    value = fields.take(name, object, "")
    return None if type(value) is int and value == -1 else value


def _add_limit(fields: _Fields, options: GenerationOptions) -> str:
    """The limit of tokens, which has an old and a new name; the name that was used."""
    given = {name: _limit(fields, name) for name in ("max_completion_tokens", "max_tokens")}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) == 2 and given["max_tokens"] != given["max_completion_tokens"]:
        raise RequestError(
            400, "max_tokens and max_completion_tokens differ; give one of them", "max_tokens", "invalid_value"
        )
    for name, value in given.items():
        options["max_new_tokens"] = value
        return name
    return "max_tokens"


def _add_tools(fields: _Fields, options: GenerationOptions) -> bool:
    """Whether the answer may have at most one call."""
    given = fields.take("tools", list, "a list of tools") or []
    tools = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(given)]
    choice = fields.take("tool_choice", object, "")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, tools = _allowed(choice.get("allowed_tools"), tools)
    choice = _choice(choice)
    if tools:
        options["tools"] = tools
    restriction = next((name for name in CONSTRAINTS if name in options), None)
    if restriction is not None and choice in (None, "auto"):
        choice = "auto" if tools else None  # an answer that fits, or a call
    elif restriction is not None and choice != "none":
        del options[restriction]  # type: ignore[misc]  # the answer is a call
    if choice is not None:
        options["tool_choice"] = choice
    return fields.take("parallel_tool_calls", bool, "true or false") is False


def _tool(tool: object, param: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise _wrong(param, '{"type": "function", "function": {...}}', tool)
    own = {name: value for name, value in tool["function"].items() if value is not None}
    if not isinstance(own.get("name"), str):
        raise _wrong(f"{param}.function.name", "text", own.get("name"))
    return {"type": "function", "function": own}


def _choice(choice: object) -> str | None:
    """A tool_choice as our option has it."""
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    own = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(own, dict) or not isinstance(own.get("name"), str):
        raise _wrong("tool_choice", 'auto, none, required or {"type": "function", "function": {"name": ...}}', choice)
    if own["name"] in ("auto", "none", "required"):
        message = f"tool_choice cannot name a tool {own['name']}, which is a choice of its own; rename the tool"
        raise RequestError(400, message, "tool_choice", "invalid_value")
    return str(own["name"])


def _allowed(given: object, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """A tool_choice among some of the tools: the choice, and these tools."""
    param = "tool_choice.allowed_tools"
    listed = given.get("tools") if isinstance(given, dict) else None
    if not isinstance(given, dict) or given.get("mode") not in ("auto", "required") or not isinstance(listed, list):
        raise _wrong(param, '{"mode": "auto" or "required", "tools": [...]}', given)
    names = [_tool(tool, f"{param}.tools[{place}]")["function"]["name"] for place, tool in enumerate(listed)]
    allowed = [tool for tool in tools if tool["function"]["name"] in names]
    for name in names:
        if name not in [tool["function"]["name"] for tool in allowed]:
            raise RequestError(400, f"{param} has {name!r:.60}, which is not in tools", param, "invalid_value")
    return given["mode"], allowed


def _streaming(fields: _Fields) -> tuple[bool, bool]:
    stream = fields.take("stream", bool, "true or false") or False
    how = fields.take("stream_options", dict, "an object")
    if how is not None and not stream:
        raise RequestError(400, "stream_options needs stream: true", "stream_options", "invalid_value")
    usage = (how or {}).get("include_usage") or False
    if not isinstance(usage, bool):
        raise _wrong("stream_options.include_usage", "true or false", usage)
    return stream, usage


def _prompts(given: object) -> list[str | list[int]]:
    """Texts or lists of token ids: one, or a list of them."""
    prompts: list[Any] = [given]
    if isinstance(given, list) and given and all(isinstance(one, (str, list)) for one in given):
        prompts = given
    if len(prompts) > _MOST_PROMPTS:
        message = f"prompt has {len(prompts)} prompts; send at most {_MOST_PROMPTS} in a request"
        raise RequestError(400, message, "prompt", "invalid_value")
    for place, one in enumerate(prompts):
        if not isinstance(one, str) and not (isinstance(one, list) and one and all(type(id_) is int for id_ in one)):
            param = f"prompt[{place}]" if len(prompts) > 1 else "prompt"
            raise _wrong(param, "text, or a list of token ids", one)
    return prompts


def _messages(given: list[Any] | None) -> list[dict[str, Any]]:
    if not given:
        raise RequestError(400, "messages must be a list with at least one message", "messages", "invalid_type")
    messages = [_message(message, f"messages[{place}]") for place, message in enumerate(given)]
    name_tool_results(messages)
    return messages


def _message(message: object, param: str) -> dict[str, Any]:
    """A message with what chat templates read of it."""
    if not isinstance(message, dict):
        raise _wrong(param, "an object", message)
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise _wrong(f"{param}.role", f"one of {', '.join(ROLES)}", message.get("role"))
    calls = message.get("tool_calls") or []
    content = message.get("content")
    # An answer of calls alone comes back with the null that it was sent with, and so does a tool's empty result; a chat
    # keeps an empty text there, which every template can write.
    if content is None and role in ("assistant", "tool"):
        content = (message.get("refusal") if role == "assistant" else None) or ""
    made: dict[str, Any] = {"role": role, "content": _text(content, param, role)}
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise RequestError(400, f"{param}.{name} is not supported", f"{param}.{name}", "unsupported_parameter")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise _wrong(f"{param}.tool_calls", "a list of calls, in a message of the assistant", calls)
        made["tool_calls"] = [_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
    kept = {"assistant": ("reasoning_content",), "tool": ("tool_call_id", "name")}.get(role, ())
    for name in kept:
        if (value := message.get(name)) is not None:
            if not isinstance(value, str):
                raise _wrong(f"{param}.{name}", "text", value)
            made[name] = value
    return made


def _text(content: object, param: str, role: str) -> str:
    """The text of a message, whose parts become lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{param}.content", "text, or a list of parts", content)
    lines, kinds = [], ("text", "refusal") if role == "assistant" else ("text",)
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(part.get(kind), str):
            where = f"{param}.content[{place}]"
            raise RequestError(
                400, f"{where} is {part!r:.60}; the model reads text only", where, "unsupported_parameter"
            )
        lines.append(part[kind])
    return "\n".join(lines)


def _call(call: object, param: str) -> dict[str, Any]:
    own = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(own, dict) or not isinstance(own.get("name"), str):
        raise _wrong(param, '{"id", "type": "function", "function": {"name", "arguments"}}', call)
    made = {"type": "function", "function": {"name": own["name"], "arguments": _arguments(own.get("arguments"), param)}}
    return made if call.get("id") is None else {"id": str(call["id"]), **made}


def _arguments(text: object, param: str) -> object:
    """The object that templates write; clients send its text. A model's broken call stays text: the conversation goes
    on after it."""
    try:
        found = json.loads(text or "{}") if isinstance(text, str) else text
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if not isinstance(text, str):
        raise _wrong(f"{param}.function.arguments", "the text of a JSON object", text)
    return text
