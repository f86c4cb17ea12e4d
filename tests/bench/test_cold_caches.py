"""A clock that empties the processor's caches after each pass and does not count it.

Run: python -m pytest tests/bench/test_cold_caches.py
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import fakes
import pytest

from streamfuse.bench.shared import cold_caches
from streamfuse.bench.shared.cold_caches import ColdCaches, largest_caches_bytes, reader
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

EVICTION_S = 0.1


class Evictions:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        time.sleep(EVICTION_S)


@pytest.fixture
def evictions(monkeypatch: pytest.MonkeyPatch) -> Evictions:
    monkeypatch.setattr(cold_caches, "PASS_S", 0.03)
    return Evictions()


def test_evictions_follow_passes_and_are_not_counted(evictions: Evictions) -> None:
    clock = ColdCaches(evictions)
    start = clock()
    assert evictions.count == 1, "the first pass is cold too"
    time.sleep(0.04)  # a pass
    after = clock()
    assert evictions.count == 2
    assert 0.04 <= after - start < 0.04 + EVICTION_S
    assert clock() - after < 0.03
    assert evictions.count == 2, "after what is too short for a pass the caches are as they were"


def test_a_session_s_passes_are_cold_and_its_evictions_are_not_counted(evictions: Evictions) -> None:
    class Slow(fakes.ArithmeticBackend):
        def run(self, *arguments: Any) -> PassOutput:
            time.sleep(0.04)
            return super().run(*arguments)

    session = Session(Slow(fakes.spec()), clock=ColdCaches(evictions))
    generation = session.generate([1, 2, 3], GenerationConfig(max_new_tokens=4, speculative=False))
    generation.finish()
    found = generation.statistics
    assert evictions.count >= found.target_forward_passes
    assert 40 * found.target_forward_passes <= found.time_ms["verify"]
    assert sum(found.time_ms.values()) < 1000 * EVICTION_S * found.target_forward_passes


def test_what_an_eviction_raises_is_raised_by_the_next_call() -> None:
    def evict() -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        ColdCaches(evict)()
    session = Session(fakes.ArithmeticBackend(fakes.spec()), clock=ColdCaches(evict))
    with pytest.raises(MemoryError, match="no room"):
        session.generate([1, 2, 3], GenerationConfig(max_new_tokens=4)).finish()


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
