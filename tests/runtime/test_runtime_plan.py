"""Plans: equal texts under any of them, and what the adaptive one gains on simulated devices.

Run: pytest tests/runtime/test_runtime_plan.py
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes import ArithmeticBackend, spec
from tiers import cases

import plan_simulation
from plan_simulation import DEVICES, REGIMES, Device, session_on, simulate, tables_knowing
from streamfuse.runtime.backend import DECODE, STREAMS, BoolArray, IntArray, PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.core import CoreModel, CoreSession
from streamfuse.runtime.reference.watch import Pass, observe
from streamfuse.runtime.session import Session

COSTS = "verifying costs more here than drafts bring"
REJECTED = "too few drafts were accepted"
UNLUCKY = (("deferred CPU, carrying", "excellent"),)  # four poor trees come first, and a back-off follows
SAMPLINGS = (
    SamplingConfig(),
    SamplingConfig(temperature=1.0, top_p=0.9, seed=7),
    SamplingConfig(repetition_penalty=1.2),
)


def rotated(*options: Sequence[object], every: int | None = None) -> list[Any]:
    """Every device with each combination of the options; those beyond one in `every` (as many as the last option has)
    run with --full alone. Each device and each option stay in a case, as they take turns."""
    found, every = [], every or len(options[-1])
    for number, device in enumerate(DEVICES):
        for values in itertools.product(*options):
            turn = number + sum(options[i].index(value) for i, value in enumerate(values))
            marks = [] if turn % every == 0 else [pytest.mark.full]
            found.append(pytest.param(device, *values, marks=marks))
    return found


def plain_text(prompt: list[int], config: GenerationConfig) -> list[int]:
    with Session(ArithmeticBackend(spec())) as session:
        generation = session.generate(prompt, GenerationConfig(60, config.sampling, speculative=False))
        generation.finish()
        return generation.token_ids


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalty"])
@pytest.mark.parametrize("accuracy", [0, 8, 16])
def test_the_adaptive_plan_changes_no_token_whatever_passes_cost(
    sampling: SamplingConfig, accuracy: int, rng: np.random.Generator
) -> None:
    config = GenerationConfig(60, sampling)
    text = plain_text([3, 1, 4], config)
    for _ in range(cases(2, 8)):
        deferred = bool(rng.integers(2))
        nodes = {"verify_8": int(rng.integers(0, 7)), "verify_4": int(rng.integers(0, 5))}
        model = spec(deferred=deferred, stream_nodes=nodes)
        ms = {name: float(rng.uniform(1, 4)) for name in (DECODE, *model.widths, *([STREAMS] if deferred else []))}
        session = Session(ArithmeticBackend(model, accuracy, mixed=True), costs=ms)
        for _ in range(2):
            session.reset()
            generation = session.generate([3, 1, 4], config)
            generation.finish()
            assert generation.token_ids == text


def test_the_same_costs_give_the_same_passes() -> None:
    first, second = (simulate(DEVICES["this CPU"], REGIMES["fair"], None, 200) for _ in range(2))
    assert first == second


def test_a_pruned_pass_is_worth_what_it_can_keep() -> None:
    """A sure draft is a chain of 15: of a pass that keeps 8 of 16 rows no path can have more than 7 of them."""
    whole, pruned = (Device(4.0, (4.2, 4.3, 4.6), keep=(4, 8, keep)) for keep in (16, 8))
    tables = tables_knowing(1.0)
    all_kept, half_kept = (
        simulate(device, REGIMES["adversarial"], None, 200, tables=tables) for device in (whole, pruned)
    )
    assert all_kept.text == half_kept.text
    assert all_kept.widths["verify_16"] > 0
    assert "verify_16" not in half_kept.widths or half_kept.widths["verify_16"] == 0
    assert half_kept.widths["verify_8"] > 0


@pytest.mark.parametrize(("device", "regime", "tokens"), rotated(("adversarial", "boasting"), (64, 128, 400)))
def test_adversarial_text_costs_at_most_three_percent_of_plain_speed(device: str, regime: str, tokens: int) -> None:
    plain_ms = plan_ms = 0.0
    for seed in range(4 if DEVICES[device].noise else 1):  # one pass of five times its time is a tenth of a short text
        plain = simulate(DEVICES[device], REGIMES[regime], None, tokens, plain=True, seed=seed)
        plan = simulate(DEVICES[device], REGIMES[regime], None, tokens, seed=seed)
        assert plan.text == plain.text
        assert plan.reason in (COSTS, REJECTED)
        plain_ms += plain.ms_per_token
        plan_ms += plan.ms_per_token
    assert plain_ms / plan_ms > 0.97


@pytest.mark.parametrize(("device", "regime"), rotated(("adversarial", "boasting")))
def test_six_short_adversarial_answers_cost_less(device: str, regime: str) -> None:
    plain = simulate(DEVICES[device], REGIMES[regime], None, 64, plain=True, generations=6)
    plan = simulate(DEVICES[device], REGIMES[regime], None, 64, generations=6)
    assert plain.ms_per_token / plan.ms_per_token > 0.975


@pytest.mark.parametrize(
    ("device", "regime"), rotated(("poor", "fair", "good", "excellent", "modest", "changing"), every=2)
)
def test_elsewhere_the_plan_is_near_the_best_fixed_width(device: str, regime: str) -> None:
    best_ms = plan_ms = 0.0
    for seed in range(4 if (device, regime) in UNLUCKY else 1):
        ways = [simulate(DEVICES[device], REGIMES[regime], width, 300, seed=seed) for width in (4, 8, 16)]
        ways.append(simulate(DEVICES[device], REGIMES[regime], None, 300, plain=True, seed=seed))
        plan = simulate(DEVICES[device], REGIMES[regime], None, 300, seed=seed)
        assert plan.text == ways[0].text
        best_ms += min(way.ms_per_token for way in ways)
        plan_ms += plan.ms_per_token
    # Where the best width gains 7 or 8 % at most, a plan that has to try misses some of that.
    hard = device == "expensive and noisy" or (device, regime) == ("two Apple cores (A17), estimated", "fair")
    assert best_ms / plan_ms > (0.92 if hard else 0.94)


@pytest.mark.parametrize("name", ["deferred CPU", "expensive streams"])
def test_streams_that_a_plain_pass_carries_pay_where_bought_ones_hardly_do(name: str) -> None:
    for regime in ("good", "fair"):
        bought_ms = carried_ms = 0.0
        for seed in range(3):
            bought, carried = (
                simulate(DEVICES[device], REGIMES[regime], None, 1000, seed=seed)
                for device in (name, f"{name}, carrying")
            )
            assert carried.text == bought.text
            assert carried.widths["verify_1"] > 0
            bought_ms += bought.ms_per_token
            carried_ms += carried.ms_per_token
        assert carried_ms < 1.002 * bought_ms


def test_a_text_that_cannot_be_drafted_rarely_has_streams_carried() -> None:
    outcome = simulate(DEVICES["deferred CPU, carrying"], REGIMES["adversarial"], None)
    assert outcome.widths["verify_1"] < outcome.widths[DECODE] / 10


def test_verify_1_is_no_width_to_ask_for() -> None:
    model = spec(
        widths={"verify_1": (1, 1), "verify_4": (4, 4), "verify_8": (8, 6)},
        deferred=True,
        stream_nodes={"verify_4": 0, "verify_8": 0},
    )
    assert model.verify_widths == (4, 8)
    with Session(ArithmeticBackend(model)) as session, pytest.raises(ValueError, match="must be one of 4, 8 for this"):
        session.generate([1], GenerationConfig(4, width=1))


def test_what_was_learnt_stays_for_the_next_generation() -> None:
    device, regime = DEVICES["this CPU"], REGIMES["adversarial"]
    once = simulate(device, regime, None, 128)
    often = simulate(device, regime, None, 128, generations=8)
    lost_once, lost_often = (way.ms_per_token / device.decode - 1 for way in (once, often))
    assert lost_often < 0.6 * lost_once < 0.6 * 0.03
    phone, easy = DEVICES["linear (phone CPU)"], REGIMES["good"]  # where the first generation loses nothing
    for generations in (1, 8):
        assert simulate(phone, easy, None, 128, generations=generations).ms_per_token / phone.decode < 1.01


def test_a_text_that_becomes_easy_is_found_again_after_a_pause() -> None:
    plan = simulate(DEVICES["flat (NPU)"], plan_simulation.Regime(0.8, period=250), None, 1000)
    rounds = sum(count for method, count in plan.widths.items() if method != DECODE)
    assert plan.widths[DECODE] > 300
    assert 1000 / (plan.widths[DECODE] + rounds) > 1.2


def test_pauses_grow_while_drafting_keeps_failing() -> None:
    short = simulate(DEVICES["this CPU"], REGIMES["adversarial"], None, 300)
    long = simulate(DEVICES["this CPU"], REGIMES["adversarial"], None, 1200)
    tried_early, tried_in_all = (300 - short.widths[DECODE]), (1200 - long.widths[DECODE])
    assert tried_in_all < 2.5 * tried_early


def test_repeated_text_is_drafted_from_itself_where_streams_are_wrong() -> None:
    class Repeating(plan_simulation.MadeUpBackend):
        def __init__(self) -> None:
            super().__init__(DEVICES["this CPU"], REGIMES["adversarial"])
            self.text = np.tile(self.text[:40], 100)

    backend = Repeating()
    session = Session(backend, costs=DEVICES["this CPU"].costs, clock=backend.clock)
    generation = session.generate(backend.text[:2].tolist(), GenerationConfig(400))
    generation.finish()
    assert generation.token_ids == backend.text[2:402].tolist()
    assert backend.now_ms < 0.6 * 400 * DEVICES["this CPU"].decode


def test_passes_with_few_rows_teach_little_about_all_rows() -> None:
    """Every third token is drafted, so passes of two rows and plain ones take turns; two rows take longer than told."""

    class SlowWithFewRows(plan_simulation.MadeUpBackend):
        def run(
            self, method: str, input_ids: IntArray, position_ids: IntArray, ancestors: BoolArray, logits: bool = False
        ) -> PassOutput:
            self.now_ms += 0.4 * told if method == "verify_4" and len(input_ids) < 4 else 0.0
            return super().run(method, input_ids, position_ids, ancestors, logits)

    device, tables = DEVICES["deferred CPU"], tables_knowing(1.0)
    told = device.verify[0]
    text = plan_simulation.MadeUpBackend(device, REGIMES["adversarial"]).text
    third = {int(text[i] * (plan_simulation.VOCAB + 1) + text[i - 1] + 1) for i in range(3, 4000, 3)}
    known = np.array([int(key) in third for key in tables["ngram_keys"]])
    tables = {name: values[known] for name, values in tables.items() if name != "ngram_starts"}
    tables["ngram_starts"] = np.arange(len(tables["ngram_ids"]) + 1, dtype=np.int32)
    backend = SlowWithFewRows(device, REGIMES["adversarial"])
    with CoreSession(CoreModel(device.spec, tables), backend, clock=backend.clock) as session:
        session.set_costs(device.costs)
        for _ in range(2):
            session.reset()
            session.start([1, 2], GenerationConfig(600))
            while session.next() is not None:
                pass
        facts = session.statistics
    assert min(facts.widths["verify_4"], facts.widths[DECODE]) > 150
    learnt = facts.cost_ms["verify_4"] / facts.cost_ms[DECODE] / (told / device.decode)  # of all rows
    assert 1.0 < learnt < 1.2


@pytest.mark.parametrize("device", list(DEVICES))
def test_a_wrong_table_costs_at_most_three_percent_of_plain_speed(device: str) -> None:
    plain = simulate(DEVICES[device], REGIMES["adversarial"], None, 128, plain=True)
    plan = simulate(DEVICES[device], REGIMES["adversarial"], None, 128, tables=tables_knowing(0.02))
    assert plan.text == plain.text
    assert plain.ms_per_token / plan.ms_per_token > 0.97


@pytest.mark.parametrize(
    ("device", "regime"),
    [*((device, "adversarial") for device in DEVICES), ("deferred CPU", "fair"), ("expensive streams", "good")],
)
def test_a_table_that_knows_the_text_drafts_where_streams_do_not_pay(device: str, regime: str) -> None:
    without = simulate(DEVICES[device], REGIMES[regime], None, 300)
    plan = simulate(DEVICES[device], REGIMES[regime], None, 300, tables=tables_knowing(0.7))
    assert plan.text == without.text
    assert without.ms_per_token / plan.ms_per_token > (1.0 if "phone" in device else 1.25)


def test_streams_are_bought_where_the_table_knows_little() -> None:
    """Both are right half of the time, but a sharp table that draws a blank leaves the streams something to bring."""
    device, regime = DEVICES["deferred CPU"], REGIMES["excellent"]
    table = simulate(device, REGIMES["adversarial"], None, 300, tables=tables_knowing(0.5))
    both = simulate(device, regime, None, 300, tables=tables_knowing(0.5))
    streams = simulate(device, regime, None, 300)
    assert both.ms_per_token < 1.02 * min(table.ms_per_token, streams.ms_per_token)


def test_streams_that_cannot_pay_are_not_tried() -> None:
    """Each pass, a streams pass too, costs the same, as on some NPUs, and the table is right often: four streams would
    have to be right nearly always."""
    device = Device(2.5, (2.5, 2.5, 2.5), streams=2.5)
    backend = plan_simulation.MadeUpBackend(device, REGIMES["good"])
    with session_on(backend, device, tables_knowing(0.7)) as session:
        bought = []
        for _ in range(3):
            session.reset()
            session.start([1, 2], GenerationConfig(300))
            while session.next() is not None:
                pass
            bought.append(session.statistics.streams_passes)
    assert bought[0] < 10, "before anything is known of the table, a trial may run"
    assert bought[1:] == [0, 0]


def test_streams_that_failed_are_tried_again_though_free_drafts_go_on() -> None:
    """No pass is plain where the table is nearly always right, and the streams are better still."""
    device = DEVICES["deferred CPU"]
    backend = plan_simulation.MadeUpBackend(device, REGIMES["adversarial"])
    passes: list[Pass] = []
    with session_on(backend, device, tables_knowing(0.9)) as session:
        observe(session, passes.append)
        for regime, tokens in (("adversarial", 200), ("excellent", 600)):
            backend.regime = REGIMES[regime]
            passes.clear()
            session.reset()
            session.start([1, 2], GenerationConfig(tokens))
            while session.next() is not None:
                pass
        plain = sum(one.method == DECODE for one in passes)
        assert plain < 150, "or else the back-off ends by plain passes"
        assert session.statistics.streams_passes > 0


def test_deferred_streams_are_asked_for_after_the_commit_and_not_at_the_end() -> None:
    model = spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))
    backend = ArithmeticBackend(model, 16)
    Session(backend).generate([3, 0, 1], GenerationConfig(20, width=4)).finish()
    passes = [method for method, _ in backend.calls if method.startswith(("verify", "decode"))]
    assert backend.calls.count(("streams", 1)) == len(passes) - 1
    assert backend.calls[-1][0] != "streams"
    assert len(passes) < 12


def test_the_plan_takes_the_deferred_schedule_where_it_pays() -> None:
    plan = simulate(DEVICES["deferred CPU"], REGIMES["good"], None, 300)
    assert 300 / sum(plan.widths.values()) > 1.3


def test_an_easy_text_leaves_no_reason() -> None:
    assert simulate(DEVICES["flat (NPU)"], REGIMES["good"], None, 300).reason is None


def test_the_last_token_is_a_plain_pass_without_a_reason() -> None:
    model = spec()
    passes: list[Pass] = []
    session = Session(ArithmeticBackend(model), costs=dict.fromkeys((DECODE, *model.widths), 1.0))
    session.generate([1, 2], GenerationConfig(1), passes.append).finish()
    assert [(one.method, one.reason, len(one.tokens)) for one in passes] == [(DECODE, None, 1)]


def test_trees_shrink_where_each_node_costs() -> None:
    """An engine that skips padding rows: the plan drafts as many nodes as pay, not as many as fit."""
    free, expensive = {DECODE: (2.0, 2.0)}, {DECODE: (2.0, 2.0)}
    model = spec(widths={"verify_8": (8, 8)})
    free["verify_8"], expensive["verify_8"] = (2.2, 2.2), (2.2, 2.2 + 7 * 0.5)
    sizes = []
    for costs in (free, expensive):
        backend = ArithmeticBackend(model, 16)
        session = Session(backend, costs=costs)
        session.generate([3, 0, 1], GenerationConfig(60)).finish()
        sizes.append(np.mean([nodes for method, nodes in backend.calls if method == "verify_8" and nodes > 1]))
    assert sizes[1] < sizes[0] == 8


def test_the_first_steps_follow_the_bundle_s_calibration() -> None:
    """Streams whose drafts never came true when the bundle was made are not believed at the start; others are."""
    first = {}
    for ratio in (1.0, 0.02):
        backend = plan_simulation.MadeUpBackend(DEVICES["deferred CPU"], REGIMES["good"])
        tables = {"calibration": np.full(plan_simulation.STREAMS, ratio, np.float32)}
        with session_on(backend, DEVICES["deferred CPU"], tables) as session:
            session.start([1, 2], GenerationConfig(8))
            while session.next() is not None:
                pass
            first[ratio] = session.statistics.draft_tokens_proposed
    assert first[1.0] > 2 * first[0.02]
