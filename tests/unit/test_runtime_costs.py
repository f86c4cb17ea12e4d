"""Costs: measured at load, remembered, followed. Run: pytest tests/unit/test_runtime_costs.py"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from streamfuse.runtime.costs import CostTable, PlanCache, agrees, device_name, measure, methods_of

from fakes import ArithmeticBackend, spec
from streamfuse.runtime.backend import DECODE, STREAMS, ModelSpec, PassOutput

MS = {DECODE: 2.0, "verify_2": 2.2, "verify_4": 2.5, "verify_8": 4.0}
FILES = {"model.pte": "ab" * 32, "tokenizer.json": "cd" * 32}


class TimedBackend(ArithmeticBackend):
    """Passes take a millisecond per real row and two at least; every fifth is interrupted for a second."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model)
        self.now = 0.0

    def _spend(self, ms: float) -> None:
        self.now += ms / 1000 + (1.0 if len(self.calls) % 5 == 0 else 0.0)

    def run(self, method: str, *args: object) -> PassOutput:
        output = super().run(method, *args)  # type: ignore[arg-type]
        self._spend(1.0 + self.calls[-1][1])
        return output

    def streams(self, index: int) -> PassOutput:
        self._spend(0.5)
        return super().streams(index)


def test_measuring_ignores_interruptions_takes_one_row_and_all_and_leaves_nothing_behind() -> None:
    backend = TimedBackend(spec(deferred=True))
    table = measure(backend, lambda: backend.now)
    expected = {DECODE: (2, 2), "verify_2": (2, 3), "verify_4": (2, 5), "verify_8": (2, 9), STREAMS: (0.5, 0.5)}
    assert set(table.ms) == set(expected) == set(methods_of(backend.spec))
    for name, pair in expected.items():
        assert table.ms[name] == pytest.approx(pair)
    assert backend.cache == []


def test_a_remembered_table_must_agree_with_a_few_passes() -> None:
    backend = TimedBackend(spec())
    assert agrees(measure(backend, lambda: backend.now), backend, lambda: backend.now)
    measured = {DECODE: 2.0, "verify_2": 3.0, "verify_4": 5.0, "verify_8": 9.0}
    assert agrees(CostTable.of(spec(), measured), backend, lambda: backend.now)
    for method in measured:  # one of them met other work when it was measured
        spoilt = {**measured, method: 2 * measured[method]}
        assert not agrees(CostTable.of(spec(), spoilt), backend, lambda: backend.now), method
    assert backend.cache == []


def test_a_pass_costs_by_its_real_rows() -> None:
    table = CostTable.of(spec(), {**MS, "verify_8": (2.0, 9.0)})
    assert table.of_pass("verify_8", 1) == 2
    assert table.of_pass("verify_8", 8) == 9
    assert table.of_pass("verify_8", 4) == pytest.approx(5)
    assert table.per_node("verify_8") == 1
    assert table.per_node("verify_4") == 0
    assert table.of_full_passes()["verify_8"] == 9


def test_a_change_of_one_method_is_followed() -> None:
    table = CostTable.of(spec(), MS)
    for _ in range(200):
        table.observe("verify_4", 4, 3.75)
        table.observe(DECODE, 1, 2.0)
    ratio = table.of_pass("verify_4") / table.of_pass(DECODE)
    assert ratio == pytest.approx(3.75 / 2.0, rel=0.02)


def test_a_slower_device_is_slower_for_methods_that_did_not_run() -> None:
    table = CostTable.of(spec(), MS)
    for _ in range(200):
        table.observe(DECODE, 1, 4.0)
    assert table.of_pass(DECODE) == pytest.approx(4.0, rel=0.02)
    assert table.of_pass("verify_8") > 5.0


def test_one_interrupted_pass_moves_little_and_a_frozen_table_nothing() -> None:
    table, frozen = CostTable.of(spec(), MS), CostTable.of(spec(), MS, frozen=True)
    for one in (table, frozen):
        one.observe("verify_4", 4, 1000.0)
    assert table.of_pass("verify_4") < 1.05 * MS["verify_4"]
    assert frozen.of_full_passes() == MS


@pytest.mark.parametrize("ms", [{DECODE: 2.0}, {**MS, "verify_4": 0.0}, {**MS, "verify_4": float("nan")}])
def test_a_table_that_lacks_a_time_is_refused(ms: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs a positive time for verify_"):
        CostTable.of(spec(), ms)


def test_costs_are_remembered_per_bundle_and_device(tmp_path: Path) -> None:
    table = CostTable.of(spec(), {**MS, "verify_8": (2.0, 9.0)})
    PlanCache(tmp_path / "plans", FILES, "this one").store(table)
    found = PlanCache(tmp_path / "plans", dict(reversed(FILES.items())), "this one").load(spec())
    assert found is not None
    assert found.ms == table.ms
    assert PlanCache(tmp_path / "plans", FILES, "that one").load(spec()) is None
    assert PlanCache(tmp_path / "plans", {**FILES, "model.pte": "ef" * 32}, "this one").load(spec()) is None
    assert [path.suffix for path in (tmp_path / "plans").iterdir()] == [".json"], "no temporary file is left"


@pytest.mark.parametrize("damage", ["{", "[]", '{"format": 1}', "", '"x"'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, damage: str) -> None:
    cache = PlanCache(tmp_path, FILES, "this one")
    cache.store(CostTable.of(spec(), MS))
    cache.path.write_text(damage)
    assert cache.load(spec()) is None


def test_a_file_that_is_old_or_lacks_a_method_is_measured_again(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, FILES, "this one")
    cache.store(CostTable.of(spec(), MS))
    assert cache.load(spec(widths={"verify_16": (16, 8)})) is None
    data = json.loads(cache.path.read_text())
    cache.path.write_text(json.dumps({**data, "measured": time.time() - 90 * 86400}))
    assert cache.load(spec()) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    PlanCache(tmp_path / "file" / "plans", FILES, "this one").store(CostTable.of(spec(), MS))


def test_threads_make_another_device() -> None:
    assert device_name(1) != device_name(2)
