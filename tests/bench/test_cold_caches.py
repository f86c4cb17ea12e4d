"""A clock that empties the processor's caches after each pass and does not count it.

Run: python -m pytest tests/bench/test_cold_caches.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfuse.bench.shared import cold_caches
from streamfuse.bench.shared.cold_caches import ColdCaches, largest_caches_bytes, reader


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


@pytest.mark.parametrize(
    ("cores", "sharers", "caches"),
    [({0, 1}, ["0-1", "0-1"], 1), ({0, 1, 2, 3}, ["0-1", "0-1", "2-3", "2-3"], 2), ({1}, ["0-1", "0-1"], 1)],
    ids=["one cache", "two caches", "one core"],
)
def test_the_largest_caches_of_the_cores_count_once_each(
    cores: set[int], sharers: list[str], caches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_caches, "allowed", lambda: cores)
    for core, shared in enumerate(sharers):
        for index, (size, by) in enumerate((("32K", str(core)), ("1024K", str(core)), ("32M", shared))):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(size + "\n")
            (folder / "shared_cpu_list").write_text(by + "\n")
    assert largest_caches_bytes(tmp_path) == caches * 32 * 1024**2
    assert largest_caches_bytes(tmp_path / "missing") == 128 * 1024**2


def test_memory_is_read_by_as_many_threads_as_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_caches, "allowed", lambda: set(range(64)))
    monkeypatch.setattr(cold_caches, "cores", lambda: 3)
    assert reader(48)() == [1.0] * 3
