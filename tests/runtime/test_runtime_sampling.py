"""From logits to tokens: order of filters, ties, errors, traces. Run: pytest tests/runtime/test_runtime_sampling.py"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import cases

from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.sampling import Sampler, distribution, penalise

STEPS = json.loads((Path(__file__).parents[1] / "traces" / "sampling.json").read_text(encoding="utf-8"))["steps"]
SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def obvious(logits: list[float], history: list[int], position: int, config: SamplingConfig) -> int:
    """The definition of tests/traces/README.md with plain lists and a full sort."""
    scores = [float(x) for x in logits]
    for token in set(history):
        factor = config.repetition_penalty
        scores[token] = scores[token] * factor if scores[token] < 0 else scores[token] / factor
    if config.temperature == 0:
        return scores.index(max(scores))
    scores = [(score - max(scores)) / config.temperature for score in scores]
    alive = list(range(len(scores)))
    if config.top_k:
        alive = sorted(sorted(alive, key=lambda i: (-scores[i], i))[: config.top_k])
    weights = {i: math.exp(scores[i]) for i in alive}
    if config.top_p < 1:
        goal, total, chosen = config.top_p * lanes_of([weights[i] for i in alive])[-1], 0.0, []
        for i in sorted(alive, key=lambda i: (-scores[i], i)):
            chosen.append(i)
            total += weights[i]
            if total >= goal:
                break
        alive = sorted(chosen)
    alive = [i for i in alive if weights[i] >= config.min_p]
    noise = gumbel(config.seed, position, range(len(scores)), len(scores))
    return max(alive, key=lambda i: (scores[i] + noise[i], -i))


def lanes_of(values: list[float]) -> list[float]:
    """Where each lane ends: lane l holds every 256th value from the l-th on."""
    ends, total = [], 0.0
    for lane in range(min(256, len(values))):
        own = 0.0
        for value in values[lane::256]:
            own += value
        total += own
        ends.append(total)
    return ends


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_the_sampler_replays_the_trace(number: int) -> None:
    step = STEPS[number]
    config = SamplingConfig(**{key: step[key] for key in SETTINGS if key in step}, seed=int(step["seed"]))
    assert (
        Sampler(config).pick(np.array(step["logits"], np.float32), step["history"], step["position"]) == step["token"]
    )


def test_the_sampler_agrees_with_the_obvious_definition(rng: np.random.Generator) -> None:
    for case in range(cases(150, 600)):
        config = SamplingConfig(
            temperature=float(rng.choice([0, 0.3, 1, 2])),
            top_k=int(rng.choice([0, 1, 5, 30])),
            top_p=float(rng.choice([0.05, 0.5, 0.9, 1])),
            min_p=float(rng.choice([0, 0.1, 1])),
            repetition_penalty=float(rng.choice([0.7, 1, 1.3])),
            seed=case,
        )
        size = int(rng.choice([100, 256, 257, 1000]))
        logits = (rng.integers(-24, 24, size) / 8).astype(np.float32)
        history = rng.integers(0, 100, 20).tolist()
        assert Sampler(config).pick(logits, history, case) == obvious(logits.tolist(), history, case, config)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_the_nucleus_of_a_large_vocabulary_needs_no_full_sort_to_be_right(
    rng: np.random.Generator, top_p: float
) -> None:
    logits = (rng.normal(size=5000) * 2).astype(np.float32)
    ids, _, weights = distribution(logits, SamplingConfig(temperature=1, top_p=top_p))
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum()
    order = np.argsort(-logits, kind="stable")
    count = int(np.searchsorted(np.cumsum(probs[order]), top_p)) + 1
    assert ids.tolist() == sorted(order[:count].tolist())
    assert weights.max() == 1


def test_sampled_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    sampler = Sampler(SamplingConfig(temperature=1, seed=4))
    counts = np.bincount([sampler.pick(logits, [], position) for position in range(8000)], minlength=4)
    assert np.abs(counts / 8000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.015


def test_filters_keep_what_hugging_face_keeps(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'streamfuse[export]'")
    process = pytest.importorskip(
        "transformers.generation.logits_process",
        reason="transformers is not installed: pip install 'streamfuse[train]'",
    )
    for _ in range(50):
        logits = rng.normal(size=200).astype(np.float32) * 3
        history = rng.integers(0, 200, 30).tolist()
        config = SamplingConfig(temperature=0.7, top_k=40, top_p=0.8, min_p=0.02, repetition_penalty=1.3)
        scores, ids = torch.tensor(logits)[None], torch.tensor([history])
        for warper in (
            process.RepetitionPenaltyLogitsProcessor(1.3),
            process.TemperatureLogitsWarper(0.7),
            process.TopKLogitsWarper(40),
            process.TopPLogitsWarper(0.8),
            process.MinPLogitsWarper(0.02),
        ):
            scores = warper(ids, scores)
        ours, _, weights = distribution(penalise(logits, history, config.repetition_penalty), config)
        assert ours.tolist() == torch.isfinite(scores[0]).nonzero()[:, 0].tolist()
        assert np.abs(weights / weights.sum() - torch.softmax(scores[0], 0).numpy()[ours]).max() < 1e-5


def test_equal_logits_go_to_the_smaller_token() -> None:
    level = np.zeros(10, np.float32)
    assert Sampler(SamplingConfig()).pick(level, [], 0) == 0
    assert {Sampler(SamplingConfig(temperature=1, top_k=3, seed=s)).pick(level, [], 0) for s in range(50)} == {0, 1, 2}


def test_near_ties_are_counted() -> None:
    greedy = Sampler(SamplingConfig())
    greedy.pick(np.array([1, 1.0005, 0], np.float32), [], 0)
    greedy.pick(np.array([1, 2, 0], np.float32), [], 1)
    greedy.pick(np.array([2, 2, 0], np.float32), [], 2)
    greedy.pick(np.array([2, 2, 0], np.float32), [], 3)
    greedy.pick(np.array([1, 2, 0], np.float32), [], 3)  # chosen again, after other tokens
    assert [greedy.near_ties_before(position) for position in (0, 1, 2, 3, 4)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_near_tie_of_a_sample_is_one_that_a_thousandth_of_a_logit_turns(temperature: float) -> None:
    config = SamplingConfig(temperature=temperature, seed=8)
    noise = gumbel(8, 0, [0, 1], 2)
    second = temperature * float(noise[0] - noise[1])  # the logit of token 1 at which both are equally good
    for distance, near in ((0.002, 0), (0.0005, 1), (-0.0005, 1), (-0.002, 0)):
        sampler = Sampler(config)
        token = sampler.pick(np.array([0, second - distance], np.float32), [], 0)
        assert (token, sampler.near_ties_before(1)) == (int(distance < 0), near)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(temperature: float, bad: float) -> None:
    with pytest.raises(ValueError, match="damaged"):
        Sampler(SamplingConfig(temperature=temperature)).pick(np.array([0, bad], np.float32), [], 0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 9e29])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    token = Sampler(SamplingConfig(temperature=temperature)).pick(np.array([0, 5, 1], np.float32), [], 3)
    assert token in (0, 1, 2)
    assert temperature > 1 or token == 1


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"repetition_penalty": 1e-31},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ValueError, match=f"^{name} must be "):
        SamplingConfig(**setting)
