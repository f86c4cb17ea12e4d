"""How often drafts come true, measured as the bundle is made: the plan's first guess (docs/runtime.md).

The bundle's own engine answers a few prompts greedily at its widest tree; per depth the hits are counted against what
the tree predicted, as the plan does while running. The prompts are those that the adapter was held out to in training,
so that a model tuned for a task is asked what it is for; where it names none, a few questions. A user's text may
differ, so the plan gives these counts little weight and follows what it sees.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from streamfuse.options import OptionError
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import TextError, Tokenizer

from . import facts

if TYPE_CHECKING:
    from streamfuse.model.streams import StreamFused

    from .config import ExportConfig

_QUESTIONS = (
    "Why is the sky blue?",
    "Write a short letter to a friend about a day at the sea.",
    "List five things that one needs for a camping trip.",
    "Write a Python function that reverses a string.",
    "Put into one sentence: The bridge was closed in May. It opened again in June, with a new deck and two new lanes.",
    "A train leaves at 9:40 and takes 95 minutes. When does it arrive?",
)
_NEW_TOKENS = 48
_ANSWERED = 16  # after each text that shows ranges
_MOST_RATIO = 10.0  # what draft.safetensors may hold
_PRIOR_WEIGHT = 3.0  # predicted hits at a ratio of 1 that every depth begins with: a few prompts prove little


def held_out_prompts(adapter: Mapping[str, str], vocab_size: int) -> list[list[int]]:
    """Token ids of the prompts among an adapter's facts (train/main.py); empty where it carries none of this model."""
    try:
        prompts = json.loads(adapter.get("prompts", "[]"))
        fitting = [[int(token) for token in prompt] for prompt in prompts if prompt]
    except (ValueError, TypeError):
        return []
    return [prompt for prompt in fitting if 0 <= min(prompt) <= max(prompt) < vocab_size]


def questions(text: Tokenizer) -> list[list[int]]:
    """The questions as the bundle's own template puts them; plainly where it has none, or takes other messages."""
    try:
        return [text.encode_chat([{"role": "user", "content": question}]) for question in _QUESTIONS]
    except TextError:
        return [text.encode(question) for question in _QUESTIONS]


def prompts_of(config: ExportConfig, model: StreamFused) -> list[list[int]]:
    """What a bundle is asked: held-out prompts of its adapter or, where there are none, the questions."""
    return held_out_prompts(facts.adapter_facts(config), model.base.config.vocab_size) or questions(
        _tokenizer(config, model)
    )


def texts_of(config: ExportConfig, model: StreamFused) -> list[list[int]]:
    """What shows the ranges of activations: pieces of the calibration text, else the prompts.

    Raises:
        OptionError: the text cannot be read, or has no tokens.
    """
    if config.calibration_text is None:
        return prompts_of(config, model)
    try:
        tokens = _tokenizer(config, model).encode(config.calibration_text.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--calibration-text {config.calibration_text} cannot be read as UTF-8 ({error})") from None
    if not tokens:
        raise OptionError(f"--calibration-text {config.calibration_text} is empty")
    size = max(config.max_context_len - _ANSWERED, 1)
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]


def _tokenizer(config: ExportConfig, model: StreamFused) -> Tokenizer:
    of_model = facts.model_facts(config, model)
    marks = of_model["bos_token_id"], of_model["eos_token_ids"]
    return Tokenizer(config.model / "tokenizer.json", of_model["chat_template"], *marks)


def answer_all(backend: Backend, tables: Mapping[str, npt.NDArray[Any]], texts: Sequence[Sequence[int]]) -> None:
    """Continue the texts greedily, for whoever watches what the passes compute; closes `backend`."""
    spec = backend.spec
    new = min(_ANSWERED, spec.capacity // 2)
    widths = spec.verify_widths
    with Session(backend, tables) as session:
        for text, width in zip(texts, itertools.cycle(widths or (None,)), strict=False):
            session.reset()
            model_config = GenerationConfig(new, ignore_eos=True, speculative=width is not None, width=width)
            session.generate(text[: spec.capacity - new], model_config).finish()


class Hits:
    """Drafted children per depth: how many came true, and how many the tree predicted."""

    def __init__(self, depths: int) -> None:
        self.hits, self.predicted = [0.0] * depths, [0.0] * depths

    def add(self, one: Pass) -> None:
        """The path that the model took through a pass's tree."""
        row = 0
        for depth, token in enumerate(one.walk_tokens[: len(self.hits)]):
            children = [other for other, parent in enumerate(one.parents) if parent == row]
            predicted = sum(math.exp(one.log_probs[child] - one.log_probs[row]) for child in children)
            if not predicted:
                return
            row = next((child for child in children if one.tokens[child] == token), 0)
            self.hits[depth] += row > 0
            self.predicted[depth] += min(predicted, 1.0)
            if not row:
                return

    def ratios(self) -> list[float]:
        """[depths] hits per predicted hit; empty where nothing was predicted."""
        if not any(self.predicted):
            return []
        pairs = zip(self.hits, self.predicted, strict=True)
        return [min((hits + _PRIOR_WEIGHT) / (predicted + _PRIOR_WEIGHT), _MOST_RATIO) for hits, predicted in pairs]


def calibrate(
    backend: Backend, tables: Mapping[str, npt.NDArray[Any]], prompts: Sequence[Sequence[int]]
) -> list[float]:
    """Answer the prompts and count: hits per predicted hit at each depth, [G].

    Empty where no prompt fits or none drafts. What a depth lacks in samples its ratio makes up towards 1. `tables` are
    the arrays of draft.safetensors; `backend` is closed afterwards.
    """
    spec = backend.spec
    seen = Hits(spec.num_streams)
    with Session(backend, tables) as session:
        for prompt in prompts if spec.num_streams and spec.widths else ():
            if len(prompt) + _NEW_TOKENS <= spec.capacity:
                session.reset()
                model_config = GenerationConfig(_NEW_TOKENS, width=spec.verify_widths[-1])
                session.generate(prompt, model_config, seen.add).finish()
    return seen.ratios()
