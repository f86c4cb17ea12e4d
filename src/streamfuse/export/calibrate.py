"""Measures during export how often drafts are accepted, the planner's prior (docs/runtime.md).

The bundle's own engine answers a few prompts greedily with its widest tree. Accepted and predicted nodes are counted
per depth, as the planner does at run time. The prompts are those that were held out when the adapter was trained, so
that a model that is tuned for a task is measured on it; without them, a few built-in questions. A user's text may
differ, so the planner gives these counts little weight and adapts to what it observes.
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
_ANSWERED = 16  # new tokens after each calibration text
_MOST_RATIO = 10.0  # the limit of draft.safetensors
_PRIOR_WEIGHT = 3.0  # prior of each depth, in predicted hits at ratio 1, since the prompts are few


def held_out_prompts(adapter: Mapping[str, str], vocab_size: int) -> list[list[int]]:
    """Token ids of the prompts in an adapter's metadata (train/main.py); empty if it has none for this model."""
    try:
        prompts = json.loads(adapter.get("prompts", "[]"))
        fitting = [[int(token) for token in prompt] for prompt in prompts if prompt]
    except (ValueError, TypeError):
        return []
    return [prompt for prompt in fitting if 0 <= min(prompt) <= max(prompt) < vocab_size]


def questions(text: Tokenizer) -> list[list[int]]:
    """The questions in the bundle's chat template; as plain text if it has none or rejects these messages."""
    try:
        return [text.encode_chat([{"role": "user", "content": question}]) for question in _QUESTIONS]
    except TextError:
        return [text.encode(question) for question in _QUESTIONS]


def prompts_of(config: ExportConfig, model: StreamFused) -> list[list[int]]:
    """Prompts for a bundle: the held-out prompts of its adapter or, if there are none, the questions."""
    return held_out_prompts(facts.adapter_facts(config), model.base.config.vocab_size) or questions(
        _tokenizer(config, model)
    )


def texts_of(config: ExportConfig, model: StreamFused) -> list[list[int]]:
    """Texts for calibrating the ranges of activations: pieces of the calibration text, or the prompts.

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
    """Continue the texts greedily, so that observers see the passes; closes `backend`."""
    spec = backend.spec
    new = min(_ANSWERED, spec.capacity // 2)
    widths = spec.verify_widths
    with Session(backend, tables) as session:
        for text, width in zip(texts, itertools.cycle(widths or (None,)), strict=False):
            session.reset()
            model_config = GenerationConfig(new, ignore_eos=True, speculative=width is not None, width=width)
            session.generate(text[: spec.capacity - new], model_config).finish()


class Hits:
    """Drafted nodes per depth: how many were accepted, and how many the tree predicted."""

    def __init__(self, depths: int) -> None:
        self.hits, self.predicted = [0.0] * depths, [0.0] * depths

    def add(self, one: Pass) -> None:
        """Count the path that the model took through a pass's tree."""
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
        """[depths] hits per predicted hit; empty if nothing was predicted."""
        if not any(self.predicted):
            return []
        pairs = zip(self.hits, self.predicted, strict=True)
        return [min((hits + _PRIOR_WEIGHT) / (predicted + _PRIOR_WEIGHT), _MOST_RATIO) for hits, predicted in pairs]


def calibrate(
    backend: Backend, tables: Mapping[str, npt.NDArray[Any]], prompts: Sequence[Sequence[int]]
) -> list[float]:
    """Answer the prompts and return hits per predicted hit at each depth, [G].

    Empty if no prompt fits or none has drafts. With few samples a depth's ratio is close to 1. `tables` are the arrays
    of draft.safetensors; `backend` is closed.
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
