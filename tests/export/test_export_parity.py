"""Past a parity floor by its name: what is let through, what never is, and where the figure is kept.

Run: python -m pytest tests/export/test_export_parity.py
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_samples import edit_manifest, write_bundle
from export_samples import config_for, tiny_model, write_checkpoint
from typer.testing import CliRunner

from streamfuse.bundle import BundleError, open_bundle
from streamfuse.bundle.manifest import BelowFloor
from streamfuse.cli import app
from streamfuse.export import selftest
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.resolve import resolve
from streamfuse.export.selftest import WALK, Floor, Miss, ParityError, PassResult, check, compare
from streamfuse.options import OptionError

FLOOR = Floor("kernels", 20.0, 0.9)
FINE = {"snr_db": 30.0, "top1_agreement": 1.0}
MISS = {
    "comparison": "lowering",
    "method": "decode",
    "metric": "snr_db",
    "measured": 12.5,
    "asked": 20.0,
    "floor": "kernels",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint", tiny_model())


def test_a_floor_that_is_named_lets_its_misses_through_and_returns_them() -> None:
    figures = {WALK: {"snr_db": 30.0, "top1_agreement": 0.5}, "decode": {**FINE, "snr_db": 19.0}}
    with pytest.raises(ParityError, match=r"decode: snr_db is 19, .* asks for 20; allow_parity_below kernels exports"):
        check(figures, FLOOR)
    with pytest.raises(ParityError):
        check(figures, FLOOR, ("int4", "float32"))
    assert check(figures, FLOOR, ("int4", "kernels")) == [
        Miss("decode", "snr_db", 19.0, 20.0, "kernels"),
        Miss(WALK, "top1_agreement", 0.5, 0.9, "kernels"),
    ]
    assert check({WALK: FINE}, FLOOR, ("kernels",)) == []


def test_streams_of_verify_passes_best_tokens_and_pruners_are_held_to_a_floor_too() -> None:
    fine = {**FINE, "stream_snr_db": 20.0, "own_best": 1.0, "kept_agreement": 0.5}
    assert check({WALK: FINE, "verify_4": fine}, FLOOR) == []
    for metric, value in (("stream_snr_db", 19.9), ("own_best", 0.75), ("kept_agreement", 0.4)):
        with pytest.raises(ParityError, match=f"verify_4: {metric} is {value}, .*; allow_parity_below kernels exports"):
            check({WALK: FINE, "verify_4": {**fine, metric: value}}, FLOOR)
        (miss,) = check({WALK: FINE, "verify_4": {**fine, metric: value}}, FLOOR, ("kernels",))
        assert BelowFloor(comparison="lowering", **asdict(miss)).metric == metric, "the manifest can hold it"


def test_a_best_token_that_is_not_the_best_of_its_logits_and_noise_in_streams_are_seen() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 9)).astype(np.float32)
    logits[0, 4] = logits[0, 7] = 5.0  # either is the best
    streams = {0: (np.zeros((2, 1), np.int64), np.array([[-0.1, -2.0, -3.0]] * 2, np.float32))}
    rows, best = dict(enumerate(logits)), {node: int(row.argmax()) for node, row in enumerate(logits)}
    right = [PassResult(WALK, rows), PassResult("verify_4", rows, best, streams)]
    figures = compare([PassResult(WALK, rows), PassResult("verify_4", rows, {**best, 0: 7}, streams)], right)
    assert (figures["verify_4"]["own_best"], figures["verify_4"]["stream_snr_db"]) == (1.0, 200.0)
    noisy = {0: (streams[0][0], streams[0][1] + rng.normal(size=(2, 3)).astype(np.float32))}
    figures = compare([PassResult(WALK, rows), PassResult("verify_4", rows, {**best, 1: 0}, noisy)], right)
    assert figures["verify_4"]["own_best"] == pytest.approx(2 / 3)
    assert figures["verify_4"]["stream_snr_db"] < 10


@pytest.mark.parametrize("figure", ["snr_db", "top1_agreement"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_number_never_passes(figure: str, value: float) -> None:
    with pytest.raises(ParityError, match=f"{WALK}: {figure} is (nan|-inf)") as error:
        check({WALK: {**FINE, figure: value}}, FLOOR, ("kernels",))
    assert "allow" not in str(error.value)


def test_an_export_below_a_named_floor_says_by_how_much_everywhere(
    checkpoint: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(selftest.FLOORS, "int4", Floor("int4", 150.0, 0.5))
    command = ["export", "--model", str(checkpoint[0]), "--adapter", "none", "--max-context-len", "128"]
    command += ["--prefill-len", "8", "--widths", "4", "--default-width", "4", "-o", str(tmp_path / "bundle")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "--allow-parity-below int4" in refused.stderr
    assert list(tmp_path.iterdir()) == []

    done = CliRunner().invoke(app, [*command, "--allow-parity-below", "int4"])
    assert done.exit_code == 0, done.stderr
    assert "below the floor int4, as allowed: quantization, decode, snr_db" in done.stderr
    bundle = open_bundle(tmp_path / "bundle")
    missed = bundle.manifest.below_floor
    assert {(one.comparison, one.metric, one.floor, one.asked) for one in missed} == {
        ("quantization", "snr_db", "int4", 150.0)
    }
    assert {one.method for one in missed} == {WALK, "decode", "verify_4"}
    report = json.loads(bundle.file("export_report.json").read_text())
    assert report["config"]["allow_parity_below"] == ["int4"]
    for one in missed:
        assert one.measured == report["parity"]["quantization"][one.method]["snr_db"] < 150
    shown = CliRunner().invoke(app, ["bundle", "inspect", str(tmp_path / "bundle")])
    assert f"decode, snr_db {missed[1].measured:.6g} instead of 150" in " ".join(shown.stdout.split())


def test_a_figure_that_is_no_number_stops_an_export_whatever_is_allowed(
    checkpoint: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "compare", lambda *_: {WALK: {"snr_db": math.nan, "top1_agreement": 1.0}})
    with pytest.raises(ParityError, match="snr_db is nan"):
        run_export(config_for(checkpoint, tmp_path / "bundle", allow_parity_below=("int4", "kernels")))
    assert list(tmp_path.iterdir()) == []


def test_a_float_export_is_held_to_no_floor_of_integers(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    plan: dict[str, Any] = {"target": "onnx", "quantize": "none", "dtype": "float32", "allow_parity_below": ("int8",)}
    with pytest.raises(OptionError, match="must be float32, which this export is held to, not int8"):
        run_export(config_for(checkpoint, tmp_path / "bundle", **plan))


def test_a_floor_that_nobody_knows_or_this_plan_is_not_held_to_is_refused(
    checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"allow_parity_below must be one of float32, float16, .*, not int2"):
        config_for(checkpoint, tmp_path / "bundle", allow_parity_below=("int2",))
    with pytest.raises(OptionError, match="must be one of kernels, int4, which this export is held to, not float16"):
        run_export(config_for(checkpoint, tmp_path / "bundle", allow_parity_below=("float16",)))


def test_a_config_file_and_the_python_call_name_floors_too(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    from streamfuse.options import converted

    assert converted(ExportConfig, {"allow_parity_below": "int4"}) == {"allow_parity_below": ("int4",)}
    assert converted(ExportConfig, {"allow_parity_below": ["int4", "kernels"]}) == {
        "allow_parity_below": ("int4", "kernels")
    }
    for names in ("int4", "[int4, kernels]"):
        config = tmp_path / "mine.yaml"
        config.write_text(f"allow_parity_below: {names}\nadapter: none\nmax_context_len: 128\n")
        command = ["export", "--model", str(checkpoint[0]), "-o", str(tmp_path / "b"), "--config", str(config)]
        done = CliRunner().invoke(app, [*command, "--dry-run", "--json"])
        assert json.loads(done.stdout)["allow_parity_below"] == names.strip("[]").split(", ")


def test_figures_are_read_and_bundles_without_them_open(tmp_path: Path) -> None:
    old, new = write_bundle(tmp_path / "old"), write_bundle(tmp_path / "new", below_floor=[MISS])
    assert "below_floor" not in json.loads((old / "manifest.json").read_text())
    assert json.loads((new / "manifest.json").read_text())["below_floor"] == [MISS]
    assert open_bundle(old).manifest.below_floor == ()
    assert open_bundle(new).manifest.below_floor[0].model_dump() == MISS


@pytest.mark.parametrize(
    "change", [{"comparison": "nobody"}, {"metric": "cosine"}, {"measured": "low"}, {"measured": None}, {"more": 1}]
)
def test_figures_of_another_form_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle", below_floor=[MISS])
    edit_manifest(folder, lambda manifest: manifest["below_floor"][0].update(change))
    with pytest.raises(BundleError, match=r"below_floor\.0"):
        open_bundle(folder)


def test_a_plan_that_names_no_floor_allows_none(checkpoint: tuple[Path, Path]) -> None:
    assert resolve(ExportConfig(*checkpoint, Path("bundle"))).allow_parity_below == ()
