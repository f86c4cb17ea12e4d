"""Bodies for /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import Fields, Refusals, Request, schema_of, wrong
from streamfuse.serve.responses.items import Item, messages_of_items, read_input
from streamfuse.serve.responses.store import Store
from streamfuse.serve.tools import add_tools

_LOG_PROBS = "message.output_text.logprobs"
_REFUSED: Refusals = {
    "background": ((False,), "set stream to receive the answer as it is generated"),
    "context_management": (([],), "use truncation: auto, which leaves out the oldest turns"),
    "conversation": ((), "use previous_response_id, or send the items of the conversation"),
    "frequency_penalty": ((0,), "use repetition_penalty"),
    "logit_bias": (({},), "use regex, grammar or text.format to restrict the answer"),
    "moderation": ((), "remove the field"),
    "presence_penalty": ((0,), "use repetition_penalty"),
    "prompt": ((), "send the text of the prompt as instructions and input"),
}
_IGNORED = ("access_programs", "background_options", "image", "max_tool_calls", "stream_options")


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request for a response: what is to be answered, and what the response repeats or keeps."""

    request: Request
    input: list[Item]  # with that of the responses before it
    store: bool
    summary: bool  # reasoning is returned in `summary`
    echo: dict[str, Any]  # fields of the request, as the response has them


def read_response(body: object, models: Sequence[str], store: Store) -> ResponseRequest:
    """The request of a body to one of these models, by default the first. RequestError names the field that is
    wrong."""
    fields = Fields(body, models, _REFUSED, _IGNORED)
    own = body if isinstance(body, dict) else {}
    instructions = fields.take("instructions", str, "a string")
    previous = fields.take("previous_response_id", str, "a string")
    before = [] if previous is None else store.get(previous, "previous_response_id").items
    given = fields.take("input", object, "")
    items = [*before, *read_input([] if given is None and before else given, store.item)]
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    messages += messages_of_items(items)
    if not messages:
        message = "the request has no messages; set input or instructions"
        raise RequestError(400, message, "input", "invalid_value")
    options = fields.options()
    effort, summary = _reasoning(fields)
    form, verbosity = _text(fields)
    options.update(fields.template_options(effort, verbosity))
    if (schema := schema_of(form, "text.format", form)) is not None:
        options["schema"] = schema
    limit = fields.limit("max_output_tokens")
    if limit is not None:
        options["max_new_tokens"] = limit
    top = fields.alternatives("top_logprobs")
    # Other values concern OpenAI's hosted tools, or encrypted reasoning; reasoning is always returned.
    included = fields.take("include", list, "a list of strings") or []
    if _LOG_PROBS in included or top:
        options["log_probs"], options["top_log_probs"] = True, top or 0
    one_call = add_tools(fields, options, flat=True)
    truncation = fields.take("truncation", str, "a string") or "disabled"
    if truncation not in ("auto", "disabled"):
        raise wrong("truncation", "auto or disabled", truncation)
    metadata = fields.take("metadata", dict, "an object") or {}
    keep, stream = fields.switch("store", True), fields.switch("stream")
    fields.end()
    request = Request(
        options, fields.model, messages, stream=stream, prompt_field="input", limit_field="max_output_tokens",
        schema_field="text.format", drops_oldest=truncation == "auto", one_call=one_call,
    )  # fmt: skip
    echo = {
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": metadata,
        "parallel_tool_calls": not one_call,
        "previous_response_id": previous,
        "reasoning": {"effort": effort, "summary": (own.get("reasoning") or {}).get("summary")},
        "store": keep,
        "text": {"format": form, "verbosity": verbosity or "medium"},
        "tool_choice": own.get("tool_choice") or "auto",
        "tools": own.get("tools") or [],
        "top_logprobs": top or 0,
        "truncation": truncation,
        **{name: own[name] for name in ("temperature", "top_p") if own.get(name) is not None},
    }
    return ResponseRequest(request, items, keep, summary, echo)


def _reasoning(fields: Fields) -> tuple[str | None, bool]:
    """The effort, and whether a summary is asked for."""
    given = fields.take("reasoning", dict, "an object") or {}
    effort = given.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise wrong("reasoning.effort", "a string", effort)
    for name in ("summary", "generate_summary"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise wrong(f"reasoning.{name}", "a string", given[name])
    return effort, any(given.get(name) is not None for name in ("summary", "generate_summary"))


def _text(fields: Fields) -> tuple[dict[str, Any], str | None]:
    """The response format, and the verbosity."""
    given = fields.take("text", dict, "an object") or {}
    form, verbosity = given.get("format") or {"type": "text"}, given.get("verbosity")
    if not isinstance(form, dict):
        raise wrong("text.format", "an object", form)
    if verbosity is not None and not isinstance(verbosity, str):
        raise wrong("text.verbosity", "a string", verbosity)
    return form, verbosity
