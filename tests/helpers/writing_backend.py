"""An engine that answers known questions with known texts, so that the model's part of a test is certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from bundle_samples import IM_END, IM_START, VOCAB_SIZE, byte_tokenizer
from fakes import ArithmeticBackend

from streamfuse.runtime.backend import DECODE, ModelSpec

BYTES = byte_tokenizer()
_AFTER_START = len("assistant\n")


class WritingBackend(ArithmeticBackend):
    """Answers a question that is a key of `texts` with its text, then ends; by any width."""

    texts: Mapping[str, str] = {}

    def run(self, method: str, input_ids: Any, position_ids: Any, ancestors: Any, want_logits: bool = False) -> Any:
        output = super().run(method, input_ids, position_ids, ancestors, want_logits)
        if output.logits is None:
            return output
        rows = [0] if method == DECODE else output.kept
        best = [self._next([*self.cache, *input_ids[np.flatnonzero(ancestors[row])].tolist()]) for row in rows]
        logits = np.zeros((len(best), VOCAB_SIZE), np.float32)
        logits[np.arange(len(best)), best] = 50
        return replace(output, logits=logits, best=logits.argmax(axis=1))

    def _next(self, context: list[int]) -> int:
        starts = [place for place, token in enumerate(context) if token == IM_START]
        if len(starts) < 2:
            return 0  # a pass that is only timed
        question = BYTES.decode(context[starts[-2] : starts[-1]]).removeprefix("user\n").strip()
        # A drafted token may begin a turn too, whose question is none of these.
        text, done = BYTES.encode(self.texts.get(question, "")).ids, len(context) - 1 - starts[-1] - _AFTER_START
        return text[done] if 0 <= done < len(text) else IM_END


def writing(texts: Mapping[str, str]) -> Callable[[ModelSpec], WritingBackend]:
    """Makes engines that have these answers."""

    def make(spec: ModelSpec) -> WritingBackend:
        engine = WritingBackend(spec)
        engine.texts = texts
        return engine

    return make
