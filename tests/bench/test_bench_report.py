"""`streamfuse bench report`: lanes of passes, their figures, and the page in a browser.

Run: python -m pytest tests/bench/test_bench_report.py
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import browse, needs_browser
from bundle_samples import PrintableBackend, fake_engines, write_bundle
from typer.testing import CliRunner, Result

from streamfuse import engines
from streamfuse.bench.report import measure
from streamfuse.cli import app
from streamfuse.runtime.session import Piece

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'streamfuse[bench]'")


class Scripted:
    """A generation of these pieces; the clock moves by a millisecond before each."""

    def __init__(self, *pieces: Piece, passes: int = 0) -> None:
        self.pieces, self.now = pieces, 0.0
        self.token_ids = [piece.token for piece in pieces if piece.token is not None]
        self.statistics: Any = SimpleNamespace(prefill_ms=2.0, target_forward_passes=passes)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self.pieces:
            self.now += 0.001
            yield piece

    def clock(self) -> float:
        return self.now


def lane_of(*pieces: Piece, passes: int = 0) -> measure.Lane:
    generation = Scripted(Piece("", None), Piece("", None), *pieces, passes=passes)
    return measure.lane(generation, generation.clock)  # type: ignore[arg-type]


def test_a_pass_ends_with_a_token_that_was_not_drafted() -> None:
    found = lane_of(
        Piece("a", 1), Piece("b", 2, "lookup"), Piece("c", 3, "streams"), Piece("d", 4), Piece("e", 5, "table")
    )
    assert [[token.text for token in one.tokens] for one in found.passes] == [["a"], ["b", "c", "d"], ["e"]]
    assert [one.end_ms for one in found.passes] == pytest.approx([1.0, 4.0, 5.0]), "without the two of the prompt"
    assert (found.tokens, found.text) == (5, "abcde")
    assert [token.source for token in found.passes[1].tokens] == ["lookup", "streams", "model"]


def test_text_that_was_held_back_and_the_pass_that_ends_the_text_are_counted() -> None:
    found = lane_of(Piece("a", 1), Piece("bc", None), Piece("d", 2, "table"), Piece("e", None), passes=3)
    assert [[token.text for token in one.tokens] for one in found.passes] == [["abc"], ["de"]]
    found = lane_of(Piece("a", 1), passes=2)
    assert [len(one.tokens) for one in found.passes] == [1, 0]


def answer_of(kind: str, plain_ms: float, *depths: int) -> measure.Answer:
    """A speculative lane of passes of one millisecond with so many accepted drafts each; equal texts."""
    passes = tuple(
        measure.Pass(1.0 + place, (*[measure.Token("x", "lookup")] * depth, measure.Token("x", "model")))
        for place, depth in enumerate(depths)
    )
    of_plain = measure.Pass(plain_ms, (measure.Token("x" * sum(depth + 1 for depth in depths), "model"),))
    facts: Any = SimpleNamespace(accepted_by_source={"lookup": sum(depths)}, cost_ms={})
    ids = tuple(range(sum(depth + 1 for depth in depths)))
    return measure.Answer(kind, "?", measure.Lane(ids, (of_plain,), facts), measure.Lane(ids, passes, facts))


def test_figures_are_of_all_answers() -> None:
    answers = [answer_of("qa", 6.0, 0, 2, 1), answer_of("code", 4.0, 3), answer_of("qa", 2.0, 0)]
    assert measure.speedups(answers) == {"code": 4.0, "qa": 2.0}
    assert measure.speedup(answers) == pytest.approx(12 / 5)
    assert measure.acceptance(answers) == pytest.approx([3 / 5, 2 / 5, 1 / 5])
    assert measure.acceptance([]) == []
    assert measure.accepted_by_source(answers) == {"lookup": 6}
    assert all(one.equal for one in answers)
    first = answers[0]
    assert not replace(first, plain=replace(first.plain, token_ids=(9, 9))).equal, "tokens are compared, not texts"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engines, "engines_of", fake_engines(PrintableBackend)[1])
    return write_bundle(tmp_path / "demo")


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", "report", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"turns": ["hi <b>"], "category": "writing"}, {"turns": ["you"], "category": "qa"}]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_page_has_the_measured_texts_and_figures(bundle: Path, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = report(bundle, "--data", data, "-o", page, "--max-new-tokens", 12, "--json")
    assert done.exit_code == 0, done.stderr
    facts = json.loads(done.stdout)
    text = page.read_text(encoding="utf-8")
    assert [one["kind"] for one in facts["answers"]] == ["writing", "qa"]
    assert f"{facts['speedup']:.2f}x" in text
    assert "2 of 2" in text
    assert "hi &lt;b&gt;" in text
    lanes = re.findall(r'<div class="text">(.*?)</div>', text, re.DOTALL)
    shown = [html.unescape(re.sub(r"<[^>]*>", "", lane)) for lane in lanes]
    assert shown == [one["text"] for one in facts["answers"] for _ in range(2)]
    assert "src=" not in text, "nothing is loaded"
    assert "http" not in text


def test_texts_that_differ_end_with_code_1(
    bundle: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.Answer, "equal", property(lambda answer: answer.kind == "qa"))
    page = tmp_path / "report.html"
    done = report(bundle, "--data", data, "-o", page, "--max-new-tokens", 4)
    assert (done.exit_code, "The outputs differ: writing" in done.stderr) == (1, True)
    assert "THE OUTPUTS DIFFER" in page.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(bundle: Path, tmp_path: Path) -> None:
    done = report(bundle, "-o", tmp_path / "none" / "report.html")
    assert (done.exit_code, "there is no folder" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("report", ["--limit", "3"], "--limit has no effect without --data"),
        ("acceptance", ["--data", "x", "--model", "y"], "--model has no effect with a BUNDLE"),
        ("tasks", ["--data", "adversarial", "--split", "test"], "--split has no effect with --data adversarial"),
        ("tasks", ["--data", "x", "--systems", "plain", "--gguf", "y"], "--gguf has no effect without llama.cpp"),
        ("tasks", ["--data", "x", "--cold-caches", "--gguf", "y"], "--gguf has no effect without llama.cpp"),
        ("structured", ["--systems", "none", "--trained-adapter", "y"], "--trained-adapter has no effect without"),
        ("structured", ["--systems", "none", "--split", "test"], "--split has no effect without a task that has data"),
        ("memory", ["--data", "x", "--systems", "plain", "--gguf", "y"], "--gguf has no effect without llama.cpp"),
    ],
)
def test_a_flag_that_nothing_reads_is_named(bundle: Path, command: str, flags: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", command, str(bundle), *flags])
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_the_data_are_not_overwritten(bundle: Path, data: Path) -> None:
    before = data.read_bytes()
    for arguments in (("report", bundle, "--data", data, "-o", data), ("quantization", "--data", data, "-o", data)):
        done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
        assert (done.exit_code, f"--output {data} would overwrite an input of --data" in done.stderr) == (2, True)
    assert data.read_bytes() == before


@needs_browser
def test_the_script_of_the_page_runs(bundle: Path, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert report(bundle, "--data", data, "-o", page, "--max-new-tokens", 6).exit_code == 0
    document = browse(page, "--dump-dom")
    assert 'data-ready="true"' in document
    clicked = page.with_name("clicked.html")
    play = "<script>document.querySelector('[data-play]').click()</script></body>"
    clicked.write_text(page.read_text(encoding="utf-8").replace("</body>", play), encoding="utf-8")
    shown = browse(clicked, "--dump-dom", "--virtual-time-budget=10000")
    assert "later" not in re.findall(r'<span class="([^"]*)" data-at', shown)
