"""`streamfuse bench all`: what it would run, what it keeps, and what it leaves out. The benchmarks are fakes.

Run: python -m pytest tests/bench/test_bench_all.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import write_bundle
from typer.testing import CliRunner, Result

from streamfuse.bench import suite
from streamfuse.cli import app


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Bundles and data as the command expects them, but for the bundle sql and for HumanEval."""
    for name in ("demo", "e2e"):
        write_bundle(tmp_path / "build" / name)
    for _, file, _ in suite.SETS.values():
        if "humaneval" not in file:
            (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / file).write_text("{}\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the benchmarks that were run, by a fake that has figures for each."""
    names: list[str] = []

    def measure(benchmark: suite.Benchmark) -> tuple[dict[str, Any], dict[str, Any]]:
        names.append(benchmark.name)
        systems = {"speculative": {"mean_accepted_tokens": 2.0}}
        if benchmark.arguments[1] == "memory":
            peaks = {"plain": {"peak_memory_mb": 151.4}, "speculative": {"peak_memory_mb": 171.6}}
            systems = peaks if "demo" in benchmark.name else {**peaks, "llama.cpp Q4_0": {"peak_memory_mb": 234.5}}
            return {"prompt_tokens": 77, "systems": systems, "equal": True}, {}
        gains = {"all": {"without streams": {"speedup": 1.01, "interval": [0.9, 1.1]}}}
        result = {"prompts": 3, "systems": systems, "gains": gains, "speedup": 1.5, "speedup_interval": [1.25, 1.75]}
        return result, {"began": "2026-01-01T00:00:00+00:00", "seconds": 1}

    monkeypatch.setattr(suite, "measure", measure)
    return names


def program_that(folder: Path, commands: str) -> Path:
    """A shell script that runs `commands`; tests set it as `sys.executable`."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{commands}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def bench_all(place: Path, *flags: str) -> Result:
    folders = ["--data", str(place / "data"), "--bundles", str(place / "build"), "-o", str(place / "out.json")]
    return CliRunner().invoke(app, ["bench", "all", *folders, *flags])


def test_two_runs_on_one_file_keep_the_results_of_both(place: Path) -> None:
    first, second = suite.benchmarks(place / "build", place / "data", 1, 1)[:2]
    results = [suite.Results(place / "out.json") for _ in range(2)]
    results[0].add(first, suite.identity(first), {"prompts": 1})
    results[1].add(second, suite.identity(second), {"prompts": 2})
    assert set(suite.Results(place / "out.json").rows) == {first.name, second.name}


def test_every_command_that_it_runs_is_one(place: Path) -> None:
    result = bench_all(place, "--dry-run")
    assert result.exit_code == 0, result.stderr
    commands = [line.split() for line in result.stdout.splitlines() if not line.startswith("#")]
    listed = json.loads(bench_all(place, "--dry-run", "--json").stdout)
    assert [command.split() for command in listed["to_run"].values()] == commands
    assert "HumanEval" in listed["left_out"]
    for kind in ("tasks", "acceptance", "structured", "latency", "memory"):
        flags = {flag for command in commands if command[2] == kind for flag in command if flag.startswith("--")}
        help_text = CliRunner().invoke(app, ["bench", kind, "--help-all"], env={"COLUMNS": "300"}).stdout
        assert {flag for flag in (*flags, "--json") if flag not in help_text} == set()


def test_what_is_missing_is_named_and_left_out(place: Path, ran: list[str]) -> None:
    result = bench_all(place)
    assert result.exit_code == 0, result.stderr
    assert "HumanEval: left out" in result.stderr
    assert "build/sql is missing (make bundles)" in result.stderr
    assert {"chat", "E2E", "structured, objects", "passes of demo"} <= set(ran)
    assert not [name for name in ran if "HumanEval" in name or "SQL" in name]
    assert "1.25-1.75" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["demo", "77", "151", "172", "-"] in rows
    assert ["e2e", "77", "151", "172", "234"] in rows


def test_only_what_changed_is_measured_again(place: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bench_all(place)
    first = list(ran)
    ran.clear()
    found = json.loads(bench_all(place, "--json").stdout)
    assert (ran, list(found["benchmarks"])) == ([], first)
    manifest = place / "build" / "e2e" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    bench_all(place)
    assert ran == [name for name in first if "E2E" in name or "e2e" in name]
    assert "E2E, streams alone" in ran
    ran.clear()
    (place / "data" / "gsm8k" / "question.jsonl").write_text("{} \n", encoding="utf-8")
    bench_all(place)
    assert ran == [name for name in first if "GSM8K" in name]
    ran.clear()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(suite, "processor", lambda: "another")
        result = bench_all(place)
    assert (result.exit_code, ran) == (1, [])
    assert "has results of another processor" in result.stderr
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("STREAMFUSE_ISA", "avx2")
        bench_all(place, "--only", "structured")
        assert ran == [name for name in first if name.startswith("structured")]
        ran.clear()
        elsewhere.setattr(suite, "version", lambda package: "99.0")
        bench_all(place, "--only", "structured")
        assert ran == [name for name in first if name.startswith("structured")]
        ran.clear()
    bench_all(place, "--limit", "5", "--only", "structured")
    assert ran == [name for name in first if name.startswith("structured")]
    ran.clear()
    bench_all(place, "--limit", "5", "--only", "peak memory")
    assert ran == ["peak memory of demo", "peak memory of e2e"]


def test_ratios_to_empty_answers_are_left_open(place: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = suite.measure

    def empty(benchmark: suite.Benchmark) -> tuple[dict[str, Any], dict[str, Any]]:
        result, facts = whole(benchmark)
        gains = {"all": {"without streams": {"speedup": None, "interval": [None, None]}}}
        return {**result, "gains": gains, "speedup": None, "speedup_interval": [None, None]}, facts

    monkeypatch.setattr(suite, "measure", empty)
    result = bench_all(place, "--only", "E2E")
    assert result.exit_code == 0, result.stderr
    assert ["E2E", "3", "2.00", "-", "---", "-", "-"] in [line.split() for line in result.stdout.splitlines()]


def test_a_missing_package_is_named_before_the_first_benchmark(
    place: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lark", None)
    result = bench_all(place)
    assert result.exit_code == 1
    assert "bench structured needs lark: pip install 'streamfuse[bench]'" in result.stderr
    assert ran == []
    assert bench_all(place, "--only", "passes").exit_code == 0


def test_a_failure_keeps_what_was_measured(place: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = suite.measure

    def failing(benchmark: suite.Benchmark) -> tuple[dict[str, Any], dict[str, Any]]:
        if len(ran) == 3:
            raise suite.SuiteError(f"{benchmark.name} ended with code 1: {benchmark.command}")
        return whole(benchmark)

    monkeypatch.setattr(suite, "measure", failing)
    result = bench_all(place)
    assert result.exit_code == 1
    assert "ended with code 1: streamfuse bench" in result.stderr
    kept = json.loads((place / "out.json").read_text(encoding="utf-8"))
    assert list(kept["benchmarks"]) == ran
    monkeypatch.setattr(suite, "measure", whole)
    ran.clear()
    bench_all(place)
    assert not set(ran) & set(kept["benchmarks"])


def test_a_benchmark_is_a_process_whose_failure_has_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = program_that(tmp_path, 'test "$*" = "-m streamfuse bench latency x --json" && echo \'{"a": 1}\'')
    monkeypatch.setattr(suite, "commit", lambda: "0123abcd")
    monkeypatch.setattr(sys, "executable", str(program))
    passes = suite.Benchmark("passes", ("bench", "latency", "x"), tmp_path, None)
    result, facts = suite.measure(passes)
    assert (result, facts["seconds"], facts["commit"]) == ({"a": 1}, 0, "0123abcd")
    assert "other_load_cores" in facts
    with pytest.raises(suite.SuiteError, match=r"^chat ended with code 1: streamfuse bench tasks x$"):
        suite.measure(suite.Benchmark("chat", ("bench", "tasks", "x"), tmp_path, None))


def test_ctrl_c_lets_a_benchmark_end(tmp_path: Path) -> None:
    """Its process has programs to end and figures to print, for longer than Python waits for an interrupted child."""
    program = program_that(tmp_path, f"""
        trap 'sleep 1; echo ended >{tmp_path}/said; exit 130' INT
        echo began >{tmp_path}/said
        while :; do sleep 0.05; done
    """)  # fmt: skip
    script = (
        "import sys; from pathlib import Path; from streamfuse.bench import suite\n"
        f"sys.executable = {str(program)!r}\n"
        "suite.measure(suite.Benchmark('passes', ('bench', 'latency', 'x'), Path(), None))\n"
    )
    said = tmp_path / "said"
    terminal = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not said.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(terminal.pid, signal.SIGINT)
        _, printed = terminal.communicate(timeout=60)
    finally:
        if terminal.poll() is None:
            os.killpg(terminal.pid, signal.SIGKILL)
    assert b"KeyboardInterrupt" in printed
    assert said.read_text() == "ended\n"


def test_a_damaged_file_of_results_is_not_overwritten(place: Path, ran: list[str]) -> None:
    (place / "out.json").write_text("{", encoding="utf-8")
    result = bench_all(place)
    assert (result.exit_code, ran) == (1, [])
    assert "is not a file of results" in result.stderr
    assert (place / "out.json").read_text(encoding="utf-8") == "{"


def test_a_result_names_its_commit_and_uncommitted_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "suite.py"
    file.write_text("1\n", encoding="utf-8")
    monkeypatch.setattr(suite, "__file__", str(file))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "of another project")
    assert suite.commit() is None, "the file is in a repository that does not track it, as in an environment"
    git("add", "suite.py")
    git("commit", "-q", "-m", "first")
    git("tag", "v1")
    revision = git("rev-parse", "--short=8", "HEAD")
    assert suite.commit() == revision
    file.write_text("2\n", encoding="utf-8")
    assert suite.commit() == f"{revision}-dirty"
