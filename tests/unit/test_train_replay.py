"""The held-out measure equals what the real loop accepts: same model, same text, greedy.

Run: python -m pytest tests/unit/test_train_replay.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from streamfuse.export.graphs import GraphShapes, Weights, build_methods
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.draft import StreamDrafter
from streamfuse.runtime.loop import Loop, Round
from streamfuse.runtime.tree import Tree
from streamfuse.train.data import Example, LowerStates, StreamDataset
from streamfuse.train.evaluate import Replay, draft_tables, follow, replay

WIDTH, TOP_K, NEW_TOKENS = 8, 6, 60


def backend_of(model: StreamFused) -> ReferenceBackend:
    streams = model.streams_config.num_streams
    methods = build_methods(Weights(model, GraphShapes(120, 8, ((WIDTH, WIDTH),), TOP_K)))
    spec = ModelSpec(120, tiny.VOCAB_SIZE, streams, TOP_K, 8, {f"verify_{WIDTH}": (WIDTH, WIDTH)})
    return ReferenceBackend(methods, spec, 4, model.streams_config.num_msa_layers, kv_heads=2, head_dim=8)


def rounds_of(model: StreamFused, prompt: list[int]) -> tuple[list[int], list[Round]]:
    """The loop's text and passes. It may write beyond NEW_TOKENS, so that no tree is cut short by the end."""
    rounds: list[Round] = []
    config = GenerationConfig(NEW_TOKENS + 16, width=WIDTH)
    loop = Loop(backend_of(model), list(prompt), config, StreamDrafter(draft_tables(model)), observe=rounds.append)
    list(loop.run())
    return loop.tokens, rounds


def counted(rounds: list[Round], start: int, end: int) -> Replay:
    """What `replay` counts, from the loop's passes: from the second one (the first has no streams) up to `end`."""
    tokens = calls = 0
    proposed, accepted = [0, 0, 0], [0, 0, 0]
    root = start
    for one in rounds[1:]:
        if root + 1 >= end:
            break
        emitted = min(len(one.walk.tokens), end - 1 - root)
        for depth in range(int(one.tree.depths.max())):
            proposed[depth] += 1
        for depth in range(min(len(one.walk.tokens) - 1, emitted)):
            accepted[depth] += 1
        tokens, calls, root = tokens + emitted, calls + 1, root + emitted
    return Replay(tokens, calls, tuple(proposed), tuple(accepted))


@pytest.mark.parametrize("parent_rank", [0, 4])
@pytest.mark.parametrize("vocab", [None, torch.arange(0, tiny.VOCAB_SIZE, 2)])
def test_replay_counts_what_the_loop_accepts(parent_rank: int, vocab: torch.Tensor | None, tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(eos_token_id=None), vocab, parent_rank=parent_rank)
    expected = Replay(0, 0, (0, 0, 0), (0, 0, 0))
    examples = []
    for prompt in ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3]):
        text, rounds = rounds_of(model, prompt)
        end = len(prompt) + NEW_TOKENS
        examples.append(Example(text[:end], len(prompt)))
        one = counted(rounds, len(prompt), end)
        expected = Replay(
            expected.tokens + one.tokens,
            expected.calls + one.calls,
            tuple(np.add(expected.proposed, one.proposed).tolist()),
            tuple(np.add(expected.accepted, one.accepted).tolist()),
        )
    states = LowerStates(model, examples, tmp_path / "lower")
    states.states = np.concatenate(  # not rounded to float16, so that no near tie turns
        [model.base.lower(torch.tensor([e.input_ids]), 2)[0].numpy() for e in examples]
    )
    found = replay(model, StreamDataset(examples, states, 0, len(examples)), WIDTH, TOP_K)
    assert found == expected
    assert found.tokens == 3 * (NEW_TOKENS - 1)
    assert 1 < found.call_reduction_ratio < 4  # a random model repeats itself, so some drafts are right
    assert 0 < found.acceptance_per_depth[0] <= 1


def test_a_path_is_followed_as_far_as_the_text_goes() -> None:
    tree = Tree(np.array([7, 1, 2, 3, 1]), np.array([-1, 0, 0, 1, 3]), np.array([0, 1, 1, 2, 3]), np.zeros(5))
    assert follow(tree, [1, 3, 1, 9]) == 3
    assert follow(tree, [1, 3]) == 2
    assert follow(tree, [2, 3]) == 1
    assert follow(tree, [9]) == 0
