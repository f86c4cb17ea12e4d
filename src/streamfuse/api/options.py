"""The options of a generation: keywords of `generate`, `stream`, `chat` and `send`, and flags of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from streamfuse.bundle import Manifest
from streamfuse.options import OptionError
from streamfuse.runtime.config import CONSTRAINTS, GenerationConfig, SamplingConfig, Schema

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from streamfuse.api.tools import Tool

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
)  # a bundle has its own defaults


class GenerationOptions(TypedDict, total=False):
    """What is not given, or None, is the bundle's default."""

    max_new_tokens: int | None  # at most
    temperature: float | None  # 0 is greedy; higher is more varied
    top_k: int | None  # sample among the k likeliest tokens; 0: off
    top_p: float | None  # sample among the likeliest tokens of this total probability; 1: off
    min_p: float | None  # drop tokens below this share of the likeliest one; 0: off
    repetition_penalty: float | None  # above 1, tokens seen before are less likely; 1: off
    seed: int | None  # the same seed gives the same text, with and without speculation
    stop: str | Sequence[str] | None  # the text ends before this, or before any of these
    stop_token_ids: Sequence[int] | None  # tokens that end the text, in addition to the model's own
    ignore_eos: bool | None  # the model's end-of-sequence tokens do not end the text
    speculative: bool | None  # False decodes one token per pass, the baseline
    width: int | None  # nodes per verify pass; None: chosen by the cost measured on this device
    sources: Sequence[str] | None  # what may draft, of "streams", "lookup", "table", "memory"; all by default
    log_probs: bool | None  # compute the log-probability of each token: Piece.log_prob, Result.log_probs
    top_log_probs: int | None  # the n most probable tokens at each position, at most 20; implies log_probs
    schema: Any  # the answer is JSON that fits it: a dict, JSON text, a pydantic model, a dataclass, a TypedDict
    regex: str | None  # the whole answer matches this regular expression
    grammar: str | None  # the answer is in the language of this Lark grammar
    tools: Sequence[Callable[..., Any] | Mapping[str, Any] | Tool] | None  # that the model may call: functions, or JSON
    tool_choice: str | None  # "auto": the model decides; "required": it calls one; "none"; or the name of one
    template_variables: Mapping[str, Any] | None  # for the chat template, for example {"enable_thinking": False}
    documents: Sequence[Mapping[str, Any]] | None  # for chat templates that read them, {"title", "text"} each


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """What the chat template reads besides the messages, and whether its answer is a call."""

    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None  # None: auto, or none where a schema, regex or grammar restricts the answer
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chooses(self) -> bool:
        """Whether the model may call a tool in place of an answer that a schema, regex or grammar restricts."""
        return bool(self.tools) and self.tool_choice == "auto"

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """The tools as a template reads them."""
        return [tool.to_dict() for tool in self.tools]


def check_adapter(name: str, names: Sequence[str]) -> None:
    """OptionError, with the names, if none of a bundle's task adapters `names` has this name."""
    if not names:
        raise OptionError(f"--adapter {name!s:.40}: the bundle has no adapters")
    if name not in names:
        raise OptionError(f"--adapter must be one of {', '.join(names)}, not {name!s:.40}")


def config_of(manifest: Manifest, **options: Unpack[GenerationOptions]) -> GenerationConfig:
    """The configuration of one generation with a bundle.

    Raises:
        OptionError: a value out of its range; names the keyword. It is a ValueError.
        TypeError: an option that does not exist.
    """
    _check_names(options)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    defaults = {name: getattr(manifest.sampling_defaults, name) for name in ("max_new_tokens", *SAMPLING)}
    sampling = {name: given.get(name, defaults[name]) for name in SAMPLING}
    stop, speculative, schema = given.get("stop", ()), given.get("speculative", True), given.get("schema")
    config = GenerationConfig(
        max_new_tokens=given.get("max_new_tokens", defaults["max_new_tokens"]),
        sampling=SamplingConfig(seed=given.get("seed", 0), **sampling),
        stop_token_ids=several("stop-token-ids", given.get("stop_token_ids", ()), "a list of token ids"),
        stop_strings=(stop,) if isinstance(stop, str) else several("stop", stop, "text, or a list of texts"),
        ignore_eos=given.get("ignore_eos", False),
        speculative=speculative,
        width=given.get("width"),
        sources=several("sources", given["sources"], "a list of names") if "sources" in given else None,
        log_probs=given.get("log_probs", False),
        top_log_probs=given.get("top_log_probs", 0),
        schema=None if schema is None else _schema_of(schema),
        regex=given.get("regex"),
        grammar=given.get("grammar"),
    )
    config.check_width(sorted(method.rows for method in manifest.verify_methods.values() if method.rows > 1))
    return config if speculative else replace(config, width=None)


def _check_names(options: Iterable[str]) -> None:
    for name in options:
        if name not in GenerationOptions.__annotations__:
            listed = ", ".join(GenerationOptions.__annotations__)
            raise TypeError(f"there is no option {name}; the options are {listed}")


def prompt_config_of(**options: Unpack[GenerationOptions]) -> PromptConfig:
    """What the options mean for the prompt. OptionError names the keyword that is wrong; TypeError an option that does
    not exist."""
    _check_names(options)
    given_variables, given_documents = options.get("template_variables"), options.get("documents")
    variables = {} if given_variables is None else _mapping("template-variables", given_variables)
    documents = () if given_documents is None else several("documents", given_documents, "a list of dicts")
    if documents:
        variables["documents"] = [_mapping("documents", document) for document in documents]
    tools, choice = options.get("tools"), options.get("tool_choice")
    given = next((name for name in CONSTRAINTS if options.get(name) is not None), None)
    if given is not None and choice not in (None, "auto", "none"):
        raise OptionError(
            f"--{given} and --tool-choice {choice!s:.40} do not go together; with --{given} the choice is auto (an "
            "answer that fits it, or a call) or none"
        )
    found = () if tools is None else _tools_of(tools)
    if not found:
        if choice not in (None, "auto", "none"):
            raise OptionError(f"--tool-choice {choice!s:.40} needs tools")
        return PromptConfig(variables=variables)
    from streamfuse.api.tools import choice_of

    return PromptConfig(found, None if choice is None else choice_of(choice, found), variables)


def _mapping(flag: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionError(f"--{flag} must hold names and values, not {value!r:.40}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"--{flag} cannot be written as JSON: {error}") from None
    return dict(value)


def _schema_of(value: object) -> Schema:
    from streamfuse.api.schema import schema_of

    return schema_of(value)


def _tools_of(values: object) -> tuple[Tool, ...]:
    from streamfuse.api.tools import tools_of

    return tools_of(values)


def several(flag: str, values: object, what: str) -> tuple[Any, ...]:
    """The values of an option that takes several. OptionError if it was given anything else, such as one of them."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise OptionError(f"--{flag} must be {what}, not {values!r:.40}")
    return tuple(values)
