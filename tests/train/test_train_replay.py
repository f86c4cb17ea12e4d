"""The held-out measure equals what the real loop accepts: same model, same text, greedy.

Run: python -m pytest tests/train/test_train_replay.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import tiny
import torch

from streamfuse.export.graphs import GraphShapes, Weights, build_methods
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.tree import Tree
from streamfuse.train.data import Example
from streamfuse.train.evaluate import draft_tables, follow, own_text, replay

WIDTH, TOP_K, NEW_TOKENS = 8, 6, 60


def backend_of(model: StreamFused) -> ReferenceBackend:
    streams = model.streams_config.num_streams
    methods = build_methods(Weights(model, GraphShapes(120, 8, ((WIDTH, WIDTH),), TOP_K)))
    spec = ModelSpec(120, tiny.VOCAB_SIZE, streams, TOP_K, 8, {f"verify_{WIDTH}": (WIDTH, WIDTH)})
    return ReferenceBackend(methods, spec, [(2, 8)] * 4, model.num_lower_layers)


def rounds_of(model: StreamFused, prompt: list[int]) -> tuple[list[int], list[Round]]:
    """The loop's text and passes. It may write beyond NEW_TOKENS, so that no tree is cut short by the end."""
    rounds: list[Round] = []
    config = GenerationConfig(NEW_TOKENS + 16, width=WIDTH)
    loop = Loop(backend_of(model), list(prompt), config, StreamDrafter(draft_tables(model)), observe=rounds.append)
    list(loop.run())
    return loop.tokens, rounds


@dataclass
class Counted:
    """What `replay` counts."""

    tokens: int = 0
    calls: int = 0
    proposed: list[int] = field(default_factory=lambda: [0, 0, 0])
    accepted: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, rounds: list[Round], start: int, end: int) -> None:
        """The loop's passes: from the second one (the first has no streams) up to `end`."""
        root = start
        for one in rounds[1:]:
            if root + 1 >= end:
                break
            emitted = min(len(one.walk.tokens), end - 1 - root)
            for depth in range(int(one.tree.depths.max())):
                self.proposed[depth] += 1
            for depth in range(min(len(one.walk.tokens) - 1, emitted)):
                self.accepted[depth] += 1
            self.tokens, self.calls, root = self.tokens + emitted, self.calls + 1, root + emitted


@pytest.mark.parametrize("parent_rank", [0, 4])
@pytest.mark.parametrize("vocab", [None, torch.arange(0, tiny.VOCAB_SIZE, 2)])
def test_replay_counts_what_the_loop_accepts(parent_rank: int, vocab: torch.Tensor | None) -> None:
    torch.manual_seed(3)  # of a model that repeats itself, so that some drafts are right
    model = tiny.fused(tiny.base(eos_token_id=None), vocab, parent_rank=parent_rank)
    expected, examples = Counted(), []
    for prompt in ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3]):
        text, rounds = rounds_of(model, prompt)
        end = len(prompt) + NEW_TOKENS
        examples.append(Example(text[:end], len(prompt)))
        expected.add(rounds, len(prompt), end)
    results = replay(model, examples, (WIDTH, 3), TOP_K)
    found = results[WIDTH]
    assert (found.tokens, found.calls) == (expected.tokens, expected.calls)
    assert (list(found.proposed), list(found.accepted)) == (expected.proposed, expected.accepted)
    assert found.tokens == 3 * (NEW_TOKENS - 1)
    assert 1 < found.call_reduction_ratio < 4  # a random model repeats itself, so some drafts are right
    assert 0 < found.acceptance_per_depth[0] <= 1
    assert sum(found.acceptance_per_rank[0]) == pytest.approx(found.acceptance_per_depth[0])
    assert 1 <= results[3].call_reduction_ratio <= found.call_reduction_ratio


def test_a_tuned_base_is_measured_on_what_it_writes_itself() -> None:
    model = tiny.fused(tiny.base(), base_rank=2, base_layers=3)
    prompts = [[3, 1, 4], [1, 5, 9, 2]]
    texts = own_text(model, prompts, 10)
    for example, prompt in zip(texts, prompts, strict=True):
        assert example.input_ids[: example.start] == prompt
        logits = model.merged().base(torch.tensor([example.input_ids]))[0]
        assert example.input_ids[example.start :] == logits[example.start - 1 : -1].argmax(-1).tolist()


def test_a_path_is_followed_as_far_as_the_text_goes() -> None:
    tree = Tree(np.array([7, 1, 2, 3, 1]), np.array([-1, 0, 0, 1, 3]), np.array([0, 1, 1, 2, 3]), np.zeros(5))
    assert follow(tree, [1, 3, 1, 9]) == [1, 3, 4]
    assert follow(tree.first(4), [1, 3, 1, 9]) == [1, 3]
    assert follow(tree, [1, 3]) == [1, 3]
    assert follow(tree, [2, 3]) == [2]
    assert follow(tree, [9]) == []
