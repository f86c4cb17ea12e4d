"""The statistics: keys, counts, times. Run: pytest tests/unit/test_runtime_stats.py"""

from __future__ import annotations

import itertools
import json

import pytest
from streamfuse.runtime.stats import Statistics, Stopwatch

from fakes import ArithmeticBackend, spec
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.session import Session

KEYS = """prompt_tokens generated_tokens model_load_ms prefill_ms first_token_ms decode_token_per_sec
    prefill_token_per_sec rounds target_forward_passes draft_tokens_proposed draft_tokens_accepted acceptance_rate
    acceptance_per_depth mean_accepted_tokens time_ms widths speculative fallback_reason finish_reason
    acceptance_per_rank fallback_reasons cost_ms"""


def loop_with(config: GenerationConfig, accuracy: int = 12) -> Loop:
    loop = Loop(ArithmeticBackend(spec(), accuracy), [3, 0, 1], config)
    list(loop.run())
    return loop


def test_the_keys_are_those_of_the_contract_in_their_order() -> None:
    stats = loop_with(GenerationConfig(10)).statistics.to_dict()
    assert list(stats) == KEYS.split()
    assert list(stats["time_ms"]) == ["prefill", "draft", "verify", "accept", "commit", "sample"]
    assert json.loads(json.dumps(stats)) == stats


def test_an_empty_object_divides_by_nothing() -> None:
    stats = Statistics(Stopwatch()).to_dict()
    assert stats["acceptance_rate"] == stats["mean_accepted_tokens"] == stats["decode_token_per_sec"] == 0


@pytest.mark.parametrize("accuracy", [0, 8, 16])
def test_the_counts_agree_with_one_another(accuracy: int) -> None:
    stats = loop_with(GenerationConfig(40), accuracy).statistics.to_dict()
    assert stats["generated_tokens"] == 40
    assert stats["target_forward_passes"] == sum(stats["widths"].values())
    assert stats["rounds"] == stats["target_forward_passes"] - stats["widths"].get("decode", 0)
    assert stats["generated_tokens"] == stats["target_forward_passes"] + stats["draft_tokens_accepted"]
    assert stats["mean_accepted_tokens"] == 40 / stats["target_forward_passes"]
    assert stats["acceptance_rate"] == stats["draft_tokens_accepted"] / stats["draft_tokens_proposed"]
    assert all(0 <= share <= 1 for share in stats["acceptance_per_depth"])
    assert sorted(stats["acceptance_per_depth"], reverse=True) == stats["acceptance_per_depth"]


def test_plain_decoding_is_one_token_per_pass_also_when_an_end_token_stops_it() -> None:
    text = loop_with(GenerationConfig(10)).tokens[3:]
    loop = loop_with(GenerationConfig(10, speculative=False, stop_token_ids=(text[5],)))
    stats = loop.statistics.to_dict()
    assert stats["generated_tokens"] == 5, "the end token is not delivered"
    assert stats["mean_accepted_tokens"] == 1
    assert stats["rounds"] == stats["draft_tokens_proposed"] == 0


def test_the_phases_hold_all_of_the_loops_time_and_none_of_the_callers() -> None:
    ticks = itertools.count()
    session = Session(ArithmeticBackend(spec()), clock=lambda: float(next(ticks)), model_load_ms=12.5)
    generation = session.generate([1, 2, 3], GenerationConfig(8))
    before = 0
    for index, _ in enumerate(generation):
        if index == 0:
            before = next(ticks)
        for _ in range(1000):
            next(ticks)
    stats = generation.statistics.to_dict()
    assert stats["model_load_ms"] == 12.5
    assert stats["prefill_ms"] == stats["time_ms"]["prefill"] == 1000
    assert sum(stats["time_ms"].values()) < 1000 * 1000, "the caller's thousand seconds per token are not counted"
    assert stats["first_token_ms"] <= 1000 * before
    assert stats["decode_token_per_sec"] == pytest.approx(8000 / (sum(stats["time_ms"].values()) - 1000))
    assert stats["prefill_token_per_sec"] == 2
