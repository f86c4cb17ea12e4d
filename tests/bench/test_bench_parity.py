"""Bundles compared pass by pass, over the arithmetic model. Run: python -m pytest tests/bench/test_bench_parity.py"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from bundle_samples import VOCAB_SIZE, edit_manifest, list_file, write_bundle
from safetensors.numpy import save
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.bench.parity import Difference, ParityError, Replay, check_comparable, replay, write_text
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.cli import app
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.draft import StreamDrafter

PROMPTS = ([3, 1, 4, 1, 5], [9, 2])
NEW = 24


class Swayed(fakes.ArithmeticBackend):
    """Prefers another token wherever the right one is a multiple of 7, by `gap`."""

    gap = 0.25

    def run(self, *arguments: Any, **settings: Any) -> PassOutput:
        out = super().run(*arguments, **settings)
        if out.logits is None:
            return out
        logits, best = np.array(out.logits), np.array(out.best)
        for row in np.flatnonzero(best % 7 == 0):
            other = (best[row] + 1) % self.spec.vocab_size
            logits[row, other], best[row] = logits[row, best[row]] + self.gap, other
        return replace(out, logits=logits, best=best)


def texts() -> list[tuple[int, list[int]]]:
    return [(len(prompt), write_text(fakes.ArithmeticBackend(fakes.spec()), prompt, NEW)) for prompt in PROMPTS]


def walked(backend: fakes.ArithmeticBackend) -> Replay:
    return replay(backend, StreamDrafter(), texts(), 8, lambda: None)


def test_a_bundle_agrees_with_its_own_text() -> None:
    found = walked(fakes.ArithmeticBackend(fakes.spec()))
    figures = found.figures(found, 0.5)
    assert (figures["choices"], figures["differences"], figures["first_difference"]) == (2 * NEW, 0, None)
    assert figures["same_path"] == figures["same_start"] == figures["passes"] < 2 * NEW
    assert sum(found.paths.values()) == 2 * NEW


@pytest.mark.parametrize("deferred", [False, True])
def test_the_passes_are_those_of_the_loop(deferred: bool) -> None:
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.reference.loop import Loop

    spec = fakes.spec(deferred=deferred, stream_nodes={"verify_4": 0, "verify_8": 0} if deferred else {})
    loop = Loop(fakes.ArithmeticBackend(spec), list(PROMPTS[0]), GenerationConfig(NEW, width=8))
    list(loop.run())
    own = fakes.ArithmeticBackend(spec)
    found = replay(own, StreamDrafter(), texts()[:1], 8, lambda: None)
    assert own.calls == loop.backend.calls  # type: ignore[attr-defined]
    assert len(found.paths) == loop.counts.target_forward_passes


def test_other_choices_are_found_with_their_gaps_and_do_not_end_the_comparison() -> None:
    plain, swayed = walked(fakes.ArithmeticBackend(fakes.spec())), walked(Swayed(fakes.spec()))
    wrong = [(i, at - n) for i, (n, text) in enumerate(texts()) for at in range(n, len(text)) if text[at] % 7 == 0]
    assert [(d.prompt, d.position) for d in swayed.differences] == wrong
    assert swayed.paths == plain.paths
    figures = swayed.figures(plain, 0.5)
    assert (figures["near_ties"], figures["largest_gap"]) == (len(wrong), 0.25)
    assert figures["first_difference"] == list(wrong[0])
    assert swayed.figures(plain, 0.1)["near_ties"] == 0


def test_other_drafts_give_other_paths_over_the_same_text() -> None:
    plain, unlucky = walked(fakes.ArithmeticBackend(fakes.spec())), walked(fakes.ArithmeticBackend(fakes.spec(), 0))
    figures = unlucky.figures(plain, 0.5)
    assert figures["differences"] == 0
    assert figures["same_path"] < figures["same_start"]
    assert figures["tokens_per_pass"] < plain.figures(plain, 0.5)["tokens_per_pass"]


def test_the_first_difference_is_the_earliest_of_the_first_prompt() -> None:
    found = Replay(choices=9, differences=[Difference(1, 2, 0.1), Difference(0, 8, 0.1), Difference(0, 5, 0.7)])
    figures = found.figures(Replay(), 0.5)
    assert (figures["first_difference"], figures["near_ties"]) == ([0, 5], 2)


def _without_width_8(manifest: dict[str, Any]) -> None:
    del manifest["methods"]["verify_8"], manifest["parity"]["verify_8"]
    manifest["speculation"]["default_width"] = 4


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda manifest: manifest["speculation"].update(adapter="other"), "another adapter"),
        (lambda manifest: manifest["model"].update(name="test/other"), "another model than .*one: name test/other, n"),
        (lambda manifest: manifest["model"].update(source="hub: revision 2"), "another model than .*: source hub: rev"),
        (lambda manifest: manifest["model"].update(hidden_size=64), "another model than .*: hidden_size 64, not 32"),
        (_without_width_8, "has no width 8"),
    ],
)
def test_bundles_that_cannot_be_compared_are_named(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    one, other = write_bundle(tmp_path / "one"), write_bundle(tmp_path / "other")
    edit_manifest(other, edit)
    bundles = [open_bundle(one), open_bundle(other, verify=False)]
    with pytest.raises(ParityError, match=words):
        check_comparable(bundles, 8)


def test_adapters_whose_files_have_one_name_are_told_apart(tmp_path: Path) -> None:
    tables = {
        "parent_left": np.ones((VOCAB_SIZE, 1), np.float16),
        "parent_right": np.ones((4, 1), np.float16),
        "gate": np.array([[0.5], [0.25]], np.float32),
        "stream_vocab": np.arange(4, dtype=np.int32),
    }
    changes = {
        "one": {},
        "other_target": {"parent_left": 2 * tables["parent_left"], "calibration": np.ones(2, np.float32)},
        "other_gate": {"gate": tables["gate"] + 1},
        "other_vocab": {"stream_vocab": tables["stream_vocab"] + 1},
        "fewer_streams": {"gate": tables["gate"][:1]},
    }
    for name, changed in changes.items():
        list_file(write_bundle(tmp_path / name), "draft.safetensors", save({**tables, **changed}))
    first, same, *others = (open_bundle(tmp_path / name) for name in changes)
    check_comparable([first, same], 8)
    for other in others:
        with pytest.raises(ParityError, match=f"{other.folder.name} has other drafting tables than .*one; export both"):
            check_comparable([first, other], 8)


def test_the_command_compares_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engines_of(bundle: Bundle, threads: int | None) -> Callable[[], fakes.ArithmeticBackend]:
        kind = Swayed if bundle.folder.name == "other" else fakes.ArithmeticBackend
        return lambda: kind(bundle.spec())

    monkeypatch.setattr(engines, "engines_of", engines_of)
    bundles = [str(write_bundle(tmp_path / name)) for name in ("one", "other")]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"name[{name}]", "completion": "x"}) + "\n" for name in "ABC"))
    arguments = ["bench", "parity", *bundles, "--data", str(data), "--limit", "2", "--max-new-tokens", "20"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    one, other = json.loads(result.stdout)["bundles"]
    assert (one["choices"], one["differences"], one["same_path"]) == (40, 0, one["passes"])
    assert other["differences"] == other["near_ties"] > 0
    table = CliRunner().invoke(app, arguments)
    assert table.exit_code == 0, table.stderr
    assert "40 tokens of 2 answers, trees of" in table.stdout
