"""What the bodies of all endpoints have in common: fields taken one by one, and what they mean for an answer.

A field that would change the answer and cannot be obeyed is an error that names it. One that cannot change it is
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfuse.api import GenerationOptions
from streamfuse.runtime.config import MOST_TOP_LOG_PROBS
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
    "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "user",
)  # fmt: skip
Refusals = Mapping[str, tuple[tuple[Any, ...], str]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: messages of a chat, or prompts as text or token ids, and how they are answered."""

    options: GenerationOptions
    model: str
    messages: list[dict[str, Any]] | None = None
    prompts: Sequence[str | list[int]] = ()
    stream: bool = False
    include_usage: bool = False
    prompt_field: str = "prompt"  # names of fields of the request, for error messages: of prompt or messages,
    limit_field: str = "max_tokens"  # of the limit of tokens,
    schema_field: str = "response_format"  # and of the schema
    drops_oldest: bool = False  # truncation: auto
    echo: bool = False  # the answer begins with the prompt
    only_echo: bool = False  # the answer is the prompt alone (max_tokens: 0)
    one_call: bool = False  # calls of tools after the first are left out

    @property
    def is_chat(self) -> bool:
        return self.messages is not None


class Fields:
    """The fields of a body, each taken once; null is like leaving a field out.

    `refused` maps each unsupported field to the values that have no effect, and to the hint of the error message for
    all others. `ignored` are fields that cannot change the answer. RequestError if the body is no object, asks for a
    model other than `models`, or has a refused field.
    """

    def __init__(self, body: object, models: Sequence[str], refused: Refusals, ignored: Sequence[str] = ()) -> None:
        if not isinstance(body, dict):
            raise RequestError(400, f"the body must be a JSON object, not {body!r:.40}", code="invalid_type")
        self._left = {name: value for name, value in body.items() if value is not None}
        asked = self.take("model", str, "a string")
        if asked not in (None, *models):
            has = ", ".join(map(repr, models))
            raise RequestError(
                404, f"there is no model {asked!r:.100}; this server has {has}", "model", "model_not_found"
            )
        self.model: str = asked or models[0]
        for name in (*_IGNORED, *ignored):
            self._left.pop(name, None)
        for name, (nothing, instead) in refused.items():
            value = self._left.pop(name, None)
            if value is not None and value not in nothing:
                raise unsupported(name, f"{name} {value!r:.40} is not supported: {instead}")

    def take(self, name: str, kind: type, what: str) -> Any:
        """The value of a field, or None."""
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise wrong(name, what, value)
        return value

    def switch(self, name: str, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.take(name, bool, "true or false")
        return default if value is None else bool(value)

    def alternatives(self, name: str) -> int | None:
        """The number of most probable tokens that a field asks for; None: it is left out."""
        found = self.take(name, object, "")
        if found is not None and (type(found) is not int or not 0 <= found <= MOST_TOP_LOG_PROBS):
            raise wrong(name, f"an integer from 0 to {MOST_TOP_LOG_PROBS}", found)
        return found

    def limit(self, name: str) -> Any:
        """A limit of tokens. -1 is none, as in llama.cpp's server."""
        value = self.take(name, object, "")
        return None if type(value) is int and value == -1 else value

    def options(self) -> GenerationOptions:
        """What restricts and samples an answer, but for a schema."""
        options: dict[str, Any] = {name: self.take(name, object, "") for name in _OPTIONS}
        options |= {name: self.take(name, bool, "true or false") for name in _SWITCHES}
        seed, top_p = options["seed"], options["top_p"]
        if type(seed) is int and -(1 << 63) <= seed < 0:
            options["seed"] = seed & _SEEDS
        if options["stop"] in ("", []):
            options["stop"] = None
        if type(top_p) in (int, float) and top_p == 0:
            options |= {"top_p": None, "top_k": 1}  # the most probable token alone
        found: GenerationOptions = {}
        given = {name: value for name, value in options.items() if value is not None}
        found.update(given)  # type: ignore[typeddict-item]
        return found

    def template_options(self, effort: str | None, verbosity: str | None) -> GenerationOptions:
        """What the chat template reads besides messages and tools. It ignores variables that it does not have."""
        hints: dict[str, Any] = {} if verbosity is None else {"verbosity": verbosity}
        if effort is not None:
            hints["reasoning_effort"] = effort
            if effort == "none":
                hints["enable_thinking"] = False
        variables = {**hints, **(self.take("chat_template_kwargs", dict, "an object") or {})}
        options: GenerationOptions = {"template_variables": variables} if variables else {}
        if (documents := self.take("documents", list, "a list of objects")) is not None:
            options["documents"] = documents
        return options

    def end(self) -> None:
        """RequestError for a field that nobody has taken."""
        for name in self._left:
            raise RequestError(400, f"there is no field {name:.100}; leave it out", f"{name:.100}", "unknown_parameter")


def schema_of(form: Mapping[str, Any], param: str, given: object) -> Any:
    """The schema of the form of an answer, which is the field `param`; None for free text. `given` is what has the
    schema of the type json_schema."""
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's server reads a schema here
        schema = form.get("schema")
        if schema is None:
            return {"type": "object"}
        if not isinstance(schema, (Mapping, bool)):
            raise wrong(f"{param}.schema", "a schema", schema)
        return schema
    if kind != "json_schema":
        raise wrong(f"{param}.type", "text, json_object or json_schema", kind)
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), (Mapping, bool)):
        where = param if given is form else f"{param}.json_schema"
        raise wrong(where, 'an object with a "schema"', given)
    return given["schema"]


def wrong(param: str, what: str, value: object) -> RequestError:
    """The error for a value of another type or form."""
    return RequestError(400, f"{param} must be {what}, not {value!r:.40}", param, "invalid_type")


def unsupported(param: str, message: str) -> RequestError:
    """The error for something that cannot be obeyed."""
    return RequestError(400, message, param, "unsupported_parameter")
