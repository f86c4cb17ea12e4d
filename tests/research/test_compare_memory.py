"""Peak memory of a method: what a process of its own takes, on a tiny exported bundle.

Run: python -m pytest tests/research/test_compare_memory.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamfuse.bench.shared.machine import peak_resident_bytes, resident_bytes
from streamfuse.bench.shared.systems import Request
from streamfuse.research.compare.core import CORE_OURS
from streamfuse.research.compare.memory import bundles_of, peak_memory
from streamfuse.research.compare.methods import BASELINE, DRAFT, MEDUSA, METHODS, SELF, STREAMS

REQUEST = Request([5, 6, 7, 8], 12)


def test_the_peak_stays_when_memory_is_given_back() -> None:
    before = peak_resident_bytes()
    some = np.ones((before - (resident_bytes() or 0)) // 8 + 8_000_000)
    taken = peak_resident_bytes()
    del some
    assert taken >= before + 50_000_000
    assert peak_resident_bytes() > taken - 5_000_000, "the system counts in pages of all cores, not exactly"


@pytest.mark.parametrize("name", [BASELINE, CORE_OURS])
def test_a_process_of_its_own_runs_one_method_without_pytorch(name: str, tiny_graph: Path) -> None:
    seen: list[str] = []
    found = peak_memory([name], {STREAMS: tiny_graph.parent}, 1, {}, REQUEST, seen.append)
    assert list(found) == [name]
    assert seen == [f"memory of {name}"]
    assert 20e6 < found[name] < 150e6, "PyTorch alone is more"


def test_a_method_that_does_not_run_is_said(tiny_graph: Path, tmp_path: Path) -> None:
    notices: list[str] = []
    folders = {STREAMS: tiny_graph.parent, MEDUSA: tmp_path / "none"}
    found = peak_memory(["Medusa heads", BASELINE], folders, 1, {}, REQUEST, without=notices.append)
    assert list(found) == [BASELINE], "the others have theirs"
    assert len(notices) == 1
    assert notices[0].startswith("Without the memory of Medusa heads: its process ended with code 1 (")
    assert f"{tmp_path / 'none'}: no such folder" in notices[0]


def test_a_method_opens_no_bundle_but_its_own() -> None:
    by_name = {method.name: bundles_of(method) for method in METHODS}
    assert by_name[BASELINE] == by_name["streams, Sequoia's tree"] == by_name["n-gram table"] == {STREAMS}
    assert by_name["Medusa heads"] == {MEDUSA}
    assert by_name["self-speculation"] == {SELF}
    assert by_name["draft model, chain"] == {STREAMS, DRAFT}
