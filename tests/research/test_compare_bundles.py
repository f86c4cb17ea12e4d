"""What the comparison of methods makes once is made for one target, and again where what it depends on has changed.

Run: python -m pytest tests/research/test_compare_bundles.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_samples import edit_manifest, write_bundle

from streamfuse.bundle import open_bundle
from streamfuse.research import files
from streamfuse.research.compare.bundles import OTHERS, folder_for, missing


def made(folder: Path) -> None:
    """All bundles of the other methods, as `missing` sees them."""
    for name in OTHERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").touch()


def test_what_was_made_for_a_target_is_reused_for_it_alone(tmp_path: Path) -> None:
    first, again = (open_bundle(write_bundle(tmp_path / place / "demo")) for place in ("one", "two"))
    made(folder_for(first, tmp_path / "lab"))
    assert missing(folder_for(first, tmp_path / "lab")) == []
    assert missing(folder_for(again, tmp_path / "lab")) == [], "a copy is the same target"
    for name, change in (("model", {"name": "another"}), ("cache", {"capacity": 32})):
        folder = write_bundle(tmp_path / name / "demo")
        edit_manifest(folder, lambda manifest, name=name, change=change: manifest[name].update(change))
        assert missing(folder_for(open_bundle(folder), tmp_path / "lab")) == list(OTHERS), name


def test_what_was_made_with_other_adapters_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ADAPTERS", tmp_path)
    (tmp_path / "medusa.safetensors").write_bytes(b"first")
    target = open_bundle(write_bundle(tmp_path / "demo"))
    made(folder_for(target, tmp_path / "lab"))
    assert missing(folder_for(target, tmp_path / "lab")) == []
    (tmp_path / "medusa.safetensors").write_bytes(b"second")
    assert missing(folder_for(target, tmp_path / "lab")) == list(OTHERS)
