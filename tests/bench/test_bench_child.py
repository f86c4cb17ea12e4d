"""External systems in a process of their own: one that dies is named and left out, and no figure is lost.

Run: python -m pytest tests/bench/test_bench_child.py
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import external_systems
import gguf
import numpy as np
import pytest
from bundle_samples import edit_manifest, fake_engines, write_bundle
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.bench.external import llama_cpp
from streamfuse.bench.external.child import Child
from streamfuse.bench.external.opening import trial
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.machine import peak_resident_bytes
from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    PLAIN,
    SPECULATIVE,
    Answer,
    ExternalSystemDied,
    ExternalSystemError,
    Request,
    System,
)
from streamfuse.bench.tasks import measure as bench_tasks
from streamfuse.bench.tasks.measure import TaskError, TaskResult, compare
from streamfuse.cli import app

OPENER = f"{external_systems.__name__}:open_system"
ASKED = Request([1, 2, 3], 4)
PROMPTS = [[1, 2], [3], [4, 5]]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child finds the systems of this folder."""
    paths = [str(Path(external_systems.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


class Own:
    """A system of this process; `stop` is raised at the answer of this number, warm-up counted."""

    def __init__(self, name: str, ms: float, stop: BaseException | None = None, at: int = 0) -> None:
        self.name, self._ms, self._stop, self._left = name, ms, stop, at

    def answer(self, request: Request) -> Answer:
        self._left -= 1
        if self._stop is not None and self._left < 0:
            raise self._stop
        return Answer((7,) * request.max_new_tokens, self._ms * request.max_new_tokens)


def run(*systems: System, notices: list[str] | None = None, repetitions: int = 2) -> TaskResult:
    settings = TaskSettings(max_new_tokens=10, repetitions=repetitions)
    lines: list[str] = [] if notices is None else notices
    return compare(systems, PROMPTS, settings, lambda: 20.0, 100_000_000, {"prompts": 3}, without=lines.append)


def test_an_answer_comes_from_another_process_with_the_time_that_was_taken_there() -> None:
    with Child("fake") as child:
        system = child.open("fake", OPENER, name="fake")
        answer = system.answer(ASKED)
    assert answer.token_ids == (9, 9, 9, 9)
    assert answer.decode_ms == 4 * external_systems.MS_PER_TOKEN
    assert answer.statistics is not None
    assert answer.statistics["process"] != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(answer.statistics["process"], 0)


def test_the_peak_memory_is_that_of_the_child(tmp_path: Path) -> None:
    here = np.ones(100_000_000, np.int8)
    with Child("fake") as child:
        before = child.peak_bytes()
        assert 10e6 < before < peak_resident_bytes() - 0.5 * here.nbytes, "memory of this process does not count"
        child.run("numpy:ones", shape=25_000_000)
        after = child.peak_bytes()
    assert after - before == pytest.approx(200e6, rel=0.1), "it stays when the memory is given back"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("SIGSEGV", r"^fake was ended by SIGSEGV"),
        ("SIGABRT", r"^fake was ended by SIGABRT"),
        ("SIGKILL", r"^fake was ended by SIGKILL, as the system does where memory runs out"),
        ("exit", r"^fake ended with code 3 \(the context is gone\)$"),
        ("silence", r"^fake gave no reply within 1 s and was stopped"),
        ("garbage", r"^fake replied with something that is no JSON object"),
        ("list", r"^fake replied with something that is no JSON object"),
        ("tokens", r"^fake replied with something that is no answer"),
        ("time", r"^fake replied with something that is no answer"),
    ],
)
def test_a_system_that_dies_is_one_sentence_for_every_later_answer_too(fault: str, sentence: str) -> None:
    with Child("fake", answer_s=1) as child:
        system = child.open("fake", OPENER, name="fake", fault=fault, good=1)
        other = child.open("other", OPENER, name="other")
        assert system.answer(ASKED).token_ids
        for _ in range(2):
            with pytest.raises(ExternalSystemDied, match=sentence):
                system.answer(ASKED)
        with pytest.raises(ExternalSystemDied, match=sentence):
            other.answer(ASKED)


def test_a_system_that_dies_while_it_opens_is_told_from_one_that_refuses() -> None:
    with Child("fake") as child, pytest.raises(ExternalSystemDied, match=r"^fake was ended by SIGSEGV"):
        child.open("fake", OPENER, name="fake", fault="SIGSEGV", good=-1)
    with Child("fake") as child:
        with pytest.raises(ExternalSystemError, match=r"^the file is no model$") as refused:
            child.open("fake", OPENER, name="fake", fault="sentence", good=-1)
        assert not isinstance(refused.value, ExternalSystemDied)
        assert child.open("fake", OPENER, name="fake").answer(ASKED).token_ids, "the process is still good"


def test_ctrl_c_ends_the_child_at_once() -> None:
    def interrupted() -> None:
        with Child("fake") as child:
            child.open("fake", OPENER, name="fake")
            raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("good", [0, 2, 5])
def test_a_system_that_dies_is_left_out_and_the_rest_is_reported(good: int) -> None:
    notices: list[str] = []
    with Child(LLAMA_CPP) as child:
        external = child.open(LLAMA_CPP, OPENER, name=LLAMA_CPP, fault="SIGSEGV", good=good)
        result = run(Own(PLAIN, 6.0), Own(SPECULATIVE, 2.0), external, notices=notices)
    facts = json.loads(json.dumps(result.to_dict()))
    assert list(facts["systems"]) == [PLAIN, SPECULATIVE]
    assert facts["speedup"] == pytest.approx(3.0)
    assert facts["over"] == {}
    assert (facts["prompts"], facts["repetitions"], facts["complete"]) == (3, 2, True)
    assert notices == [f"Without llama.cpp: {facts['left_out'][LLAMA_CPP]}"]
    assert notices[0].startswith("Without llama.cpp: llama.cpp was ended by SIGSEGV")


def test_with_no_system_left_the_last_reason_is_the_error() -> None:
    with Child("fake") as child:
        external = child.open("fake", OPENER, name="fake", fault="SIGKILL", good=0)
        with pytest.raises(TaskError, match=r"no system is left to measure: fake was ended by SIGKILL"):
            run(external)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), RuntimeError("the engine failed")])
