"""`streamfuse demo`. The engine is the arithmetic model of fakes.py; everything else is real.

Run: python -m pytest tests/cli/test_cli_demo.py
"""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import PrintableBackend, write_bundle
from engine_fixtures import made_engines
from typer.testing import CliRunner, Result

from streamfuse.bench.shared import cold_caches
from streamfuse.cli import app
from streamfuse.cli.commands import demo as command
from streamfuse.cli.shared.compare import Comparison, compare

made = made_engines(PrintableBackend)


PROMPTS = {kind: (kind, restriction) for kind, (_, restriction) in command.PROMPTS.items()}  # for a context of 64


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "PROMPTS", PROMPTS)
    monkeypatch.setattr(cold_caches, "largest_caches_bytes", lambda: 2**20)  # a server's take seconds to evict
    return write_bundle(tmp_path / "demo")


def demo(bundle: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["demo", str(bundle), "--repeats", "1", "--max-new-tokens", "40", *flags])


def test_three_answers_and_what_they_gained(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    result = demo(bundle, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    facts = json.loads(result.stdout)
    assert facts["equal"] is True
    assert [row["answer"] for row in facts["answers"]] == list(PROMPTS)
    assert facts["tokens_per_pass"] >= 1
    assert facts["speedup"] > 0
    assert facts["speedup_cold_caches"] > 0
    assert all(row["speedup_cold_caches"] > 0 for row in facts["answers"])
    assert facts["answers"][-1]["text"].startswith("{")


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_figures_stay_where_cold_caches_are_not_measured(
    bundle: Path, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def failing(size: int) -> Any:
        raise error

    monkeypatch.setattr(cold_caches, "reader", failing)
    result = demo(bundle)
    assert (result.exit_code == 0) is (error is MemoryError), result.stderr
    assert "speed-up" in result.stdout
    assert "cold" not in result.stdout
    assert ("too little memory to evict them" in result.stderr) is (error is MemoryError)


def test_ctrl_c_with_cold_caches_ends_after_the_table(
    bundle: Path,
    made: list[fakes.ArithmeticBackend],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    evictions = [0]

    def evict() -> None:
        """Called by the core, which the signal must not leave by an exception."""
        evictions[0] += 1
        if evictions[0] == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cold_caches, "reader", lambda size: evict)
    monkeypatch.setattr(cold_caches, "PASS_S", 0.0)  # the passes of a fake take no time
    result = demo(bundle)
    assert result.exit_code != 0
    assert "speed-up" in result.stdout
    assert "cold" not in result.stdout
    assert "ignored" not in capfd.readouterr().err


def test_people_read_the_texts_the_figures_and_their_meaning(bundle: Path, made: list[fakes.ArithmeticBackend]) -> None:
    result = demo(bundle)
    assert result.exit_code == 0, result.stderr
    for kind, (prompt, _) in PROMPTS.items():
        assert f"{kind}: {prompt}\n" in result.stdout
    facts = json.loads(demo(bundle, "--json").stdout)
    for row in facts["answers"]:
        assert row["text"] in result.stdout
    for words in ("equal, token for token", "accepted drafts", "tokens", "per", "pass", "speed-up", "cold", "caches"):
        assert words in result.stdout  # the columns' names may be broken between words
    assert "upper limit of the speed-up" in result.stderr


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("kernels", "a defect; please report it"),
        ("xnnpack", "which xnnpack, unlike kernels, allows at near ties"),
    ],
)
def test_texts_that_differ_are_a_failure(
    tmp_path: Path,
    bundle: Path,
    made: list[fakes.ArithmeticBackend],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    reason: str,
) -> None:
    def different(*arguments: Any) -> Comparison:
        return replace(compare(*arguments), equal=False)

    monkeypatch.setattr(command, "compare", different)
    result = demo(write_bundle(tmp_path / backend, backend=backend))
    assert result.exit_code == 1
    assert reason in result.stderr
