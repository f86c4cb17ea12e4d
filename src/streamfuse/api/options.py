"""The options of a generation: keywords of `generate`, `stream`, `chat` and `send`, and flags of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from streamfuse.bundle import Manifest
from streamfuse.options import OptionError
from streamfuse.runtime.config import GenerationConfig, SamplingConfig, Schema

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    seed: int  # the same seed gives the same text, with and without speculation
    stop: str | Sequence[str]  # the text ends before this, or before any of these
    stop_token_ids: Sequence[int]  # tokens that end the text, in addition to the model's own
    ignore_eos: bool  # the model's end-of-sequence tokens do not end the text
    speculative: bool  # False decodes one token per pass, the baseline
    width: int | None  # nodes per verify pass; None: chosen by the cost measured on this device
    schema: Any  # the answer is JSON that fits it: a dict, JSON text, a pydantic model, a dataclass, a TypedDict
    regex: str | None  # the whole answer matches this regular expression
    grammar: str | None  # the answer is in the language of this Lark grammar


def config_of(manifest: Manifest, **options: Unpack[GenerationOptions]) -> GenerationConfig:
    """The configuration of one generation with a bundle.

    Raises:
        OptionError: a value out of its range; names the keyword. It is a ValueError.
        TypeError: an option that does not exist.
    """
    for name in options:
        if name not in GenerationOptions.__annotations__:
            listed = ", ".join(GenerationOptions.__annotations__)
            raise TypeError(f"there is no option {name}; the options are {listed}")
    defaults = manifest.sampling_defaults

    def given(name: str) -> Any:
        value = options.get(name)
        return getattr(defaults, name) if value is None else value

    stop, speculative, width = options.get("stop", ()), options.get("speculative", True), options.get("width")
    schema = options.get("schema")
    config = GenerationConfig(
        max_new_tokens=given("max_new_tokens"),
        sampling=SamplingConfig(seed=options.get("seed", 0), **{name: given(name) for name in SAMPLING}),
        stop_token_ids=_several("stop-token-ids", options.get("stop_token_ids", ()), "a list of token ids"),
        stop_strings=(stop,) if isinstance(stop, str) else _several("stop", stop, "text, or a list of texts"),
        ignore_eos=options.get("ignore_eos", False),
        speculative=speculative,
        width=width if speculative else None,
        schema=None if schema is None else _schema_of(schema),
        regex=options.get("regex"),
        grammar=options.get("grammar"),
    )
    config.check_width(sorted(method.rows for method in manifest.verify_methods.values() if method.rows > 1))
    return config


def _schema_of(value: object) -> Schema:
    from streamfuse.api.schema import schema_of

    return schema_of(value)


def _several(flag: str, values: object, what: str) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise OptionError(f"--{flag} must be {what}, not {values!r:.40}")
    return tuple(values)
