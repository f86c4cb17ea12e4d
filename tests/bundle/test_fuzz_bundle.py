"""Damaged bundles, known and random: each ends in one sentence that names a file, or runs. No crash, no hang.

What the fuzzer found once, and what people reported, is in tests/corpus. A finding is repeated by its number:
`python tests/helpers/fuzz_bundle.py NUMBER 1`. Run: python -m pytest tests/bundle/test_fuzz_bundle.py [--full]
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fuzz_bundle
import pytest
from bundle_mutations import damage, seed_bundle

TESTS = Path(__file__).parents[1]
CORPUS = [json.loads(line) for line in (TESTS / "corpus" / "bundles.jsonl").read_text(encoding="utf-8").splitlines()]
PER_PROCESS = 500


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_bundle(tmp_path_factory.mktemp("bundle") / "seed")


def test_the_sound_bundle_runs(seed: Path) -> None:
    assert fuzz_bundle.sentence_of(seed) is None


@pytest.mark.parametrize("case", CORPUS, ids=[case["name"] for case in CORPUS])
def test_known_damage_ends_in_one_sentence(case: dict[str, Any], seed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str | None] = []
    own = fuzz_bundle.sentence_of
    monkeypatch.setattr(fuzz_bundle, "sentence_of", lambda folder: messages.append(own(folder)) or messages[-1])
    assert fuzz_bundle.finding(seed, case["damage"]) is None
    assert (messages == [None]) is case["opens"], messages


def test_the_corpus_is_written_as_the_fuzzer_reads_it(seed: Path, tmp_path: Path) -> None:
    """A mutation that does not fit would leave the bundle as it is, and prove nothing."""
    for number, case in enumerate(CORPUS):
        copy = tmp_path / str(number)
        shutil.copytree(seed, copy)
        damage(copy, case["damage"])
        assert contents(copy) != contents(seed), case["name"]


def contents(folder: Path) -> dict[str, object]:
    """By name, what each thing in the folder is."""
    found: dict[str, object] = {}
    for path in folder.iterdir():
        plain = path.is_file() and not path.is_symlink()
        found[path.name] = path.read_bytes() if plain else stat.S_IFMT(path.lstat().st_mode)
    return found


@pytest.mark.parametrize("count", [75, pytest.param(10_000, marks=pytest.mark.full)])
def test_random_damage_ends_in_one_sentence(count: int) -> None:
    def part(first: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TESTS / "helpers" / "fuzz_bundle.py"), str(first), str(min(PER_PROCESS, count))]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(part, range(0, count, PER_PROCESS)):
            assert done.returncode == 0, f"died at number {done.stderr[-300:]}"
            assert done.stdout == ""
