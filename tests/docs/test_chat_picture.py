"""The moving picture of the README, drawn of a small recorded run: the same bytes each time, and the whole text in it.

Run: python -m pytest tests/docs/test_chat_picture.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"
WORDS = [
    "The",
    " sky",
    " is",
    " blue",
    " because",
    " light",
    " <scatters>",
    " &",
    " more.\n\n",
    " Short",
    " waves",
    ".",
] * 3
SOURCES = ["model", "streams", "lookup", "table"]


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_chat", FOLDER / "make_chat.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["make_chat"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trace(picture: ModuleType):  # type: ignore[no-untyped-def]
    pieces = [(word, SOURCES[n % 4], 40.0 + 6.25 * (n // 4)) for n, word in enumerate(WORDS)]
    plain = [40.0 + 2.5 * n for n in range(len(WORDS))]
    return picture.Trace(
        "streamfuse chat demo", "2 cores of a test", "1234abcd", "Why <blue>?", pieces, plain, 2.25, 700.4, 400.0
    )


def test_the_same_run_gives_the_same_well_formed_picture(picture: ModuleType, trace, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    svg = picture.draw(trace)
    assert svg == picture.draw(trace)
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert not {element.tag for element in root.iter()} & {f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject"}
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in svg
    assert len(svg) < 200_000
    (tmp_path / "run.json").write_text(json.dumps(asdict(trace)))
    assert picture.draw(picture.Trace.read(tmp_path / "run.json")) == svg


def test_the_text_is_whole_and_each_token_in_its_sources_class(picture: ModuleType, trace) -> None:  # type: ignore[no-untyped-def]
    root = ElementTree.fromstring(picture.draw(trace))
    lines: dict[float, list[tuple[str, str]]] = {}
    for text in root.iter(f"{SVG}text"):
        if "small" not in (text.get("class") or ""):
            lines.setdefault(float(text.get("y", "0")), []).append((text.text or "", text.get("class") or "model"))
    rows = ["".join(words for words, _ in lines[y]) for y in sorted(lines)]
    assert rows[0] == f">{trace.prompt}"
    answer = "".join(word for word, *_ in trace.pieces)
    assert "".join("".join(rows[1:]).split()) == "".join(answer.split())
    assert all(len(row) <= picture.COLUMNS + 1 for row in rows)
    for source in SOURCES[1:]:
        words = [words.strip() for y in sorted(lines) for words, kind in lines[y] if kind == source]
        assert words == [word.strip() for word, own, _ in trace.pieces if own == source and word.strip()]


def test_tokens_appear_when_they_came(picture: ModuleType, trace) -> None:  # type: ignore[no-untyped-def]
    root = ElementTree.fromstring(picture.draw(trace))
    animations = list(root.iter(f"{SVG}animate"))
    (seconds,) = {animation.get("dur", "") for animation in animations}
    for animation in animations:
        times = [float(time) for time in animation.get("keyTimes", "").split(";")]
        assert len(times) == len(animation.get("values", "").split(";"))
        assert times == sorted(set(times))
        assert (times[0], animation.get("calcMode")) == (0.0, "discrete")
    first = picture.PAUSE_SECONDS * 2 + picture.KEY_SECONDS * len(trace.prompt)
    begin = first + 0.04  # in real time
    clip = root.find(f".//{SVG}clipPath[@id='w1']/{SVG}rect/{SVG}animate")
    assert clip is not None
    appears = float(clip.get("keyTimes", "").split(";")[1]) * float(seconds.rstrip("s"))
    assert appears == pytest.approx(begin, abs=0.01)


def test_the_statistics_are_the_runs_own(picture: ModuleType, trace) -> None:  # type: ignore[no-untyped-def]
    root = ElementTree.fromstring(picture.draw(trace))
    still = [
        text.text
        for group in root.iter(f"{SVG}g")
        if group.get("visibility") == "visible"
        for text in group.iter(f"{SVG}text")
    ]
    assert "2.25 tokens per pass   700 tokens/s" in still
    assert {"streams 9", "look-up 9", "table 9", "plain 9"} <= set(still)
    assert {"700 tokens/s", "400 tokens/s", "the same text, 1.75 times as fast"} <= set(still)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "2 cores of a test, cold caches, real time, commit 1234abcd" in texts


def test_times_that_are_not_those_of_the_statistics_are_refused(picture: ModuleType, trace) -> None:  # type: ignore[no-untyped-def]
    """A second clock of cold caches counts the evictions of the session's own."""
    slow = [(word, source, 10 * ms) for word, source, ms in trace.pieces]
    with pytest.raises(ValueError, match="the tokens come at 70 per second, and the statistics say 700"):
        replace(trace, pieces=slow)
