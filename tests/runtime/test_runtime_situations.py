"""The plan where devices and texts change: drift, stalls, and what an earlier text leaves behind (plan_situations.py).

Run: python -m pytest tests/runtime/test_runtime_situations.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiers

from plan_simulation import MadeUpBackend, session_on
from plan_situations import DEVICES, EXCELLENT, GOOD, SITUATIONS, UNDRAFTABLE, Section, meet, written
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.watch import observe

# One of each kind: cheap and expensive verify passes, noisy latencies, both schedules, streams in plain passes.
DEFAULT = (
    "flat (NPU)",
    "this CPU",
    "deferred CPU, carrying",
    "expensive and noisy",
    "two Apple cores (A17), estimated",
    "fused at 1.64",
)
SITUATION_STEP = tiers.cases(6, 1)  # by default each situation is met on one of the six devices
EACH = [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.full) for name in DEVICES]


@pytest.mark.parametrize("device", EACH)
def test_no_situation_makes_a_plan_slower_than_plain_decoding(device: str) -> None:
    slow = {}
    first = DEFAULT.index(device) % SITUATION_STEP if device in DEFAULT else 0
    for name, sections in list(SITUATIONS.items())[first::SITUATION_STEP]:
        found = written(DEVICES[device], sections, plain=True) / written(DEVICES[device], sections)
        if found < 0.97:
            slow[name] = round(found, 3)
    assert slow == {}


@pytest.mark.parametrize("device", ["this CPU", "deferred CPU", "flat (NPU)"])
@pytest.mark.parametrize("stall_ms", [30, 300])
def test_one_stall_of_the_calling_thread_costs_little_wherever_it_happens(device: str, stall_ms: int) -> None:
    sections = [Section(600, GOOD)]
    plain = written(DEVICES[device], sections, plain=True)
    calm = plain / written(DEVICES[device], sections)
    assert calm > 1.1
    every = tiers.cases(2, 1)  # by default each stall comes at every other place
    for call in range(0 if stall_ms == 30 else 89 * (every - 1), 900, 89 * every):
        assert plain / written(DEVICES[device], sections, stall=(call, stall_ms)) > 1 + 0.75 * (calm - 1), call


@pytest.mark.parametrize(
    ("device", "tokens"),  # full: the same device after a text of the other length
    [
        ("this CPU", 600),
        ("deferred CPU", 1200),
        ("flat (NPU)", 600),
        pytest.param("this CPU", 1200, marks=pytest.mark.full),
        pytest.param("deferred CPU", 600, marks=pytest.mark.full),
        pytest.param("flat (NPU)", 1200, marks=pytest.mark.full),
    ],
)
def test_a_text_that_could_not_be_drafted_leaves_the_next_one_its_drafts(device: str, tokens: int) -> None:
    before, answer = Section(tokens, UNDRAFTABLE), Section(256, EXCELLENT, begins=True)
    seeds = range(6)  # the first trial in a text may fail by chance
    knowing = meet(DEVICES[device], [replace(answer, begins=False)], seeds)
    both = [sum(written(DEVICES[device], s, seed=seed) for seed in seeds) for s in ([before, answer], [before])]
    assert knowing.plain_ms / (both[0] - both[1]) > 1 + 0.4 * (knowing.speed - 1)


def test_a_plain_pass_that_met_other_work_does_not_keep_drafts_that_do_not_pay() -> None:
    """Other load doubled the latency of the last plain pass, so verify passes look cheap until it is measured again."""
    device, sections = DEVICES["fused at 1.64"], SITUATIONS["fair, bursts of other work"]
    assert written(device, sections, plain=True, seed=2) / written(device, sections, seed=2) > 0.92


@pytest.mark.parametrize("device", ["this CPU", "flat (NPU)"])
def test_a_fused_session_goes_on_with_streams_after_a_plain_pass(device: str) -> None:
    """The verify pass that computes new streams is paid back over several steps, not by the first one."""
    backend = MadeUpBackend(DEVICES[device], EXCELLENT)
    with session_on(backend, DEVICES[device]) as session:
        session.set_costs(DEVICES[device].costs)
        methods: list[str] = []
        observe(session, lambda one: methods.append(one.method))
        session.start([1, 2], GenerationConfig(600))
        while session.next() is not None:
            pass
    plain = [i for i, method in enumerate(methods[:-2]) if method == "decode"]
    assert plain, "a plain pass is measured now and then"
    assert len(plain) < 8
    assert all(methods[i + 1] != "decode" for i in plain)


def test_passes_that_become_as_quick_again_as_they_were_are_used_again() -> None:
    device = DEVICES["this CPU"]
    calm = Section(300, EXCELLENT)
    sections = [calm, replace(calm, wide=2.0), replace(calm, tokens=600)]
    until = written(device, sections[:2])
    end = written(device, sections) - until
    assert written(device, sections[2:], plain=True) / end > 1.4
