"""The program that compares speculative with plain texts: a few of its cases, what it finds, and how it continues.

10,000 cases: PYTHONPATH=tests/helpers python tools/equality.py

Run: python -m pytest tests/runtime/test_equality.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from equality_bundles import tiny_engine
from equality_cases import PROMPTS, TEMPERATURES, Case
from equality_engines import BundleEngine, Engine, Text, Written
from equality_fakes import ArithmeticEngine, ReferenceEngine
from equality_results import Results, ResultsError
from equality_soak import Soak, can_measure, memory_mb
from fakes import ArithmeticBackend
from tiers import cases as number_of_cases

import equality
from streamfuse.bench.structured.questions import Constraint
from streamfuse.runtime.backend import PassOutput

COMMAND = "PYTHONPATH=tests/helpers python tools/equality.py --seed 0 --engine arithmetic --threads 1 2 --case"
CORE_CASES = number_of_cases(32, 100)


@pytest.fixture(autouse=True)
def _own_cost_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))


def plan_of(*engines: Engine, seed: int = 0) -> equality.Plan:
    return equality.Plan({one.name: one for one in engines}, [1.0] * len(engines), seed, len(PROMPTS))


class Counting:
    """An engine that knows which cases it has written."""

    def __init__(self, engine: Engine) -> None:
        self.name, self.facts, self._engine = engine.name, engine.facts, engine
        self.numbers: list[int] = []

    def write(self, case: Case) -> tuple[Written, Written]:
        self.numbers.append(case.number)
        return self._engine.write(case)

    def decode(self, case: Case, tokens: Sequence[int]) -> str:
        return self._engine.decode(case, tokens)

    def prepare(self) -> None:
        self._engine.prepare()

    def trim(self) -> None:
        self._engine.trim()

    def close(self) -> None:
        self._engine.close()


class NotRowInvariant(ArithmeticBackend):
    """Another token wins in passes of several rows, in one context of eight."""

    def run(self, *arguments: Any, **settings: Any) -> PassOutput:
        output = super().run(*arguments, **settings)
        if output.logits is None or len(arguments[1]) < 2 or sum(self.cache) % 8:
            return output
        logits = output.logits.copy()
        logits[:, 5] += 50
        return replace(output, logits=logits, best=logits.argmax(axis=1))


def test_the_core_and_the_readable_loop_over_the_arithmetic_model(tmp_path: Path) -> None:
    plan, count = plan_of(ArithmeticEngine(tmp_path / "core"), ReferenceEngine(tmp_path / "reference")), CORE_CASES
    summary = equality.run(plan, range(count))
    assert not summary.differences
    assert summary.cases == count
    assert summary.plain_passes > summary.passes > 0
    assert min(summary.delivered_by[source] for source in ("streams", "lookup", "grammar")) > 0, summary.delivered_by
    assert summary.by["restored"]["1"] > count // 10
    assert min(summary.by["memory"][kind] for kind in ("same", "other")) > count // 30


def test_a_tiny_model_with_task_adapters_in_the_native_engine(tmp_path: Path) -> None:
    engine = tiny_engine("tiny-tasks", tmp_path, PROMPTS, (1, 2))
    summary = equality.run(plan_of(engine), range(40))
    engine.close()
    assert not summary.differences
    assert set(summary.by["adapter"]) == {"base", "frozen", "tuned", "lora"}
    assert set(summary.by["way"]) == {"text", "saved", "chat"}
    assert set(summary.by["threads"]) == {"1+1", "1+2", "2+1", "2+2"}
    assert {"measured", "given"} <= set(summary.by["planner"])
    assert {"schema", "regex", "grammar", "none"} >= set(summary.by["kind"])
    assert summary.by["restored"]["1"] > 3
    assert summary.delivered_by["grammar"], summary.delivered_by


def test_cases_follow_from_seed_and_number_and_vary_in_everything(tmp_path: Path, chat_bundle: Path) -> None:
    engines = ArithmeticEngine(tmp_path / "core"), BundleEngine("tiny", chat_bundle, tmp_path)
    plan, again = plan_of(*engines), plan_of(*engines)
    cases = [plan.case(number) for number in range(2000)]
    assert cases[1234] == again.case(1234)
    assert cases[:50] != [plan_of(*engines, seed=1).case(number) for number in range(50)]
    assert {case.options["temperature"] for case in cases} == set(TEMPERATURES)
    of_bundle = [case for case in cases if case.engine == "tiny"]
    assert {case.widths[0] for case in of_bundle} == {None, 4, 12}
    assert {case.constraint for case in of_bundle} == {None, *range(len(engines[1].facts.constraints))}
    assert {case.form for case in of_bundle} == {"chat", "raw", "ids"}
    assert all(case.threads[0] == case.threads[1] for case in cases if case.memory == "same")
    assert all(0 < case.leave < case.options["max_new_tokens"] for case in cases if case.way == "saved" and case.leave)


def test_an_engine_whose_rows_depend_on_the_pass_is_found_with_its_case(tmp_path: Path) -> None:
    plan = plan_of(ArithmeticEngine(tmp_path / "core", NotRowInvariant))
    summary = equality.run(plan, range(number_of_cases(24, 60)))
    assert len(summary.differences) > 2
    record = summary.differences[0]
    assert "differs: plain '" in record["difference"]
    assert equality.run(plan, [record["number"]]).differences == [record]
    (found, *_) = summary.to_dict(COMMAND)["differences"]
    assert found["command"] == f"{COMMAND} {record['number']}"
    assert f"    {COMMAND} {record['number']}" in summary.lines(COMMAND)


class Scripted(Engine):
    """An engine whose speculative text is given; the plain one is 123."""

    name = "scripted"

    def __init__(self, folder: Path, speculative: Text, plain: str = "123") -> None:
        self.facts = replace(ArithmeticEngine(folder).facts, constraints=(Constraint("regex", "[0-9]{3}"),))
        self._texts = Text(tuple(map(ord, plain)), plain, "stop"), speculative

    def write(self, case: Case) -> tuple[Written, Written]:
        return Written((self._texts[0],)), Written((self._texts[1],))

    def decode(self, case: Case, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("speculative", "plain", "difference"),
    [
        (Text((49, 50, 51), "123", "stop"), "123", None),
        (Text((49, 50, 52), "124", "stop"), "123", "token 2 differs: plain '123', speculative '124'"),
        (Text((49, 50), "12", "stop"), "123", "token 2 differs: plain '123', speculative '12'"),
        (Text((49, 50, 51), "123", "length"), "123", "finish reason: plain stop, speculative length"),
        (Text((49, 50, 51), "12", "stop"), "123", "the same tokens as text: plain '123', speculative '12'"),
        (Text((49,), "1", "stop"), "1", "'1' is not valid: the regular expression does not match"),
    ],
)
def test_tokens_reasons_texts_and_constraints_are_compared(
    tmp_path: Path, speculative: Text, plain: str, difference: str | None
) -> None:
    engine = Scripted(tmp_path / "facts", speculative, plain)
    plan = plan_of(engine)
    restricted = next(case for case in map(plan.case, range(99)) if case.constraint is not None)
    assert equality.compare(engine, restricted)["difference"] == difference


def test_a_failure_of_an_engine_is_a_difference(tmp_path: Path) -> None:
    class Failing(ArithmeticBackend):
        def commit(self, rows: Sequence[int]) -> None:
            raise OSError("the cache is gone")

    summary = equality.run(plan_of(ArithmeticEngine(tmp_path / "core", Failing)), range(5))
    assert "OSError: the cache is gone" in {one["difference"] for one in summary.differences}


def test_a_stopped_run_continues_and_a_damaged_last_line_is_written_again(tmp_path: Path) -> None:
    path, engine = tmp_path / "results.jsonl", Counting(ArithmeticEngine(tmp_path / "core"))
    plan = plan_of(engine)
    with Results(path, {"seed": 0}) as results:
        whole = equality.run(plan, range(8), results)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]) + lines[6][:40])  # five cases and a part of the sixth
    engine.numbers.clear()
    with Results(path, {"seed": 0}) as results:
        continued = equality.run(plan, range(8), results)
    assert engine.numbers == [5, 6, 7]
    assert path.read_bytes().splitlines(keepends=True) == lines
    assert continued == whole


def test_a_file_of_another_run_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    busy = pytest.raises(ResultsError, match="is being written by another process; give another --results")
    with Results(path, {"seed": 0, "threads": [1]}), busy:
        Results(path, {"seed": 0, "threads": [1]})
    with pytest.raises(ResultsError, match="is of a run with other threads; remove it, or give another --results"):
        Results(path, {"seed": 0, "threads": [2]})
    path.write_bytes(b"{\n" + path.read_bytes())
    with pytest.raises(ResultsError, match="line 1, is damaged"):
        Results(path, {"seed": 0, "threads": [1]})


def test_the_program_counts_and_its_exit_code_is_1_after_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    arguments = ["--engine", "arithmetic", "--cases", "6", "--results", str(path), "--json"]
    assert equality.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cases"], found["differences"]) == (6, [])
    assert sum(found["by"]["temperature"].values()) == 6
    lines = path.read_text().splitlines()
    lines[4] = json.dumps({**json.loads(lines[4]), "difference": "token 3 differs"})
    path.write_text("\n".join([*lines, ""]))
    assert equality.main(arguments) == 1
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert difference == {"case": 3, "difference": "token 3 differs", "command": f"{COMMAND} 3"}
    assert equality.main(["--engine", "arithmetic", "--case", "3"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["number"] == 3


def test_a_soak_fails_if_the_memory_rises() -> None:
    for rise, grows in ((0.0, False), (0.05, True)):  # MB per second
        released: list[int] = []
        soak = Soak(1000, most_growth=16, release=lambda: released.append(1))  # noqa: B023 (called in this turn)
        now = 0
        while soak.goes_on(5.0 + now):
            soak.sample(5.0 + now, 4 * now, 100 + rise * now + now % 3 + 50 * (now > 60))
            now += 1
        assert soak.grows is grows
        assert soak.mb_per_hour == pytest.approx(3600 * rise, abs=8)
        assert soak.kb_per_1000_generations == pytest.approx(1024 * 250 * rise, abs=600)
        assert soak.growth_mb == pytest.approx(800 * rise, abs=2)
        assert len(released) == len(soak.samples) <= 201


measured = pytest.mark.skipif(not can_measure(), reason="only Linux with glibc reports the memory in use")


@measured
def test_the_program_watches_the_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = itertools.count(0, 0.2)  # from look to look, however slow the machine
    monkeypatch.setattr(equality, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert equality.main(["--engine", "arithmetic", "--soak", "4", "--most-growth", "999", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cases"] > 1
    assert found["repetitions"] > 1
    assert found["generations"] >= 2 * (found["cases"] + found["repetitions"])
    assert len(found["soak"]["samples"]) > 1


def test_a_soak_repeats_the_cases_of_its_warm_up() -> None:
    soak = Soak(100, most_growth=4)
    assert soak.goes_on(7.0)
    assert [soak.case(done, 7.0 + 6 * done) for done in range(12)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_a_repeated_case_is_counted_apart(tmp_path: Path) -> None:
    summary = equality.run(plan_of(ArithmeticEngine(tmp_path / "core")), [0, 1, 2, 0, 1])
    found = summary.to_dict("")
    assert (found["cases"], found["repetitions"], sum(found["by"]["engine"].values())) == (3, 2, 5)
    assert summary.lines("")[-1].startswith("3 cases and 2 repetitions, ")


def test_a_soak_without_a_measure_of_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equality, "can_measure", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        equality.main(["--engine", "arithmetic", "--soak", "4"])
    assert "--soak needs Linux with glibc" in capsys.readouterr().err


@measured
def test_a_soak_counts_memory_in_use(tmp_path: Path) -> None:
    before = memory_mb()
    taken = [bytearray(b"x" * 60_000) for _ in range(500)]  # of the heap: a mapping begins at twice the size
    assert memory_mb() - before > 25
    last = taken[-1]
    del taken
    assert memory_mb() - before < 5, "free, though the block above it is not"
    assert last
    np.ones(30_000_000, np.int8).tofile(tmp_path / "file")
    mapped = np.memmap(tmp_path / "file", np.int8)
    assert mapped.sum(dtype=np.int64) == 30_000_000
    assert memory_mb() - before < 5, "the system may drop pages of a file"
