"""The load of other work, from the kernel's counters in a file.

Run: python -m pytest tests/bench/test_bench_load.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from streamfuse.bench.shared.load import OtherLoad


def _write(stat: Path, busy_s: float, steal_s: float) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    counters = (busy_s, 0, 0, 1e6, 1e6, 0, 0, steal_s, 0, 0)  # user ... idle, iowait, irq, softirq, steal
    stat.write_text("cpu  " + " ".join(str(int(one * ticks)) for one in counters) + "\ncpu0 1 2 3\n")


def test_other_programs_and_other_machines_count_and_our_own_time_does_not(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    _write(stat, 100, 0)
    began, own = time.monotonic(), time.process_time()
    load = OtherLoad(stat)
    while time.process_time() - own < 0.2:
        pass
    _write(stat, 130, 10)
    found, wall = load.cores(), time.monotonic() - began
    assert found == pytest.approx((40 - 0.2) / wall, rel=0.1)


def test_without_more_than_our_own_time_it_is_zero(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    _write(stat, 100, 0)
    assert OtherLoad(stat).cores() == 0


def test_it_is_unknown_where_the_kernel_does_not_count(tmp_path: Path) -> None:
    assert OtherLoad(tmp_path / "none").cores() is None
    (tmp_path / "stat").write_text("cpu 1 2\n")
    assert OtherLoad(tmp_path / "stat").cores() is None
