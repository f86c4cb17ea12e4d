"""Constraints in the reference loop: its guide, its drafts, and what it refuses.

tests/core/test_core_constraints.py compares its texts with the core's. Run: pytest
tests/runtime/test_runtime_constraints.py
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
from automata import Automaton, GrammarFailed, random_automaton
from fakes import ArithmeticBackend, spec

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.accept import Target, Walk
from streamfuse.runtime.reference.draft import DraftTables, grow, grow_along
from streamfuse.runtime.reference.guide import FORCED_LOG_PROB, FREE, Guide
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.tree import Tree

PAIRS = Automaton([{1: 1}, {2: 2}, {3: 0, 4: 3}, {}], [3])  # (1 2 3)* 1 2 4
ANYTHING = Automaton([dict.fromkeys(range(64), 0)], [0])


def test_a_guide_goes_from_path_to_path_and_back_to_the_text() -> None:
    automaton = copy.deepcopy(PAIRS)
    guide = Guide(automaton, ends=(9,), widest=8)
    assert [guide.forced(path) for path in ((), (1,), (1, 2))] == [1, 2, None]
    assert guide.may_follow((1, 2), [3, 4, 5, 9]) == [True, True, False, False]
    assert guide.forced((1, 2, 3)) == 1, "the next round begins"
    assert guide.may_follow((1, 2, 4), [1, 9]) == [False, False], "nothing follows the end"
    guide.take((1, 2))
    assert len(automaton.states) == 3
    mask = guide.mask(())
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [3, 4]
    assert not guide.is_complete()
    guide.take((4,))
    assert guide.must_end()
    with pytest.raises(ValueError, match="nothing can follow a complete text"):
        guide.mask(())


def test_end_tokens_are_allowed_where_the_text_may_end_and_nothing_follows_them() -> None:
    guide = Guide(copy.deepcopy(ANYTHING), ends=(9, 1000))
    assert guide.allows((), [8, 9]) == [True, True]
    assert guide.may_follow((9,), [8, 9]) == [False, False]
    assert guide.forced((9,)) is None
    guide = Guide(copy.deepcopy(PAIRS), ends=(1,))
    assert guide.allows((), [1]) == [False], "inside the grammar an end token is refused, whatever it says"
    assert guide.forced(()) is None
    with pytest.raises(ValueError, match="allows no token of this vocabulary after the first 0 tokens"):
        guide.mask(())


@pytest.mark.parametrize("function", ["accept", "state", "allows", "forced"])
def test_a_draft_ends_where_the_constraint_fails_and_a_choice_raises_there(function: str) -> None:
    failing = copy.deepcopy(PAIRS)
    failing.raises = (function, 2)
    guide = Guide(failing, widest=1)
    assert guide.forced((1,)) == 2, "before it nothing has failed"
    assert guide.may_follow((1, 2), [3]) == [function == "forced"]
    assert guide.forced((1, 2)) is None
    if function != "forced":
        with pytest.raises(GrammarFailed):
            guide.allows((1, 2), [3])
    assert guide.forced(()) == 1
    assert len(failing.states) == 1, "and it goes back to the text"


def test_growth_along_a_constraint_that_allows_everything_is_growth_without_one(rng: np.random.Generator) -> None:
    for _ in range(100):
        k, rank = int(rng.integers(1, 9)), int(rng.integers(0, 5))
        left, right = (rng.normal(size=(64, rank)).astype(np.float16) for _ in range(2))
        gate = rng.normal(size=(4, rank)).astype(np.float32)
        tables = DraftTables.of(left, right, gate, np.arange(64, dtype=np.int32))
        ids = np.stack([rng.permutation(64)[:k] for _ in range(4)])
        log_probs = -np.sort(rng.integers(1, 4, (4, k)), axis=1).astype(np.float32)  # many ties
        width, depth = int(rng.integers(1, 18)), int(rng.integers(0, 6))
        expected = grow(7, ids, log_probs, width, depth, tables)
        for guide in (FREE, Guide(copy.deepcopy(ANYTHING), widest=18)):
            found = grow_along(guide, 7, (ids, log_probs), width, depth, tables)
            assert found.tokens.tolist() == expected.tokens.tolist()
            assert found.parents.tolist() == expected.parents.tolist()
            assert found.log_probs.tobytes() == expected.log_probs.tobytes()


def test_refused_candidates_leave_their_probability_to_the_others() -> None:
    guide = Guide(Automaton([dict.fromkeys((10, 12), 0)], [0]), widest=8)
    ids, log_probs = np.array([[10, 11, 12, 13]]), np.log(np.array([[0.4, 0.3, 0.2, 0.05]], np.float32))
    tree = grow_along(guide, 7, (ids, log_probs), 8, 4, None)
    assert tree.tokens.tolist() == [7, 10, 12]
    np.testing.assert_allclose(np.exp(tree.log_probs), [1, 0.4 / 0.65, 0.2 / 0.65], rtol=1e-6)


def test_forced_tokens_are_drafted_without_streams_and_beyond_them() -> None:
    guide = Guide(copy.deepcopy(PAIRS), widest=8)
    assert grow_along(guide, 7, None, 8, 4, None).tokens.tolist() == [7, 1, 2], "then there is a choice"
    ids, log_probs = np.array([[50], [51], [3]]), np.full((3, 1), -0.1, np.float32)
    tree = grow_along(guide, 7, (ids, log_probs), 8, 6, None)
    assert tree.tokens.tolist() == [7, 1, 2, 3, 1, 2]
    assert tree.log_probs[2] == 2 * FORCED_LOG_PROB


class StrayDrafter:
    """Knows no constraint: drafts a chain of a token that follows nothing, or of the right ones."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def reset(self) -> None: ...

    def learn(self, output: PassOutput, index: int) -> None: ...

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        chain = [tokens[-1], *self.tokens[: min(width - 1, depth)]]
        return Tree.of(chain, range(-1, len(chain) - 1))


def test_drafts_that_know_no_constraint_change_no_token(rng: np.random.Generator) -> None:
    for seed in range(40):
        automaton = random_automaton(rng)
        sampling = SamplingConfig(temperature=float(seed % 2), seed=seed)
        texts: list[tuple[list[int], str]] = []
        for drafter in (None, StrayDrafter([63] * 7), StrayDrafter(rng.integers(0, 64, 7).tolist())):
            config = GenerationConfig(20, sampling, speculative=drafter is not None, width=8)
            loop = Loop(ArithmeticBackend(spec()), [3, 1], config, constraint=copy.deepcopy(automaton))
            if drafter is not None:
                if texts:  # all tokens of the text and more behind its end
                    drafter.tokens = [*texts[0][0][2:], 1, 2, 3] if seed % 3 else drafter.tokens
                loop.drafter = drafter
            try:
                list(loop.run())
                texts.append((loop.tokens, loop.counts.finish_reason))
            except ValueError as error:
                texts.append((loop.tokens, str(error)))
        assert texts[0] == texts[1] == texts[2]


class FirstAcceptor:
    """Accepts something else than the model's own choice."""

    needs_logits = False

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        raise AssertionError("not asked")


def test_what_a_loop_cannot_keep_to_is_refused() -> None:
    other = Loop(ArithmeticBackend(spec()), [3, 1], acceptor=FirstAcceptor(), constraint=copy.deepcopy(PAIRS))
    with pytest.raises(ValueError, match="a constraint needs the acceptor that matches"):
        list(other.run())
    compiled = Loop(ArithmeticBackend(spec()), [3, 1], GenerationConfig(regex="[a-z]+"))
    with pytest.raises(ValueError, match="give the loop a constraint"):
        list(compiled.run())
