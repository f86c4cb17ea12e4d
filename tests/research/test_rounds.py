"""Bytes and multiply-accumulates of rounds of passes, and costs that are computed from them.

Run: python -m pytest tests/research/test_rounds.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundle_samples import write_sized_bundle
from typer.testing import CliRunner

from counted_speed import CURVES, computed
from streamfuse.bench.shared.work import rows_per_layer, work_of
from streamfuse.bundle import Manifest, open_bundle
from streamfuse.cli import app
from streamfuse.research.rounds import read_round, round_rows

SIZES = {"embedding": 1000, "attention": 40_000, "mlp": 120_000, "head": 8_000, "streams": 9_000}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_sized_bundle(tmp_path / "demo", SIZES)


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    return open_bundle(bundle).manifest


def work(manifest: Manifest, method: str, context: int) -> tuple[float, float]:
    parts = work_of(manifest, method, context).values()
    return sum(part.bytes for part in parts), sum(part.macs for part in parts)


def test_a_round_is_the_work_of_all_its_passes_over_what_it_verifies_and_what_it_advances(
    bundle: Path, manifest: Manifest
) -> None:
    found = read_round(f"draft=4*{bundle}:decode+{bundle}:verify_8@2.5", context=10)
    plain, verify = work(manifest, "decode", 10), work(manifest, "verify_8", 10)
    assert (found.name, found.verified, found.tokens) == ("draft", 8, 2.5)
    assert (found.bytes, found.macs) == (4 * plain[0] + verify[0], 4 * plain[1] + verify[1])
    facts = found.to_dict()
    assert facts["bytes_per_verified"] == found.bytes / 8
    assert facts["macs_per_token"] == found.macs / 2.5
    assert facts["macs_per_byte"] == found.macs / found.bytes
    assert [len(row) for row in round_rows([found])[1]] == [len(round_rows([])[0])]


def test_a_round_without_a_verify_pass_computes_the_tokens_that_it_decodes(bundle: Path, manifest: Manifest) -> None:
    found = read_round(f"plain={bundle}:decode", context=0)
    assert (found.verified, found.tokens, found.bytes) == (1, 1.0, work(manifest, "decode", 0)[0])


def test_rows_are_averaged_over_the_layers_that_a_pass_reads(manifest: Manifest) -> None:
    # Two layers, the upper one with streams: 8 nodes below; 4 survivors and 2 x 2 stream rows above.
    assert rows_per_layer(manifest, "verify_8") == 8
    assert rows_per_layer(manifest, "decode") == 1


def test_computed_costs_are_what_is_read_where_a_row_is_free_and_grow_with_rows_elsewhere(manifest: Manifest) -> None:
    flat, sloped = computed(manifest, 0.0), computed(manifest, 0.25)
    assert flat["decode"] == sloped["decode"] == 1.0
    assert flat["verify_8"] == work(manifest, "verify_8", 0)[0] / work(manifest, "decode", 0)[0] > 1, "its streams"
    assert sloped["verify_8"] == pytest.approx(flat["verify_8"] * (1 + 0.25 * 7))
    assert all(0 <= slope < 0.05 for slope in CURVES.values())


def test_the_command_prints_rounds_and_refuses_what_is_none(bundle: Path, tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["research", "theory", *map(str, words)])
        return done.exit_code, done.stdout, done.stderr

    flag = f"plain={bundle}:decode"
    code, stdout, _ = run("--round", flag, "--context", 10, "--json")
    assert (code, json.loads(stdout)) == (0, {"context": 10, "rounds": [read_round(flag, 10).to_dict()]})
    code, stdout, _ = run("--round", flag)
    assert (code, "plain" in stdout) == (0, True)
    for wrong, words in (
        ("plain", "expected NAME="),
        (f"plain={bundle}:decode@0", "above 0"),
        (f"plain={bundle}", "expected [N*]BUNDLE:METHOD"),
        (f"plain=x*{bundle}:decode", "expected [N*]BUNDLE:METHOD"),
        (f"plain=0*{bundle}:decode", "expected [N*]BUNDLE:METHOD, with N from 1"),
        (f"plain={bundle}:verify_99", "has the methods"),
        (f"plain={tmp_path / 'nowhere'}:decode", "nowhere"),
    ):
        code, stdout, stderr = run("--round", wrong)
        assert (code, stdout) == (2, "")
        assert words in " ".join(stderr.replace("│", " ").split())
    assert run("--round", flag, "--measured", "methods.json")[0] == 2
