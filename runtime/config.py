"""What a caller asks of one generation, checked against what the bundle can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.sampling import SamplingConfig

OFF_BY_REQUEST = "off by request"
NO_STREAMS = "no streams in this bundle"


class PromptError(ValueError):
    """A prompt that this bundle cannot take, said in one sentence."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """One generation. ValueError names the flag and its range."""

    max_new_tokens: int = 128
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end-of-sequence tokens
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False  # the model's end-of-sequence tokens become tokens like others
    speculative: bool = True  # False: `decode` only, the baseline
    width: int | None = None  # nodes per verify pass; None: planned by a session, the bundle's default in a bare loop

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"--max-new-tokens must be at least 1, not {self.max_new_tokens}")
        if "" in self.stop_strings:
            raise ValueError("--stop must not be empty")

    def stop_ids(self, spec: ModelSpec) -> frozenset[int]:
        """The tokens that end the text; they are neither delivered nor committed."""
        return frozenset(self.stop_token_ids) | frozenset(() if self.ignore_eos else spec.eos_token_ids)

    def width_for(self, spec: ModelSpec) -> int:
        """Nodes per verify pass; 1 means `decode` only. ValueError for a width that the bundle does not have."""
        widths = spec.verify_widths
        if self.fallback_reason(spec) is not None:
            return 1
        chosen = self.width or spec.default_width or widths[len(widths) // 2]
        if chosen not in widths:
            raise ValueError(f"--width must be one of {', '.join(map(str, widths))} for this bundle, not {chosen}")
        return chosen

    @property
    def needs_plan(self) -> bool:
        """Whether passes are chosen by cost."""
        return self.speculative and self.width is None

    def fallback_reason(self, spec: ModelSpec) -> str | None:
        """Why this generation decodes one token per pass; None where it drafts."""
        if not self.speculative:
            return OFF_BY_REQUEST
        return None if spec.num_streams and spec.widths else NO_STREAMS


def check_prompt(prompt_ids: Sequence[int], spec: ModelSpec) -> None:
    """PromptError unless the prompt is a sequence of 1 to `capacity` tokens of the vocabulary."""
    if not len(prompt_ids):
        raise PromptError("the prompt is empty: it needs at least one token")
    if len(prompt_ids) > spec.capacity:
        raise PromptError(f"the prompt has {len(prompt_ids)} tokens, but this bundle's context holds {spec.capacity}")
    foreign = [token for token in prompt_ids if not 0 <= token < spec.vocab_size]
    if foreign:
        raise PromptError(f"the prompt holds token {foreign[0]}, outside this bundle's vocabulary of {spec.vocab_size}")
