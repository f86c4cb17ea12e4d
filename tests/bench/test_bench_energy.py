"""Energy counters as Linux shows them, in a folder of files.

Run: python -m pytest tests/bench/test_bench_energy.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfuse.bench.shared.energy import EnergyCounter


def zone(folder: Path, place: str, name: str, energy_uj: int) -> Path:
    made = folder / place
    made.mkdir()
    (made / "name").write_text(f"{name}\n")
    (made / "energy_uj").write_text(f"{energy_uj}\n")
    (made / "max_energy_range_uj").write_text("10000000\n")
    return made


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    first, second = (zone(tmp_path, f"intel-rapl:{n}", f"package-{n}", 500_000) for n in range(2))
    cores, whole = zone(tmp_path, "intel-rapl:0:0", "core", 0), zone(tmp_path, "intel-rapl:2", "psys", 0)
    counter = EnergyCounter(tmp_path)
    for one, now in ((first, 2_500_000), (second, 1_000_000), (cores, 9_000_000), (whole, 9_000_000)):
        (one / "energy_uj").write_text(f"{now}\n")
    assert counter.joules() == pytest.approx(2.5)


def test_a_counter_may_wrap(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    counter = EnergyCounter(tmp_path)
    (package / "energy_uj").write_text("2000000\n")
    assert counter.joules() == pytest.approx(3.0)
    (package / "energy_uj").write_text("4000000\n")
    assert counter.joules() == pytest.approx(5.0)


def test_without_a_counter_that_may_be_read_nothing_is_said(tmp_path: Path) -> None:
    assert EnergyCounter(tmp_path / "missing").joules() is None
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (package / "energy_uj").unlink()
    assert EnergyCounter(tmp_path).joules() is None
