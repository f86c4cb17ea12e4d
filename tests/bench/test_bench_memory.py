"""The memory bench: a process per system, whose peak is counted from its start; programs that fail are left out.

Run: python -m pytest tests/bench/test_bench_memory.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import external_systems
import pytest
from bundle_samples import write_bundle
from typer.testing import CliRunner

from streamfuse.bench import memory
from streamfuse.bench.external import llama_cpp, opening
from streamfuse.bench.external.child import Child
from streamfuse.bench.memory import Opener, measure, own_systems, rows, summary
from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    PLAIN,
    SPECULATIVE,
    ExternalSystemError,
    Request,
    System,
)
from streamfuse.cli import app

OPENER = f"{external_systems.__name__}:open_system"
ASKED = Request([1, 2, 3], 4)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child finds the systems of tests/helpers."""
    paths = [str(Path(external_systems.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def fake(name: str, megabytes: int = 0, **faults: Any) -> Opener:
    """Opens a system that answers 9, and takes so much memory before."""

    def opened(child: Child) -> System:
        if megabytes:
            child.run("numpy:ones", shape=megabytes * 125_000)
        return child.open(name, OPENER, name=name, **faults)

    return opened


def test_each_system_has_the_peak_of_its_own_process() -> None:
    seen: list[str] = []
    openers = {name: fake(name, size) for name, size in ((PLAIN, 300), (SPECULATIVE, 100), ("other", 0))}
    result = measure(openers, ASKED, {"threads": 2}, progress=seen.append)
    facts = json.loads(json.dumps(result.to_dict()))
    grown = {name: one["peak_memory_mb"] - one["start_memory_mb"] for name, one in facts["systems"].items()}
    assert grown == {
        PLAIN: pytest.approx(300, rel=0.1), SPECULATIVE: pytest.approx(100, rel=0.1), "other": pytest.approx(0, abs=20)
    }  # fmt: skip
    assert seen == ["memory of plain", "memory of speculative", "memory of other"]
    assert (facts["equal"], facts["prompt_tokens"], facts["max_new_tokens"], facts["threads"]) == (True, 3, 4, 2)
    assert [row[0] for row in rows(result)[1]] == list(openers)
    assert "plain and speculative gave the same tokens" in summary(result)


def test_a_program_that_fails_is_left_out_and_a_system_of_ours_is_an_error() -> None:
    notices: list[str] = []
    openers = {PLAIN: fake(PLAIN), LLAMA_CPP: fake(LLAMA_CPP, fault="SIGKILL", good=0)}
    result = measure(openers, ASKED, left_out={"other": "it is not installed"}, without=notices.append)
    assert list(result.systems) == [PLAIN]
    assert result.equal is None
    assert list(result.left_out) == ["other", LLAMA_CPP]
    assert [line.split(",")[0] for line in notices] == ["Without llama.cpp: llama.cpp was ended by SIGKILL"]
    with pytest.raises(ExternalSystemError, match=r"^plain was ended by SIGKILL"):
        measure({PLAIN: fake(PLAIN, fault="SIGKILL", good=0)}, ASKED)


def test_quantizing_is_not_in_the_figure_of_llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    processes: dict[str, list[Child]] = {"quantized": [], "opened": []}

    def quantized(child: Child, *_: object) -> None:
        processes["quantized"].append(child)

    def open_child(child: Child, source: Path, kind: str, folder: Path, **arguments: Any) -> System:
        processes["opened"].append(child)
        assert (arguments["threads"], arguments["stop_ids"]) == (2, list(manifest.model.eos_token_ids))
        return child.open(LLAMA_CPP, OPENER, name=LLAMA_CPP)

    from streamfuse.bundle import open_bundle

    manifest = open_bundle(write_bundle(tmp_path / "demo")).manifest
    monkeypatch.setattr(llama_cpp, "kinds_of", lambda path: ("Q4_0", "Q8_0"))
    monkeypatch.setattr(llama_cpp, "quantized", quantized)
    monkeypatch.setattr(llama_cpp, "open_child", open_child)
    result = measure(memory.llama_cpp_systems(tmp_path / "some.gguf", 2, manifest), ASKED)
    assert list(result.systems) == ["llama.cpp Q4_0", "llama.cpp Q8_0"]
    assert not set(map(id, processes["quantized"])) & set(map(id, processes["opened"]))


def command(bundle: Path, tmp_path: Path, *flags: str) -> tuple[int, str, str]:
    data = tmp_path / "q.jsonl"
    data.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("hi", "good morning", "yo", "x" * 5000)))
    words = ["bench", "memory", str(bundle), "--data", str(data), "--max-new-tokens", "8"]
    result = CliRunner().invoke(app, [*words, *flags])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_answers_the_longest_prompt_that_fits(chat_bundle: Path, tmp_path: Path) -> None:
    code, stdout, stderr = command(chat_bundle, tmp_path, "--systems", "plain,speculative", "--json")
    assert code == 0, stderr
    facts = json.loads(stdout)
    assert list(facts["systems"]) == [PLAIN, SPECULATIVE]
    assert facts["equal"] is True
    assert facts["prompt_tokens"] > len("good morning")
    for one in facts["systems"].values():
        assert 10 < one["start_memory_mb"] < one["peak_memory_mb"] < 150, "PyTorch alone is more"
    code, stdout, stderr = command(chat_bundle, tmp_path, "--systems", "plain")
    assert code == 0, stderr
    assert "peak, MB" in stdout
    assert f"a prompt of {facts['prompt_tokens']} tokens, at most 8 new ones" in stdout


def test_a_llama_cpp_without_weights_is_an_error_if_it_was_asked_for(
    chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Path:
        raise ExternalSystemError("there is no GGUF of these weights")

    monkeypatch.setattr(opening, "llama_cpp_weights", refused)
    code, _, stderr = command(chat_bundle, tmp_path, "--systems", "plain,llama.cpp")
    assert (code, stderr.splitlines()[-1]) == (1, "error: there is no GGUF of these weights")
    monkeypatch.setattr("streamfuse.cli.shared.systems.find_spec", lambda name: object())
    code, stdout, stderr = command(chat_bundle, tmp_path, "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["left_out"] == {LLAMA_CPP: "there is no GGUF of these weights"}
    assert "Without llama.cpp: there is no GGUF of these weights" in stderr


def test_a_bundle_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    openers = own_systems(tmp_path / "none", [PLAIN, LLAMA_CPP], None, None, None)
    assert list(openers) == [PLAIN]
    with pytest.raises(ExternalSystemError, match="none"):
        measure(openers, ASKED)
