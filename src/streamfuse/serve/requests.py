"""Bodies of chat completions and of completions, as clients of OpenAI's API send them, read into the options of the
public API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfuse.api import GenerationOptions
from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import Fields, Refusals, Request, schema_of, wrong
from streamfuse.serve.messages import messages_of
from streamfuse.serve.tools import add_tools

_ONE_ANSWER = "an answer is one text; send the request several times, each with its own seed"
_REFUSED: Refusals = {
    "n": ((1,), _ONE_ANSWER),
    "frequency_penalty": ((0,), "use repetition_penalty"),
    "presence_penalty": ((0,), "use repetition_penalty"),
    "logit_bias": (({},), "use regex, grammar or response_format to restrict the answer"),
}
_REFUSED_CHAT: Refusals = {
    **_REFUSED,
    "audio": ((), "answers are text"),
    "modalities": ((["text"],), "answers are text"),
    "functions": (([],), "use tools"),
    "function_call": ((), "use tool_choice"),
    "web_search_options": ((), "describe a search as one of the tools"),
}
_REFUSED_TEXT: Refusals = {
    **_REFUSED,
    "best_of": ((1,), _ONE_ANSWER),
    "suffix": (("",), "the model continues texts, and does not fill gaps in them"),
}
_IGNORED = ("metadata", "store")
_MOST_PROMPTS = 64  # of a request: all others wait until they are answered


def read_chat(body: object, models: Sequence[str]) -> Request:
    """The request of a body for /v1/chat/completions to one of these models, by default the first. RequestError names
    the field that is wrong."""
    fields = Fields(body, models, _REFUSED_CHAT, _IGNORED)
    messages = messages_of(fields.take("messages", list, "a list of messages"))
    options = fields.options()
    _add_schema(fields, options)
    effort, verbosity = (fields.take(name, str, "a string") for name in ("reasoning_effort", "verbosity"))
    options.update(fields.template_options(effort, verbosity))
    limit = _add_limit(fields, options)
    asked = fields.switch("logprobs")
    if asked:
        options["log_probs"] = True
    if top := fields.alternatives("top_logprobs"):
        if not asked:
            raise RequestError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
        options["top_log_probs"] = top
    one_call = add_tools(fields, options)
    stream, include_usage = _streaming(fields)
    fields.end()
    return Request(
        options,
        fields.model,
        messages,
        (),
        stream,
        include_usage,
        prompt_field="messages",
        limit_field=limit,
        one_call=one_call,
    )


def read_completion(body: object, models: Sequence[str]) -> Request:
    """The request of a body for /v1/completions, as `read_chat`."""
    fields = Fields(body, models, _REFUSED_TEXT, _IGNORED)
    prompts = _prompts(fields.take("prompt", object, ""))
    options = fields.options()
    _add_schema(fields, options)
    echo = fields.switch("echo")
    limit = fields.limit("max_tokens")
    only_echo = echo and type(limit) is int and limit == 0
    if limit is not None:
        options["max_new_tokens"] = 1 if only_echo else limit
    if (top := fields.alternatives("logprobs")) is not None:
        options["log_probs"], options["top_log_probs"] = True, top
    if echo and top is not None and options.get("max_new_tokens") == 1:
        options["ignore_eos"] = True  # clients that score a prompt drop the last token, so there must be another one
    stream, include_usage = _streaming(fields)
    fields.end()
    return Request(options, fields.model, None, prompts, stream, include_usage, echo=echo, only_echo=only_echo)


def _add_schema(fields: Fields, options: GenerationOptions) -> None:
    form = fields.take("response_format", dict, "an object")
    if form is not None and (schema := schema_of(form, "response_format", form.get("json_schema"))) is not None:
        options["schema"] = schema


def _add_limit(fields: Fields, options: GenerationOptions) -> str:
    """The limit of tokens, which has an old and a new name; the name that was used."""
    given = {name: fields.limit(name) for name in ("max_completion_tokens", "max_tokens")}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) == 2 and given["max_tokens"] != given["max_completion_tokens"]:
        raise RequestError(
            400, "max_tokens and max_completion_tokens differ; give one of them", "max_tokens", "invalid_value"
        )
    for name, value in given.items():
        options["max_new_tokens"] = value
        return name
    return "max_tokens"


def _streaming(fields: Fields) -> tuple[bool, bool]:
    stream = fields.switch("stream")
    how = fields.take("stream_options", dict, "an object")
    if how is not None and not stream:
        raise RequestError(400, "stream_options needs stream: true", "stream_options", "invalid_value")
    usage = (how or {}).get("include_usage") or False
    if not isinstance(usage, bool):
        raise wrong("stream_options.include_usage", "true or false", usage)
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
            raise wrong(param, "a string or a list of token ids", one)
    return prompts
