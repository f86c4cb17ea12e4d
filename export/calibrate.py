"""How far the streams keep their promises, measured as the bundle is made: the plan's first guess (docs/runtime.md).

The bundle's own engine answers a few prompts greedily at its widest tree; per depth the hits are counted against what
the tree promised, as the plan does while running. The prompts are those that the adapter was held out to in training,
so that a model tuned for a task is asked what it is for; where it names none, a few questions. A user's text may
differ, so the plan gives these counts little weight and follows what it sees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamfuse.model.checkpoint import read_adapter
from streamfuse.runtime.acceptance import Calibration, RankShares
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.text_io import TextError, TextIO

_QUESTIONS = (
    "Why is the sky blue?",
    "Write a short letter to a friend about a day at the sea.",
    "List five things that one needs for a camping trip.",
    "Write a Python function that reverses a string.",
    "Put into one sentence: The bridge was closed in May. It opened again in June, with a new deck and two new lanes.",
    "A train leaves at 9:40 and takes 95 minutes. When does it arrive?",
)
_NEW_TOKENS = 48
_MOST_RATIO = 10.0  # what draft.safetensors may hold


def held_out_prompts(adapter: Path, vocab_size: int) -> list[list[int]]:
    """Token ids of the prompts that an adapter file carries (train/main.py); empty where it carries none of this model.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        prompts = json.loads(read_adapter(adapter)[2].get("prompts", "[]"))
        fitting = [[int(token) for token in prompt] for prompt in prompts if prompt]
    except (ValueError, TypeError):
        return []
    return [prompt for prompt in fitting if 0 <= min(prompt) <= max(prompt) < vocab_size]


def questions(text: TextIO) -> list[list[int]]:
    """The questions as the bundle's own template puts them; plainly where it has none, or takes other messages."""
    try:
        return [text.encode_chat([{"role": "user", "content": question}]) for question in _QUESTIONS]
    except TextError:
        return [text.encode(question) for question in _QUESTIONS]


@dataclass(frozen=True, slots=True)
class Measured:
    """What draft.safetensors holds of it, G streams; empty where no prompt fits or none drafts.

    Attributes:
        calibration: [G] hits per promised hit at each depth.
        acceptance: [G][RANKS] share of the paths that went on with the child of this rank, per depth.
    """

    calibration: list[float] = field(default_factory=list)
    acceptance: list[list[float]] = field(default_factory=list)


def calibrate(backend: Backend, tables: DraftTables, prompts: Sequence[Sequence[int]]) -> Measured:
    """Answer the prompts and count.

    `backend` must be empty, and is empty afterwards. What a depth lacks in sights its ratio makes up towards 1.
    """
    spec = backend.spec
    if not spec.num_streams or not spec.widths:
        return Measured()
    ranks = RankShares(spec.num_streams)
    seen = Calibration((), spec.num_streams, forget=1.0)
    config = GenerationConfig(_NEW_TOKENS, width=max(rows for rows, _ in spec.widths.values()))

    def observe(one: Round) -> None:
        seen.learn(one.tree, one.walk.tokens)
        ranks.learn(one.tree, one.walk.tokens)

    for prompt in prompts:
        if len(prompt) + _NEW_TOKENS <= spec.capacity:
            loop = Loop(backend, list(prompt), config, StreamDrafter(tables), observe=observe)
            for _ in loop.run():
                pass
            backend.truncate(0)
    if not seen.sights:
        return Measured()
    return Measured([min(ratio, _MOST_RATIO) for ratio in seen.per_depth()], ranks.shares())