def test_what_was_complete_when_a_run_stopped_is_reported(stop: BaseException) -> None:
    # A warm-up, then three prompts twice: stopped at the third prompt, and at the second prompt of the second time.
    early = run(Own(PLAIN, 6.0), Own(SPECULATIVE, 2.0, stop, at=3))
    assert (early.prompts, early.settings.repetitions, early.stopped_by) == (2, 1, stop)
    late = run(Own(PLAIN, 6.0), Own(SPECULATIVE, 2.0, stop, at=5))
    facts = late.to_dict()
    assert (facts["prompts"], facts["repetitions"], facts["complete"]) == (3, 1, False)
    assert facts["speedup"] == pytest.approx(3.0)
    with pytest.raises(type(stop)):
        run(Own(PLAIN, 6.0), Own(SPECULATIVE, 2.0, stop, at=1))


def test_a_candidate_that_dies_in_the_trial_is_left_out() -> None:
    notices: list[str] = []
    with Child("Q4_0") as first, Child("Q8_0") as second:
        candidates = {
            "Q4_0": first.open("Q4_0", OPENER, name="Q4_0", fault="SIGSEGV", good=1),
            "Q8_0": second.open("Q8_0", OPENER, name="Q8_0"),
        }
        rates = trial(candidates, [1], TaskSettings(), notices.append)
    assert rates == {"Q8_0": pytest.approx(1000 / external_systems.MS_PER_TOKEN)}
    assert [line.split(" (")[0] for line in notices] == ["Without Q4_0: Q4_0 was ended by SIGSEGV"]


def test_llama_cpp_quantizes_and_answers_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_file = tmp_path / "some.gguf"
    writer = gguf.GGUFWriter(gguf_file, "llama")
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    package = tmp_path / "packages" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from fake_llama import FakeLlama\nllama_cpp = FakeLlama()\n")
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{os.environ['PYTHONPATH']}")
    cache = tmp_path / "cache"
    with Child(LLAMA_CPP) as child:
        system = llama_cpp.open_child(child, gguf_file, "Q4_0", cache, threads=1, capacity=64, stop_ids=[49])
        assert system.answer(Request([1, 2, 3], 3)).token_ids == (6, 12, 24)
    assert [re.sub("-[0-9a-f]{16}-", "-", path.name) for path in cache.iterdir()] == ["some-Q4_0.gguf"]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def say_sizes(manifest: dict[str, Any]) -> None:
        for scheme in manifest["quantization"].values():
            scheme |= {"bytes": 1000, "parameters": 1000}

    path = write_bundle(tmp_path / "demo")
    edit_manifest(path, say_sizes)
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    return path


def command(bundle: Path, tmp_path: Path, *flags: object) -> tuple[int, dict[str, Any], str]:
    data = tmp_path / "q.jsonl"
    data.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("hi", "yo")))
    words = ["bench", "tasks", str(bundle), "--data", str(data), "--max-new-tokens", "8", "--repetitions", "2"]
    result = CliRunner().invoke(app, [*words, "--json", *map(str, flags)])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


@pytest.mark.parametrize(("good", "kinds"), [(0, 3), (6, 0)])
def test_the_command_survives_a_llama_cpp_that_crashes(
    good: int, kinds: int, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every quantization in the trial, or in the run after it; asked for by name or not."""

    def fake(child: Child, *_: object, **__: object) -> System:
        return child.open(LLAMA_CPP, OPENER, name=LLAMA_CPP, fault="SIGSEGV", good=good)

    monkeypatch.setattr(llama_cpp, "open_child", fake)
    monkeypatch.setattr(llama_cpp, "check_installed", lambda: None)
    monkeypatch.setattr(llama_cpp, "kinds_of", lambda path: llama_cpp.QUANTIZATIONS)
    gguf = tmp_path / "some.gguf"
    code, facts, stderr = command(bundle, tmp_path, "--systems", "plain,speculative,llama.cpp", "--gguf", gguf)
    assert code == 0, stderr
    assert list(facts["systems"]) == [PLAIN, SPECULATIVE]
    assert list(facts["left_out"]) == [LLAMA_CPP]
    assert facts["speedup"] > 0
    assert stderr.count("was ended by SIGSEGV") == (kinds or 1)
    assert "Without llama.cpp: " in stderr


def test_ctrl_c_prints_the_figures_that_are_complete(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([False] * 3 + [True] * 9)

    def settle(seconds: float) -> None:
        if next(turns):
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_tasks.time, "sleep", settle)
    code, facts, stderr = command(bundle, tmp_path, "--systems", "plain,speculative")
    assert code == 130
    assert (facts["prompts"], facts["repetitions"], facts["complete"]) == (1, 1, False)
    assert "Stopped early: the figures are of 1 of 2 prompts, 1 of 2 repetitions." in stderr
