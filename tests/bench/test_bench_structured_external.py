"""Other programs in the structured bench, over scripted ones: what they are asked, ratios, refusals, the command.

Run: python -m pytest tests/bench/test_bench_structured_external.py
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import external_systems
import pytest
from bundle_samples import fake_engines, write_bundle
from structured_samples import RIGHT, SCHEMA, Scripted
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.bench.external import llama_cpp, opening
from streamfuse.bench.external.child import Child
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    ONNX_GENAI,
    Answer,
    ExternalSystemDied,
    ExternalSystemError,
    Request,
    System,
)
from streamfuse.bench.structured.external import Externals
from streamfuse.bench.structured.measure import PLAIN, SPECULATIVE, StructuredResult, measure
from streamfuse.bench.structured.questions import Question, user
from streamfuse.bench.structured.report import summary, system_rows
from streamfuse.bench.structured.tasks import EncodedQuestion
from streamfuse.cli import app

MS_PER_TOKEN = 5.0  # twice what the scripted model's plain tokens take


class Program:
    """Answers with `texts` in turn by question, a token per character; an error stands for what it raises."""

    name = "other"

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = texts or (RIGHT,)
        self.requests: list[Request] = []

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if not request.constraint:
            return Answer((1,), 1.0)
        text = self.texts[request.seed % len(self.texts)]
        if isinstance(text, Exception):
            raise text
        tokens = tuple(map(ord, text))[: request.max_new_tokens]
        return Answer(tokens, MS_PER_TOKEN * len(tokens), {"compile_ms": 0.5, "cpu_ms": 4.0 * len(tokens)})


def run(program: Program, questions: int = 2, notices: list[str] | None = None, **settings: Any) -> StructuredResult:
    question = Question((user("?"),), SCHEMA, lambda text: {"exact_match": 100.0 * (text == RIGHT)})
    todo = {"objects": ([EncodedQuestion(question, [1, 2])] * questions, 0)}
    asked = TaskSettings(**{"repetitions": 2, **settings})
    externals = Externals([program], ([] if notices is None else notices).append)
    return measure(
        [Scripted().stream] * asked.repetitions, todo, asked, lambda ids: "".join(map(chr, ids)), externals=externals
    )  # fmt: skip


def figures(result: StructuredResult, name: str = Program.name) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(result.to_dict()))["tasks"]["objects"]["external"][name]
    return found


def test_a_program_is_asked_the_same_under_the_same_constraint() -> None:
    program = Program()
    run(program, questions=1, repetitions=3, max_new_tokens=50, seed=7)
    warm_up, *asked = program.requests
    assert not warm_up.constraint
    assert asked == [Request([1, 2], 50, 0.0, 7, SCHEMA.option)] * 3


def test_programs_follow_ours_in_turns_among_themselves_and_then_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Logged(Program):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def answer(self, request: Request) -> Answer:
            log.append(self.name)
            return super().answer(request)

    class Own(Scripted):
        def stream(self, prompt: Sequence[int], **options: Any) -> Any:
            log.append("ours")
            return super().stream(prompt, **options)

    monkeypatch.setattr(
        "streamfuse.bench.structured.external.time.sleep", lambda s: log.append("rest") if s > 0.1 else None
    )
    question = Question((user("?"),), SCHEMA)
    todo = {"objects": ([EncodedQuestion(question, [1, 2])], 0)}
    measure(
        [Own().stream] * 2, todo, TaskSettings(repetitions=2), lambda ids: RIGHT,
        externals=Externals([Logged("a"), Logged("b")]),
    )  # fmt: skip
    ours = ["ours"] * 3
    assert log == ["a", "b", "ours", *ours, "a", "b", "rest", *ours, "b", "a", "rest"]


def test_its_ratio_is_to_constrained_plain_answers_of_the_same_run() -> None:
    found = figures(run(Program()))
    assert found["decode_token_per_sec"] == pytest.approx(1000 / MS_PER_TOKEN)
    assert found["over_plain"] == pytest.approx(0.5)
    assert found["over_plain_interval"] == pytest.approx([0.5, 0.5])
    assert found["cpu_ms_per_token"] == pytest.approx(4.0)
    assert found["ms_per_answer"] == pytest.approx(7 * MS_PER_TOKEN)
    assert (found["answers"], found["tokens"], found["refused"], found["compile_ms"]) == (2, 14, [], 0.5)
    assert (found["finished"], found["valid"], found["quality"]) == (1.0, 1.0, {"exact_match": 100.0})


def test_its_answers_are_checked_as_ours_are() -> None:
    found = figures(run(Program('{ "a" : 1 }', '{"a":"1"}')))
    assert (found["valid"], found["problems"]) == (0.5, ["$.a: '1' is not of type 'integer'"])
    assert found["quality"] == {"exact_match": 0.0}
    cut = figures(run(Program('{"a":123456789}'), max_new_tokens=8))
    assert (cut["finished"], cut["valid"], cut["problems"]) == (0.0, None, [])


def test_a_question_that_it_refuses_has_no_part_in_its_figures() -> None:
    result = run(Program(ExternalSystemError("no such keyword"), RIGHT, RIGHT), questions=3)
    found = figures(result)
    assert (found["answers"], found["tokens"], found["over_plain"]) == (2, 14, pytest.approx(0.5))
    assert found["refused"] == [{"reason": "no such keyword", "questions": 1}]
    assert result.tasks["objects"].to_dict()["answers"] == 3, "ours has all"
    assert "objects: other has no answer to 1 of 3 questions: no such keyword" in summary(result)
    assert result.left_out == {}


def test_a_program_without_a_grammar_for_the_task_has_an_empty_row_and_the_reason() -> None:
    program = Program(ExternalSystemError("it takes a JSON schema"))
    result = run(program)
    assert figures(result) == {"answers": 0, "refused": [{"reason": "it takes a JSON schema", "questions": 2}]}
    assert len(program.requests) == 3, "a question is not asked again in another repetition"
    assert system_rows(result)[1][-1] == ["objects", "other", "0", "-", "-", "-", "-", "-"]


def test_a_program_that_dies_keeps_the_figures_that_it_has() -> None:
    notices: list[str] = []
    program = Program(RIGHT, ExternalSystemDied("other was ended by SIGSEGV"))
    result = run(program, questions=4, notices=notices)
    assert figures(result)["answers"] == 1
    assert result.left_out == result.to_dict()["left_out"] == {"other": "other was ended by SIGSEGV"}
    assert notices == ["Without other: other was ended by SIGSEGV"]
    assert len(program.requests) == 1 + 2 + 1, "it is not asked again"
    assert len(result.tasks["objects"].results) == 4


def test_the_table_of_systems_has_ours_first() -> None:
    columns, rows = system_rows(run(Program()))
    assert [row[1] for row in rows] == [PLAIN, SPECULATIVE, "other"]
    told = dict(zip(columns, rows[2], strict=True))
    assert (told["over plain"], told["tokens/s"], told["ms/answer"]) == ("0.50x", "200", "35")
    assert (told["valid"], told["exact"]) == ("100%", "100 %")
    assert dict(zip(columns, rows[0], strict=True))["over plain"] == "1.00x"


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    paths = [str(Path(external_systems.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return write_bundle(tmp_path / "demo")


def command(bundle: Path, *flags: object) -> tuple[int, dict[str, Any], str]:
    words = ["bench", "structured", str(bundle), "--limit", "1", "--max-new-tokens", "8", "--repetitions", "1"]
    result = CliRunner().invoke(app, [*words, "--json", *map(str, flags)])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


@pytest.mark.parametrize("systems", ["plain", "llama.cpp,llama.cpp", ",", "none,llama.cpp"])
def test_a_program_that_is_none_is_refused(systems: str, bundle: Path) -> None:
    code, _, stderr = command(bundle, "--systems", systems)
    assert code == 2
    assert "--systems names some of llama.cpp, onnx-genai" in " ".join(stderr.replace("│", "").split())


def test_a_program_that_is_not_installed_is_an_error_only_where_it_was_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    code, facts, stderr = command(bundle)
    assert code == 0, stderr
    assert list(facts["left_out"]) == [LLAMA_CPP, ONNX_GENAI]
    assert facts["tasks"]["objects"]["external"] == {}
    for name, extra in ((LLAMA_CPP, "llama-cpp"), (ONNX_GENAI, "onnx-genai")):
        assert f"pip install 'streamfuse[{extra}]'" in facts["left_out"][name]
        assert f"Without {name}: {facts['left_out'][name]}" in stderr.splitlines()
        code, _, refused = command(bundle, "--systems", name)
        assert (code, refused.count("\n")) == (1, 1)
        assert f"pip install 'streamfuse[{extra}]'" in refused
    assert command(bundle, "--systems", "none")[1]["left_out"] == {}


def test_installed_programs_answer_from_processes_of_their_own(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(child: Child, *_: object, name: str = LLAMA_CPP, **__: object) -> System:
        return child.open(name, f"{external_systems.__name__}:open_system", name=name)

    def genai(stack: Any, folder: Path, threads: int, manifest: object, forced_tokens: bool) -> Sequence[System]:
        assert forced_tokens, "the constraint forces tokens"
        return [opened(stack.enter_context(Child(ONNX_GENAI)), name=ONNX_GENAI)]

    monkeypatch.setattr(llama_cpp, "open_child", opened)
    monkeypatch.setattr(llama_cpp, "check_installed", lambda: None)
    monkeypatch.setattr(llama_cpp, "kinds_of", lambda source: llama_cpp.QUANTIZATIONS)
    monkeypatch.setattr(opening, "need", lambda name: None)
    monkeypatch.setattr(opening, "onnx_genai_model", lambda manifest, adapter: tmp_path)
    monkeypatch.setattr(opening, "open_onnx_genai", genai)
    code, facts, stderr = command(bundle, "--systems", "llama.cpp,onnx-genai", "--gguf", tmp_path / "some.gguf")
    assert code == 0, stderr
    external = facts["tasks"]["objects"]["external"]
    assert list(external) == [LLAMA_CPP, ONNX_GENAI]
    assert list(facts["llama_cpp_trial_token_per_sec"]) == list(llama_cpp.QUANTIZATIONS)
    for found in external.values():
        assert found["decode_token_per_sec"] == pytest.approx(1000 / external_systems.MS_PER_TOKEN)
        assert (found["answers"], found["finished"]) == (1, 0.0)
