"""The plan where devices and texts change: drift, stalls, and what an earlier text leaves behind (plan_situations.py).

Run: python -m pytest tests/runtime/test_runtime_situations.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan_situations import DEVICES, EXCELLENT, GOOD, SITUATIONS, UNDRAFTABLE, Section, meet, written

# One of each kind: cheap and expensive verify passes, noisy latencies, both schedules, streams in plain passes.
DEFAULT = (
    "flat (NPU)",
    "this CPU",
    "deferred CPU, carrying",
    "expensive and noisy",
    "two Apple cores (A17), estimated",
    "fused at 1.64",
)
EACH = [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.full) for name in DEVICES]


@pytest.mark.parametrize("device", EACH)
def test_no_situation_makes_a_plan_slower_than_plain_decoding(device: str) -> None:
    slow = {}
    for name, sections in SITUATIONS.items():
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
    for call in range(0, 900, 89):
        assert plain / written(DEVICES[device], sections, stall=(call, stall_ms)) > 1 + 0.75 * (calm - 1), call


@pytest.mark.parametrize("tokens", [600, 1200])
@pytest.mark.parametrize("device", ["this CPU", "deferred CPU", "flat (NPU)"])
def test_a_text_that_could_not_be_drafted_leaves_the_next_one_its_drafts(device: str, tokens: int) -> None:
    before, answer = Section(tokens, UNDRAFTABLE), Section(256, EXCELLENT, begins=True)
    knowing = meet(DEVICES[device], [replace(answer, begins=False)]).speed
    both = [written(DEVICES[device], sections) for sections in ([before, answer], [before])]
    plain = written(DEVICES[device], [answer], plain=True)
    assert plain / (both[0] - both[1]) > 1 + 0.4 * (knowing - 1)


def test_passes_that_become_as_quick_again_as_they_were_are_used_again() -> None:
    device = DEVICES["this CPU"]
    calm = Section(300, EXCELLENT)
    sections = [calm, replace(calm, wide=2.0), replace(calm, tokens=600)]
    until = written(device, sections[:2])
    end = written(device, sections) - until
    assert written(device, sections[2:], plain=True) / end > 1.4
