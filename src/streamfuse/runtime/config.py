"""What a caller asks of one generation, checked against what the bundle can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import NoneType
from typing import Any

from streamfuse.options import OptionError, is_number, shown
from streamfuse.runtime.backend import ModelSpec

OFF_BY_REQUEST = "off by request"
NO_VERIFY = "no verify methods in this bundle"
MOST_TOP_LOG_PROBS = 20  # SF_TOP_LOG_PROBS of core/streamfuse_core.h
DRAFT_SOURCES = ("streams", "lookup", "table", "memory")  # of drafts
CONSTRAINTS = ("schema", "regex", "grammar")  # options that restrict what the text may be
RESTRICTING = (*CONSTRAINTS, "tool_choice")  # at most one of them restricts an answer
_LIMIT = 1e30  # of temperature and repetition penalty, as in the core
_LEAST_PENALTY = 1e-30  # a smaller one makes scores infinite


class PromptError(ValueError):
    """A prompt that this bundle cannot take; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the next token is chosen. Temperature 0 is greedy. OptionError names the option and its range."""

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # 1 = off
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            demand(is_number(value := getattr(self, name)), name.replace("_", "-"), "a number", value)
        demand(0 <= self.temperature < _LIMIT, "temperature", f"at least 0 and below {_LIMIT:g}", self.temperature)
        demand(is_integer(self.top_k) and self.top_k >= 0, "top-k", "an integer of at least 0 (0 = off)", self.top_k)
        demand(0 < self.top_p <= 1, "top-p", "above 0 and at most 1 (1 = off)", self.top_p)
        demand(0 <= self.min_p <= 1, "min-p", "from 0 (off) to 1", self.min_p)
        penalty = self.repetition_penalty
        bounds = f"at least {_LEAST_PENALTY:g} and below {_LIMIT:g} (1 = off)"
        demand(_LEAST_PENALTY <= penalty < _LIMIT, "repetition-penalty", bounds, penalty)
        demand(is_integer(self.seed) and 0 <= self.seed < 1 << 64, "seed", "an integer from 0 to 2**64 - 1", self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def demand(holds: bool, flag: str, range_: str, value: object) -> None:
    """Raise OptionError unless `holds`: "--flag must be range_, not value"."""
    if not holds:
        raise OptionError(f"--{flag} must be {range_}, not {shown(value)}")


def demand_top_log_probs(value: object) -> None:
    """OptionError unless it is a number of tokens that the core reports per position."""
    asked = is_integer(value) and value in range(MOST_TOP_LOG_PROBS + 1)
    demand(asked, "top-log-probs", f"an integer from 0 to {MOST_TOP_LOG_PROBS}", value)


def demand_bool(flag: str, value: object) -> None:
    """Raise OptionError unless the value is True or False: a string such as "no" would count as True."""
    demand(isinstance(value, bool), flag, "True or False", value)


def is_integer(value: object) -> bool:
    """Whether it is one, numpy's included; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema that a text fits, and what reads the whole text as an object."""

    text: str  # JSON
    read: Callable[[str], Any] = field(default=json.loads, compare=False)


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """One generation. OptionError names the option and its range."""

    max_new_tokens: int = 128
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end-of-sequence tokens
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False  # the model's end-of-sequence tokens become tokens like others
    speculative: bool = True  # False: `decode` only, the baseline
    width: int | None = None  # nodes per verify pass; None: planned by a session, the bundle's default in the reference
    sources: tuple[str, ...] | None = None  # what may draft, some of DRAFT_SOURCES; None: all of them
    log_probs: bool = False  # compute the log-probability of each token
    top_log_probs: int = 0  # return the n most probable tokens per position; above 0 implies log_probs
    schema: Schema | None = None  # the text is JSON that fits it; at most one of schema, regex and grammar
    regex: str | None = None  # the whole text matches this regular expression
    grammar: str | None = None  # the text is in the language of this Lark grammar

    def __post_init__(self) -> None:
        whole = is_integer(self.max_new_tokens) and self.max_new_tokens >= 1
        demand(whole, "max-new-tokens", "an integer of at least 1", self.max_new_tokens)
        for token in self.stop_token_ids:
            demand(is_integer(token) and 0 <= token < 1 << 63, "stop-token-ids", "a list of token ids", token)
        for stop in self.stop_strings:
            demand(isinstance(stop, str), "stop", "text, or a list of texts", stop)
        demand_bool("ignore-eos", self.ignore_eos)
        demand_bool("speculative", self.speculative)
        demand_bool("log-probs", self.log_probs)
        demand_top_log_probs(self.top_log_probs)
        demand(self.width is None or is_integer(self.width), "width", "an integer", self.width)
        if "" in self.stop_strings:
            raise OptionError("--stop must not be empty; leave it out to stop at the model's own end only")
        if any("\ud800" <= character <= "\udfff" for stop in self.stop_strings for character in stop):
            raise OptionError("--stop must be UTF-8 text; convert it")
        for name in ("regex", "grammar"):
            demand(isinstance(getattr(self, name), (str, NoneType)), name, "text", getattr(self, name))
        if self.sources == ():
            raise OptionError("--sources must not be empty: leave it out for all, or use speculative=False for none")
        if unknown := [source for source in self.sources or () if source not in DRAFT_SOURCES]:
            raise OptionError(f"--sources must be some of {', '.join(DRAFT_SOURCES)}, not {unknown[0]!r:.40}")
        given = self._restrictions()
        if len(given) > 1:
            raise OptionError(f"--{given[0]} and --{given[1]} do not go together; one of them restricts the text")

    @property
    def restricted(self) -> str:
        """The option that restricts the text, "schema", "regex" or "grammar"; empty without one."""
        return next(iter(self._restrictions()), "")

    @property
    def restriction(self) -> str | None:
        """The text of the regex or grammar that restricts the text; empty for a schema, None without any."""
        return (self.regex or self.grammar or "") if self.restricted else None

    def _restrictions(self) -> list[str]:
        return [name for name in CONSTRAINTS if getattr(self, name) is not None]

    def stop_ids(self, spec: ModelSpec) -> frozenset[int]:
        """The tokens that end the text; they are neither delivered nor committed."""
        return frozenset(self.stop_token_ids) | frozenset(() if self.ignore_eos else spec.eos_token_ids)

    def check_width(self, widths: Sequence[int]) -> None:
        """OptionError for a width that is none of the bundle's."""
        if self.width is not None and self.width not in widths:
            listed = f"one of {', '.join(map(str, widths))}" if widths else "left out"
            why = "" if widths else ", which has no verify methods"
            raise OptionError(f"--width must be {listed} for this bundle{why}, not {self.width}")

    def width_for(self, spec: ModelSpec) -> int:
        """Nodes per verify pass; 1 means `decode` only."""
        if self.fallback_reason(spec) is not None:
            return 1
        self.check_width(spec.verify_widths)
        return self.width or spec.default_width or spec.verify_widths[len(spec.verify_widths) // 2]

    @property
    def needs_plan(self) -> bool:
        """Whether passes are chosen by cost."""
        return self.speculative and self.width is None

    def fallback_reason(self, spec: ModelSpec) -> str | None:
        """Why this generation decodes one token per pass; None where it drafts."""
        if not self.speculative:
            return OFF_BY_REQUEST
        return None if spec.widths else NO_VERIFY


def token_ids_of(given: object, what: str = "prompt") -> list[int]:
    """The token ids of a prompt. PromptError for anything else, in which `what` is how it is called."""
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise PromptError(f"the {what} must be a list of token ids, not {given!r:.40}")
    ids = list(given)
    for token in ids:
        if not is_integer(token) or not -(1 << 63) <= token < 1 << 63:
            raise PromptError(f"the {what} must be a list of token ids, which are integers; it holds {token!r:.40}")
    return ids


def check_prompt(prompt_ids: Sequence[int], spec: ModelSpec, what: str = "prompt") -> None:
    """PromptError unless a prompt has 1 to `capacity` tokens of the vocabulary, as the core checks it. `what` is how
    the message calls it."""
    if not len(prompt_ids):
        raise PromptError(f"the {what} is empty: it needs at least one token")
    if len(prompt_ids) > spec.capacity:
        raise PromptError(f"the {what} has {len(prompt_ids)} tokens, but this bundle's context holds {spec.capacity}")
    foreign = [token for token in prompt_ids if not 0 <= token < spec.vocab_size]
    if foreign:
        raise PromptError(f"the {what} holds token {foreign[0]}, outside this bundle's vocabulary of {spec.vocab_size}")
