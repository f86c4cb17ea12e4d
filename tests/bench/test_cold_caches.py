"""A clock that empties the processor's caches after each pass and does not count it.

Run: python -m pytest tests/bench/test_cold_caches.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfuse.bench.shared.cold_caches import ColdCaches, largest_cache_bytes


class Time:
    def __init__(self) -> None:
        self.now, self.evictions = 100.0, 0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def evict(self) -> None:
        self.evictions += 1
        self.now += 0.7


def test_evictions_follow_passes_and_are_not_counted() -> None:
    time = Time()
    clock = ColdCaches(time.evict, time)
    start = clock()
    assert time.evictions == 1, "the first pass is cold too"
    time.passes(0.005)
    assert clock() - start == pytest.approx(0.005)
    assert time.evictions == 2
    time.passes(0.0001)
    assert clock() - start == pytest.approx(0.0051), "drafting and accepting count"
    assert time.evictions == 2, "after what is too short for a pass the caches are as they were"
    time.passes(0.002)
    assert clock() - start == pytest.approx(0.0071)


def test_the_largest_cache_decides(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "32M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert largest_cache_bytes(tmp_path) == 32 * 1024**2
    assert largest_cache_bytes(tmp_path / "missing") == 128 * 1024**2
