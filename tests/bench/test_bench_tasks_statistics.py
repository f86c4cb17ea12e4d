"""Medians, rates and their bootstrap intervals. Run: python -m pytest tests/bench/test_bench_tasks_statistics.py"""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamfuse.bench.shared.statistics import Bootstrap, Spread, Timings


def timings(tokens: list[float], ms: list[list[float]]) -> Timings:
    return Timings(np.array(tokens), np.array(ms))


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_a_rate_is_all_tokens_over_the_sum_of_median_times() -> None:
    assert timings([10, 30], [[100, 900, 100], [300, 300, 1]]).tokens_per_second == pytest.approx(100.0)


def test_without_chance_the_interval_is_the_value() -> None:
    estimate = Bootstrap(2, 3).rate(timings([10, 10], [[100] * 3, [100] * 3]))
    assert (estimate.value, estimate.low, estimate.high) == (100.0, 100.0, 100.0)


def test_the_interval_holds_the_true_rate_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for trial in range(60):
        ms = 100 * random.lognormal(sigma=0.2, size=(20, 1)) * random.lognormal(sigma=0.05, size=(20, 5))
        estimate = Bootstrap(20, 5, resamples=400, seed=trial).rate(Timings(np.full(20, 10.0), ms))
        true_rate = 1000 * 10 / (100 * np.exp(0.2**2 / 2))
        hits += estimate.low <= true_rate <= estimate.high
    assert hits >= 50


def test_what_slows_both_systems_cancels_in_their_ratio() -> None:
    slowness = np.random.default_rng(2).uniform(1, 3, size=(8, 5))
    bootstrap = Bootstrap(8, 5)
    fast, slow = Timings(np.full(8, 10.0), 50 * slowness), Timings(np.full(8, 10.0), 100 * slowness)
    ratio = bootstrap.ratio(fast, slow)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.interval == pytest.approx([2.0, 2.0])
    assert bootstrap.rate(fast).high > 1.1 * bootstrap.rate(fast).low


def test_a_ratio_to_empty_answers_is_nan() -> None:
    some = timings([10, 20], [[100], [100]])
    assert math.isnan(Bootstrap(2, 1).ratio(timings([0, 0], [[5], [5]]), timings([0, 0], [[5], [5]])).value)
    ratio = Bootstrap(2, 1).ratio(some, timings([0, 20], [[5], [100]]))
    assert ratio.value == pytest.approx(1000 * 30 / 200 / (1000 * 20 / 105))


def test_the_same_seed_gives_the_same_interval() -> None:
    some = Timings(np.array([10.0, 20.0, 5.0]), np.random.default_rng(3).uniform(50, 150, size=(3, 5)))
    assert Bootstrap(3, 5, seed=4).rate(some) == Bootstrap(3, 5, seed=4).rate(some)
    assert Bootstrap(3, 5, seed=4).rate(some) != Bootstrap(3, 5, seed=5).rate(some)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens"):
        timings([1, 2, 3], [[1.0], [2.0]])
