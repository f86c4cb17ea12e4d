"""Acceptors: what a node gives is integrated exactly, then sampled through the loop.

Run: python -m pytest tests/research/test_acceptors.py
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from fakes import ArithmeticBackend, logits_after, spec
from scipy import special
from tiers import cases

from streamfuse.extras import MissingExtra
from streamfuse.research.acceptors import (
    BlockwiseAcceptor,
    CertainAcceptor,
    DrawAcceptor,
    Exact,
    Match,
    NamedAcceptor,
    SequoiaAcceptor,
    SpecInferAcceptor,
    SpecTrAcceptor,
    SpeculativeAcceptor,
    TopK,
    TransportAcceptor,
    TypicalAcceptor,
    Within,
)
from streamfuse.research.acceptors.exact import acceptance, all_draws, loss, outcome
from streamfuse.research.acceptors.spectr import division_factor
from streamfuse.research.proposal import Grower, How, Proposal, ProposedTree, propose
from streamfuse.research.random import Purpose, uniform
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.accept import Target
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.sampling import Sampler
from streamfuse.runtime.reference.tree import Tree

EXACT = 1e-12
CHI_SQUARE_FLOOR = 1e-4  # of p-values, each from a fixed seed

LOSSLESS: list[tuple[DrawAcceptor, How]] = [
    (SpeculativeAcceptor(), How.INDEPENDENT),
    (SpecInferAcceptor(), How.INDEPENDENT),
    (SpecTrAcceptor(), How.INDEPENDENT),
    (SequoiaAcceptor(), How.WITHOUT_REPLACEMENT),
    (CertainAcceptor(), How.CHOSEN),
    (CertainAcceptor(), How.INDEPENDENT),
    (CertainAcceptor(), How.WITHOUT_REPLACEMENT),
]


def named(case: object) -> str:
    return getattr(case, "name", getattr(case, "value", str(case)))


def distributions(rng: np.random.Generator, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs p, q over 2 to 4 tokens: spread, peaked, with zeros, disjoint, equal."""
    for case in range(count):
        size = 2 + case % 3
        p, q = rng.dirichlet(np.full(size, (0.2, 1.0, 5.0)[case % 3]), 2)
        if case % 4 == 1:
            p[rng.integers(size)] = 0
            q[rng.integers(size)] = 0
        if case % 8 == 2:
            p[size // 2 :], q[: size // 2] = 0, 0
        if case % 8 == 4:
            q = p.copy()
        yield (p / p.sum(), q / q.sum()) if p.sum() and q.sum() else (np.eye(size)[0], np.eye(size)[1])


@pytest.mark.parametrize(("acceptor", "how"), LOSSLESS, ids=named)
def test_a_lossless_node_gives_the_distribution_of_the_target(
    acceptor: DrawAcceptor, how: How, rng: np.random.Generator
) -> None:
    assert acceptor.lossless
    counts = (1,) if isinstance(acceptor, SpeculativeAcceptor) else (1, 2, 3, 5)
    for case, (p, q) in enumerate(distributions(rng, 36)):
        count = min(counts[case // 3 % len(counts)], 5 if len(p) < 4 else 3)
        found = outcome(acceptor, p, q, count, how)
        np.testing.assert_allclose(found, p, rtol=0, atol=EXACT, err_msg=f"p {p} q {q} k {count}")
        assert loss(acceptor, p, q, count, how) < EXACT


def test_the_draws_that_are_enumerated_are_those_that_are_drawn() -> None:
    q = np.array([0.5, 0.3, 0.2, 0.0])
    for how in (How.INDEPENDENT, How.WITHOUT_REPLACEMENT):
        expected = dict(all_draws(q, 3, how))
        assert sum(expected.values()) == pytest.approx(1, abs=EXACT)
        drawn = Counter(propose(q, 3, how, 7, position).draws for position in range(2000))
        assert drawn.keys() <= expected.keys()
        observed = np.array([drawn[draws] for draws in expected])
        assert chi_square_p(observed, np.array(list(expected.values()))) > CHI_SQUARE_FLOOR
    assert list(all_draws(q, 2, How.CHOSEN)) == [((0, 1), 1.0)]


def test_speculative_sampling_accepts_what_two_distributions_share(rng: np.random.Generator) -> None:
    for p, q in distributions(rng, 24):
        assert acceptance(SpeculativeAcceptor(), p, q, 1, How.INDEPENDENT) == pytest.approx(
            np.minimum(p, q).sum(), abs=EXACT
        )


@pytest.mark.parametrize("how", [How.INDEPENDENT, How.WITHOUT_REPLACEMENT], ids=named)
def test_with_one_draw_all_methods_are_speculative_sampling(how: How, rng: np.random.Generator) -> None:
    for p, q in distributions(rng, 24):
        for draws, _ in all_draws(q, 1, how):
            proposal = Proposal(draws, how, None, q)
            expected = SpeculativeAcceptor().verdict(p, proposal)
            for acceptor in (SpecTrAcceptor(), SpecInferAcceptor(), SequoiaAcceptor()):
                found = acceptor.verdict(p, proposal)
                np.testing.assert_allclose(found.accept, expected.accept, rtol=0, atol=EXACT)
                if expected.rejected > EXACT:
                    np.testing.assert_allclose(found.otherwise, expected.otherwise, rtol=0, atol=EXACT)


def test_the_division_factor_of_spectr_solves_its_equation(rng: np.random.Generator) -> None:
    for case, (p, q) in enumerate(distributions(rng, 40)):
        count = 1 + case % 5
        rho = division_factor(p, q, count)
        beta = np.minimum(q, p / rho).sum()
        assert 1 <= rho <= count
        assert 1 - (1 - beta) ** count == pytest.approx(rho * beta, abs=EXACT)
        accepted = acceptance(SpecTrAcceptor(), p, q, min(count, 3), How.INDEPENDENT)
        if count <= 3:
            assert accepted == pytest.approx(rho * beta, abs=EXACT)


def test_no_rule_accepts_more_than_the_optimal_plan_and_spectr_comes_near(rng: np.random.Generator) -> None:
    plan = TransportAcceptor()
    for case, (p, q) in enumerate(distributions(rng, 6)):
        count = 2 + (case % 3 == 0)
        optimal = acceptance(plan, p, q, count, How.INDEPENDENT)
        spectr = acceptance(SpecTrAcceptor(), p, q, count, How.INDEPENDENT)
        assert (1 - (1 - 1 / count) ** count) * optimal - 1e-9 <= spectr <= optimal + 1e-9
        for acceptor in (SpecInferAcceptor(), CertainAcceptor()):
            assert acceptance(acceptor, p, q, count, How.INDEPENDENT) <= optimal + 1e-9
        np.testing.assert_allclose(outcome(plan, p, q, count, How.INDEPENDENT), p, rtol=0, atol=1e-9)
        without = acceptance(plan, p, q, count, How.WITHOUT_REPLACEMENT)
        assert acceptance(SequoiaAcceptor(), p, q, count, How.WITHOUT_REPLACEMENT) <= without + 1e-9


def test_the_optimal_plan_of_two_fair_draws_is_the_one_by_hand() -> None:
    """p is sure of token 0, which is among two fair draws of two tokens in three of four cases."""
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert acceptance(TransportAcceptor(), p, q, 2, How.INDEPENDENT) == pytest.approx(0.75)
    assert acceptance(SpecTrAcceptor(), p, q, 2, How.INDEPENDENT) == pytest.approx(0.75)
    assert acceptance(SpecInferAcceptor(), p, q, 2, How.INDEPENDENT) == pytest.approx(0.75)


def test_sequoia_covers_a_vocabulary_that_others_do_not(rng: np.random.Generator) -> None:
    """The example of Sequoia's appendix F.3: draws without replacement find the only token of p."""
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert acceptance(SequoiaAcceptor(), p, q, 2, How.WITHOUT_REPLACEMENT) == 1
    for p, q in distributions(rng, 24):
        full = acceptance(SequoiaAcceptor(), p, q, len(p), How.WITHOUT_REPLACEMENT)
        assert full == pytest.approx(1, abs=EXACT)


def test_children_that_a_rule_chose_are_accepted_with_the_sum_of_their_probabilities(rng: np.random.Generator) -> None:
    for p, q in distributions(rng, 24):
        best = np.argsort(-q, kind="stable")[:2]
        assert acceptance(CertainAcceptor(), p, q, 2, How.CHOSEN) == pytest.approx(p[best].sum(), abs=EXACT)


def test_the_loss_of_typical_acceptance_is_what_it_takes_from_unlikely_tokens() -> None:
    """By hand: of p = .6, .3, .1, tokens 0 and 1 pass (min(.09, .3 exp(-.898)) = .09, so 2 does too)."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
    typical = TypicalAcceptor()
    np.testing.assert_allclose(outcome(typical, p, q, 1, How.INDEPENDENT), q)
    assert loss(typical, p, q, 1, How.INDEPENDENT) == pytest.approx(0.5)
    strict = TypicalAcceptor(epsilon=0.2, delta=1.0)
    np.testing.assert_allclose(outcome(strict, p, q, 1, How.INDEPENDENT), [0.8, 0.2, 0])
    assert loss(strict, p, q, 1, How.INDEPENDENT) == pytest.approx(0.2)
    assert not typical.lossless


def test_the_threshold_of_typical_acceptance_falls_with_the_entropy() -> None:
    flat = np.full(64, 1 / 64)  # .3 exp(-ln 64) = .3 / 64: all pass
    assert TypicalAcceptor().passes(flat, range(64), 1).all()
    assert not TypicalAcceptor(delta=1.0).passes(flat, range(64), 1).any(), "the comparison is strict"
    peaked = np.array([0.92, 0.05, 0.03])
    assert TypicalAcceptor().passes(peaked, range(3), 1).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("criterion", "passed", "lost"),
    [
        (Exact(), [False, False, True, False], 0.0),
        (TopK(1), [False, False, True, False], 0.0),
        (TopK(2), [True, False, True, False], 0.1),
        (Within(1), [False, True, True, True], 0.6),
        (Within(1, lambda a, b: 2 * abs(a - b)), [False, False, True, False], 0.0),
    ],
    ids=["exact", "best", "best 2", "within 1", "within 1, another distance"],
)
def test_blockwise_criteria_pass_and_lose_what_they_say(criterion: object, passed: list[bool], lost: float) -> None:
    p, q = np.array([0.3, 0.1, 0.4, 0.2]), np.array([0.1, 0.2, 0.3, 0.4])
    acceptor = BlockwiseAcceptor(criterion)
    assert acceptor.passes(p, range(4), 1).tolist() == passed
    assert loss(acceptor, p, q, 1, How.INDEPENDENT) == pytest.approx(lost)
    assert acceptor.lossless == isinstance(criterion, Exact)
    assert BlockwiseAcceptor(criterion, min_block=2).passes(p, range(4), 1).all()
    assert BlockwiseAcceptor(criterion, min_block=2).passes(p, range(4), 2).tolist() == passed


# The loop.

MODEL = spec(capacity=32, vocab_size=4, num_streams=0, widths={"verify_4": (4, 4), "verify_8": (8, 8)})
PRUNING = spec(capacity=32, vocab_size=4, num_streams=0, widths={"verify_8": (8, 3)})


class RandomDrafter:
    """Draws from a distribution that has to do with the target's only a little; two levels, `count` draws per node.

    With `sequences` a node has as many draws as there are sequences through it: `count` at the root.
    """

    def __init__(self, how: How, count: int, seed: int = 0, sequences: bool = False) -> None:
        self.how, self.count, self.seed, self.sequences = how, count, seed, sequences

    def reset(self) -> None:
        pass

    def learn(self, output: PassOutput, index: int) -> None:
        pass

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        grower = Grower(tokens[-1], self.seed, len(tokens) - 1)
        leaves = [(0, list(tokens))]
        for _ in range(min(depth, 2)):
            below = []
            for row, context in leaves:
                q = softmax(logits_after(context[1:] + context[:1], 4) / 4)
                count = self.count
                if self.sequences and row > 0:
                    count = grower.proposals[grower.parents[row]].draws.count(grower.tokens[row])
                rows = grower.propose(row, q, count, self.how)
                below += [(child, [*context, grower.tokens[child]]) for child in rows]
            leaves = below
        return grower.done().first(width)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def text_of(acceptor: NamedAcceptor, drafter: RandomDrafter, sampling: SamplingConfig, count: int, model=MODEL) -> Loop:
    loop = Loop(
        ArithmeticBackend(model, mixed=True), [1, 2], GenerationConfig(count, sampling, width=8), drafter, acceptor
    )
    list(loop.run())
    assert loop.backend.cache == loop.tokens[: loop.backend.length]
    return loop


def chi_square_p(observed: np.ndarray, probs: np.ndarray) -> float:
    """The p-value of counts under probabilities, cells that expect less than 5 taken together."""
    expected = probs * observed.sum()
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(special.chdtrc(len(expected) - 1, statistic))


def pairs(temperature: float) -> np.ndarray:
    """[16]: probabilities of the first two tokens after the prompt."""
    first = softmax(logits_after([1, 2], 4) / temperature)
    return np.concatenate([first[a] * softmax(logits_after([1, 2, a], 4) / temperature) for a in range(4)])


SAMPLED = [
    pytest.param(SpeculativeAcceptor(), How.INDEPENDENT, 1, MODEL, id="speculative sampling"),
    pytest.param(SpecTrAcceptor(), How.INDEPENDENT, 2, MODEL, id="SpecTr"),
    pytest.param(SpecTrAcceptor(), How.INDEPENDENT, 3, MODEL, id="SpecTr, sequences"),
    pytest.param(SpecInferAcceptor(), How.INDEPENDENT, 2, MODEL, id="SpecInfer"),
    pytest.param(TransportAcceptor(), How.INDEPENDENT, 2, MODEL, id="optimal transport"),
    pytest.param(CertainAcceptor(), How.CHOSEN, 2, MODEL, id="EAGLE-2"),
    pytest.param(SequoiaAcceptor(), How.WITHOUT_REPLACEMENT, 3, PRUNING, id="Sequoia, pruned"),
]


@pytest.mark.parametrize(("acceptor", "how", "count", "model"), SAMPLED)
def test_sampled_texts_have_the_distribution_of_plain_decoding(
    acceptor: DrawAcceptor, how: How, count: int, model: object, request: pytest.FixtureRequest
) -> None:
    seen, accepted = np.zeros(16, np.int64), 0
    sequences = request.node.callspec.id.endswith("sequences")
    texts = cases(200, 400)  # in 200 the check below finds a lossy acceptor
    for seed in range(texts):
        drafter = RandomDrafter(how, count, seed, sequences)
        loop = text_of(acceptor, drafter, SamplingConfig(temperature=3.0, seed=seed), 3, model)
        seen[4 * loop.tokens[2] + loop.tokens[3]] += 1
        accepted += loop.counts.draft_tokens_accepted
    assert accepted > 150 * texts // 400
    assert chi_square_p(seen, pairs(3.0)) > CHI_SQUARE_FLOOR


def test_the_check_of_samples_finds_a_lossy_acceptor() -> None:
    seen = np.zeros(16, np.int64)
    for seed in range(200):
        loop = text_of(
            TypicalAcceptor(), RandomDrafter(How.INDEPENDENT, 1, seed), SamplingConfig(temperature=3.0, seed=seed), 3
        )
        seen[4 * loop.tokens[2] + loop.tokens[3]] += 1
    assert chi_square_p(seen, pairs(3.0)) < CHI_SQUARE_FLOOR


@pytest.mark.parametrize("model", [MODEL, PRUNING], ids=["whole", "pruned"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_texts_are_those_of_plain_decoding(model: object, penalty: float) -> None:
    sampling = SamplingConfig(repetition_penalty=penalty)
    plain = Loop(ArithmeticBackend(model), [1, 2], GenerationConfig(20, sampling, speculative=False))
    list(plain.run())
    acceptors = [(Match(), How.CHOSEN), *LOSSLESS, (BlockwiseAcceptor(), How.CHOSEN), (TypicalAcceptor(), How.CHOSEN)]
    for acceptor, how in acceptors:
        loop = text_of(acceptor, RandomDrafter(how, 2), sampling, 20, model)
        assert loop.tokens == plain.tokens
        assert loop.counts.draft_tokens_accepted > 0


def test_without_draws_a_text_is_plain_decodings_token_for_token() -> None:
    sampling = SamplingConfig(temperature=1.0, top_k=3, seed=5)
    plain = Loop(ArithmeticBackend(MODEL), [1, 2], GenerationConfig(20, sampling, speculative=False))
    list(plain.run())
    assert text_of(SequoiaAcceptor(), RandomDrafter(How.CHOSEN, 0), sampling, 20).tokens == plain.tokens


def test_a_run_repeats_and_another_seed_is_another_text() -> None:
    texts = [
        text_of(SpecTrAcceptor(), RandomDrafter(How.INDEPENDENT, 2, 3), SamplingConfig(temperature=3.0, seed=seed), 20)
        for seed in (3, 3, 4)
    ]
    assert texts[0].tokens == texts[1].tokens != texts[2].tokens


# Walks.


def one_pass(tree: Tree, logits: np.ndarray, temperature: float = 1.0, kept: list[int] | None = None):
    """Output and target for logits [n, V]."""
    rows = list(range(len(tree))) if kept is None else kept
    output = PassOutput(logits[rows].astype(np.float32), logits[rows].argmax(axis=1), np.array(rows))
    return output, Target(Sampler(SamplingConfig(temperature=temperature)), output)


def test_typical_takes_the_longest_path_and_then_the_likeliest() -> None:
    """Root 0 with children 1, 2 and 3; 1 and 2 have a child each. 1 is likelier than 2; their children are alike."""
    tree = Tree.of([0, 1, 2, 3, 2, 1], [-1, 0, 0, 0, 1, 2])
    logits = np.log(np.array([
        [0.1, 0.4, 0.3, 0.2], [0.1, 0.1, 0.5, 0.3], [0.1, 0.5, 0.1, 0.3], [0.7, 0.1, 0.1, 0.1],
        [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1],
    ]))  # fmt: skip
    output, target = one_pass(tree, logits)
    walk = TypicalAcceptor().accept(tree, output, [0], target)
    assert (walk.rows, walk.tokens) == ([0, 1, 4], [1, 2, 3])
    assert (walk.ranks, walk.offers, walk.last) == ([0, 0], [3, 1, 0], 4)
    output, target = one_pass(tree, logits, kept=[0, 2, 5, 3])
    walk = TypicalAcceptor().accept(tree, output, [0], target)
    assert (walk.rows, walk.tokens, walk.last) == ([0, 2, 5], [2, 1, 0], 2), "pruned rows are on no path"


def test_a_smallest_block_is_delivered_whatever_the_verifier_says() -> None:
    tree = Tree.of([0, 1, 1, 1], [-1, 0, 1, 2])
    logits = np.tile(np.array([3.0, 0.0, 2.0, 1.0]), (4, 1))
    for least, tokens in ((1, [0]), (2, [1, 0]), (3, [1, 1, 0]), (9, [1, 1, 1, 0])):
        output, target = one_pass(tree, logits, 0.0)
        walk = BlockwiseAcceptor(min_block=least).accept(tree, output, [0], target)
        assert walk.tokens == tokens
        assert len(walk.tokens) >= min(least, 4)


def test_an_accepted_draw_without_a_row_ends_the_block() -> None:
    """Both draws of the root are token 1, of which the target is sure; its row was cut, or pruned."""
    tree = Tree.of([0, 1], [-1, 0])
    q = np.array([0.0, 1.0])
    drawn = ProposedTree(
        tree.tokens, tree.parents, tree.depths, tree.log_probs, None, {0: Proposal((1, 1), How.INDEPENDENT, None, q)}
    )
    logits = np.array([[0.0, 90.0], [90.0, 0.0]])
    output, target = one_pass(drawn, logits)
    assert SpecTrAcceptor().accept(drawn, output, [0], target).tokens == [1, 0]
    for cut, kept in ((drawn.first(1), [0]), (drawn, [0])):
        output, target = one_pass(cut, logits, kept=kept)
        walk = SpecTrAcceptor().accept(cut, output, [0], target)
        assert (walk.rows, walk.tokens, walk.last) == ([0], [1], 0)


# What is refused, and the numbers.


def test_draws_that_a_proof_does_not_cover_are_refused() -> None:
    p = q = np.array([0.5, 0.5])
    two = Proposal((0, 1), How.WITHOUT_REPLACEMENT, None, q)
    with pytest.raises(ValueError, match="one draw per node, not 2"):
        SpeculativeAcceptor().verdict(p, two)
    for acceptor in (SpecTrAcceptor(), SpecInferAcceptor()):
        with pytest.raises(ValueError, match="takes draws that are independent, not without replacement"):
            acceptor.verdict(p, two)
    with pytest.raises(ValueError, match="takes draws that are without replacement, not chosen"):
        SequoiaAcceptor().verdict(p, Proposal((0, 1)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Proposal((1, 1)), "must differ"),
        (lambda: Proposal((1,), How.INDEPENDENT), "need the probabilities"),
        (lambda: Proposal((1,), How.INDEPENDENT, None, np.array([0.5, 0.4])), "sum to 1"),
        (lambda: Proposal((1,), How.INDEPENDENT, np.array([3]), np.array([1.0])), "not among the candidates"),
        (lambda: Proposal((2,), How.INDEPENDENT, None, np.array([0.5, 0.5])), "outside the 2 candidates"),
        (lambda: Proposal((1,), How.INDEPENDENT, None, np.array([1.0, 0.0])), "have probability 0"),
        (lambda: Proposal((1,), How.WITHOUT_REPLACEMENT, None, np.array([1.0, 0.0])), "have probability 0"),
        (lambda: Proposal((1,), How.INDEPENDENT, np.array([1, 2]), np.array([1.0])), "one probability for each id"),
        (lambda: Proposal((1,)).distribution(3), "no distribution"),
        (lambda: TypicalAcceptor(epsilon=0), "epsilon must be"),
        (lambda: BlockwiseAcceptor(min_block=0), "min_block must be"),
        (lambda: TopK(0), "k must be"),
        (lambda: Within(-1), "epsilon must not"),
        (lambda: uniform(0, 0, Purpose.DRAFT, 2**32), "place must be"),
        (lambda: propose(np.ones(1), 1, How.CHOSEN, 0, 0, row=2**16), "must be below"),
    ],
)
def test_what_does_not_fit_is_said(wrong, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        wrong()


def test_blockwise_is_for_greedy_texts_only() -> None:
    output, target = one_pass(Tree.root(0), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="temperature must be 0"):
        BlockwiseAcceptor().accept(Tree.root(0), output, [0], target)


def test_the_optimal_plan_asks_for_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    half = np.array([0.5, 0.5])
    with pytest.raises(MissingExtra, match=r"needs scipy: pip install 'streamfuse\[research\]'"):
        acceptance(TransportAcceptor(), half, half, 1, How.INDEPENDENT)


def test_numbers_of_different_uses_are_different() -> None:
    uses = itertools.product((1, 2), (0, 9), Purpose, (0, 1), (0, 1))
    numbers = [uniform(*use) for use in uses]
    assert len(set(numbers)) == len(numbers) == 48
    assert all(0 <= number < 1 for number in numbers)


def test_listed_candidates_are_the_same_as_a_vocabulary_in_which_others_have_no_probability() -> None:
    ids, probs = np.array([6, 2, 4]), np.array([0.5, 0.3, 0.2])
    dense = np.zeros(8)
    dense[ids] = probs
    listed = Proposal((2, 6), How.WITHOUT_REPLACEMENT, ids, probs)
    whole = Proposal((2, 6), How.WITHOUT_REPLACEMENT, None, dense)
    for index in range(2):
        np.testing.assert_allclose(listed.conditional(index, 8), whole.conditional(index, 8))
    assert listed.log_prob(2) == whole.log_prob(2) == math.log(0.3)
