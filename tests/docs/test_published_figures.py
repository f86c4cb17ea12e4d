"""The tables of figures are what docs/figures.json gives, which one run of `streamfuse bench all` wrote.

Run: python -m pytest tests/docs/test_published_figures.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from streamfuse.bench.suite import COLD, SETS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import published_figures as published  # noqa: E402 (a program in tools/, not a package)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages with tables, and the results, in a folder of their own."""
    for name in (*published.PAGES, str(published.FIGURES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / published.FIGURES).read_text(encoding="utf-8"))
    return found


def test_the_tables_of_the_pages_are_those_of_the_results() -> None:
    assert published.main(ROOT, check=True) == 0


def test_commits_to_the_measured_code_since_then_are_named(copy: Path) -> None:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(
            ["git", "-C", str(copy), *author, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "measured")
    document = results()
    for one in document["benchmarks"].values():
        one["commit"] = git("rev-parse", "--short=8", "HEAD")
    (copy / published.FIGURES).write_text(json.dumps(document), encoding="utf-8")
    for name in ("docs/figures.md", "kernels/attention.cpp"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("new", encoding="utf-8")
        git("add", name)
        git("commit", "-q", "-m", f"changes {name}")
    assert [line.partition(" ")[2] for line in published.later_commits(copy)] == ["changes kernels/attention.cpp"]


def test_a_table_that_differs_is_found_and_written_anew(copy: Path) -> None:
    before = {name: (copy / name).read_text(encoding="utf-8") for name in published.PAGES}
    document = results()
    document["benchmarks"]["E2E"]["result"]["speedup"] = 9.87
    (copy / published.FIGURES).write_text(json.dumps(document), encoding="utf-8")
    assert published.main(copy, check=True) == 1
    assert {name: (copy / name).read_text(encoding="utf-8") for name in published.PAGES} == before
    assert published.main(copy, check=False) == 0
    assert all("9.87 (" in (copy / name).read_text(encoding="utf-8") for name in published.PAGES)
    assert published.main(copy, check=True) == 0


def test_the_sentence_about_the_machine_has_the_load_where_it_was_measured() -> None:
    document = results()
    for one in document["benchmarks"].values():
        one.pop("other_load_cores", None)
    assert "Other work" not in published.machine(document)
    for name, load, seconds in (("chat", 0.4, 300), ("SQL", 0.0, 100), ("E2E", None, 500)):
        document["benchmarks"][name] |= {"other_load_cores": load, "seconds": seconds}
    assert "Other work used 0.30 cores on average, at most 0.40 in any benchmark" in published.machine(document)


def test_a_whole_answer_has_its_prompt_and_its_tokens() -> None:
    document = results()
    result = document["benchmarks"]["E2E"]["result"]
    for system, rate in (("plain", 100.0), ("speculative", 300.0)):
        result["systems"][system] |= {"first_token_ms": 50.0, "generated_tokens": 31, "decode_token_per_sec": rate}
    result["prompts"] = 1
    (row,) = (line for line in published.times(document).splitlines() if line.startswith("| E2E"))
    assert row.split("|")[4].strip() == f"{(50 + 300) / (50 + 100):.2f}"


def test_energy_has_columns_where_it_was_measured() -> None:
    document = results()
    assert "energy" not in published.times(document)
    for name in SETS:
        for joules, system in ((0.5, "plain"), (0.2, "speculative")):
            document["benchmarks"][name]["result"]["systems"][system]["joules_per_token"] = joules
    assert "| 0.500 | 0.200 | 0.40 |" in published.times(document)


def test_results_are_taken_over_without_what_no_table_shows(copy: Path) -> None:
    document = results()
    document["benchmarks"]["passes of demo"]["result"]["methods"]["decode"] = {"ms": 3.1415926, "parts": {"mlp": 1}}
    (copy / "new.json").write_text(json.dumps(document), encoding="utf-8")
    published.take_over(copy / "new.json", copy)
    taken = json.loads((copy / published.FIGURES).read_text(encoding="utf-8"))
    assert taken["benchmarks"]["passes of demo"]["result"]["methods"]["decode"] == {"ms": 3.1416}


def test_a_part_of_the_results_gives_its_rows_and_a_list_of_the_others(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = results()
    for name in ("GSM8K", "E2E, cold caches", "structured, sql", "passes of e2e", "chat, temperature 0.7"):
        del document["benchmarks"][name]
    (copy / "new.json").write_text(json.dumps(document), encoding="utf-8")
    published.take_over(copy / "new.json", copy)
    output = capsys.readouterr().out
    assert "; E2E, cold caches; " in output
    assert "; structured, sql; passes of e2e; " in output
    assert "no results for chat, temperature 0.7; GSM8K; " in output
    assert published.main(copy, check=False) == 0
    assert "GSM8K" not in published.speed(document)
    (fine_tuned,) = (line for line in published.readme(document).splitlines() if "E2E" in line)
    assert fine_tuned.split(" | ")[1] == "-"


@pytest.mark.parametrize("name", [None, *results()["benchmarks"]])
def test_any_one_benchmark_alone_gives_tables(name: str | None) -> None:
    document = results()
    document["benchmarks"] = {one: row for one, row in document["benchmarks"].items() if one == name}
    for tables in published.PAGES.values():
        for written in tables.values():
            assert written(document)


def test_what_was_not_measured_is_a_dash_and_an_interval_of_one_prompt_is_left_out() -> None:
    document = results()
    of_set = document["benchmarks"]["E2E"]["result"]
    of_set["speedup"] = None
    of_set["over"] = {"llama.cpp": {"plain": {"speedup": 1.1, "interval": [None, 1.2]}}}
    of_set["systems"]["speculative"] |= {"cpu_ms_per_token": None, "mean_accepted_tokens": None}
    (task,) = document["benchmarks"]["structured, sql"]["result"]["tasks"].values()
    task |= {"speedup": None, "constrained_over_free": None, "valid": None}
    gains = document["benchmarks"]["chat"]["result"]["gains"]
    gains["qa"]["plain"]["speedup"] = None
    gains["rag"]["plain"] = {"speedup": 2.0, "interval": [2.0, 2.0]}

    def cells(table: str, row: str) -> list[str]:
        (line,) = (line for line in table.splitlines() if line.startswith(f"| {row} |"))
        return line.strip("| ").split(" | ")

    title = "E2E, fine-tuned"
    assert [place for place, cell in enumerate(cells(published.speed(document), title)) if cell == "-"] == [2, 3]
    over = next(line for line in published.other_runtimes(document).splitlines() if title in line)
    assert over.endswith("| 1.10 (- to 1.20) | - |")
    assert cells(published.times(document), title)[5:] == ["-", "-"]
    task_cells = cells(published.structured(document), "SQL, fine-tuned")
    assert [place for place, cell in enumerate(task_cells) if cell == "-"] == [2, 5, 7]
    assert cells(published.categories(document), "qa")[2] == "-"
    assert cells(published.categories(document), "rag")[2] == "2.00"  # one prompt has no interval


@pytest.mark.parametrize(
    ("name", "part", "change", "words"),
    [
        ("E2E", (), {"complete": False}, "E2E stopped early, or its outputs differ"),
        ("SQL", (), {"equal": False}, "SQL stopped early, or its outputs differ"),
        ("structured, objects", ("tasks", "objects"), {"equal": False}, "objects stopped early, or its outputs differ"),
    ],
)
def test_results_that_prove_nothing_are_refused(
    copy: Path, name: str, part: tuple[str, ...], change: dict[str, Any], words: str
) -> None:
    document = results()
    place = document["benchmarks"][name]["result"]
    for step in part:
        place = place[step]
    place |= change
    (copy / "new.json").write_text(json.dumps(document), encoding="utf-8")
    before = (copy / published.FIGURES).read_bytes()
    with pytest.raises(ValueError, match=words):
        published.take_over(copy / "new.json", copy)
    assert (copy / published.FIGURES).read_bytes() == before


def test_a_checkout_without_git_has_no_age(copy: Path) -> None:
    assert published.later_commits(copy) == []


def test_the_figures_are_complete_and_their_age_is_told() -> None:
    """A warning, as measuring again takes most of an hour and only some changes move figures."""
    assert published.missing(results()) == [], "docs/figures.json lacks benchmarks"
    if later := published.later_commits(ROOT):
        listed = "\n".join(later)
        warnings.warn(
            f"docs/figures.json is older than commits that may have changed its figures:\n{listed}", stacklevel=1
        )


def test_sentences_on_the_gain_from_streams_have_the_range_of_the_results() -> None:
    for caches, pages in (
        ("{}", ("README.md", "docs/limits.md", "docs/tutorial.md")),
        (COLD, ("README.md", "docs/limits.md")),
    ):
        gains = [results()["benchmarks"][caches.format(name)]["result"]["gains"]["all"] for name in SETS]
        streams = [100 * (one["without streams"]["speedup"] - 1) for one in gains]
        stated = f"{min(streams):+.0f} to {max(streams):+.0f} %"
        for page in pages:
            assert stated in (ROOT / page).read_text(encoding="utf-8"), f"{page} should say {stated}"
