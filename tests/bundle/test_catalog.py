"""The catalogue: what it says of bundles, and what cannot be published.

Run: python -m pytest tests/bundle/test_catalog.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from bundle_samples import edit_manifest, manifest_fields, write_bundle
from signed_samples import OTHER_PUBLIC, PUBLIC, write_signed_bundle
from typer.testing import CliRunner

from streamfuse.bundle import BundleError, make_catalog
from streamfuse.cli import app


def command(*arguments: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    result = CliRunner().invoke(app, ["bundle", "catalog", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_an_entry_has_every_file_of_the_bundle_with_its_size_and_hash(tmp_path: Path) -> None:
    folder = write_signed_bundle(tmp_path / "demo")
    (folder / "not listed").write_text("and not published")
    (entry,) = make_catalog([folder]).bundles
    assert (entry.name, entry.title, entry.license) == ("demo", "bytes", "apache-2.0")
    assert (entry.context_length, entry.target, entry.backend) == (64, "executorch", "xnnpack")
    assert list(entry.files)[:2] == ["manifest.json", "manifest.sig"], "the small ones that decide come first"
    assert set(entry.files) == {"manifest.json", "manifest.sig", "model.pte", "tokenizer.json"}
    for name, facts in entry.files.items():
        data = (folder / name).read_bytes()
        assert (facts.bytes, facts.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert entry.bytes == sum(facts.bytes for facts in entry.files.values())


def test_the_command_writes_the_file_that_phones_read(tmp_path: Path) -> None:
    one, two = write_bundle(tmp_path / "one"), write_bundle(tmp_path / "two")
    file = tmp_path / "catalog.json"
    code, stdout, stderr = command(one, two, "-o", file, "--title", "two=A second = one")
    assert code == 0, stderr
    assert "A second = one" in stdout
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["catalog_version"] == 1
    assert [(entry["name"], entry["title"], entry["url"]) for entry in written["bundles"]] == [
        ("one", "bytes", "one/"),
        ("two", "A second = one", "two/"),
    ]
    code, stdout, _ = command(one, "-o", file, "--base-url", "https://models.example/v1", "--json")
    assert code == 0
    assert stdout == file.read_text(encoding="utf-8")
    assert json.loads(stdout)["bundles"][0]["url"] == "https://models.example/v1/one/"


def test_a_file_of_a_bundle_is_not_overwritten(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "demo")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for name in ("manifest.json", "tokenizer.json"):
        code, stdout, stderr = command(folder, "-o", folder / name)
        assert (code, stdout) == (2, "")
        assert f"--output {folder / name} would overwrite an input of BUNDLE; name another file" in stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_licence_that_the_manifest_does_not_state_is_null(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "demo", model={**manifest_fields()["model"], "license": None})
    assert make_catalog([folder]).bundles[0].license is None
    assert "not stated" in command(folder, "-o", tmp_path / "catalog.json")[1]


def test_what_cannot_be_published_is_named_and_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "catalog.json"
    file.write_text("old")

    def refusal(*arguments: object, code: int = 1) -> str:
        found, stdout, stderr = command(*arguments, "-o", file)
        assert (found, stdout, file.read_text()) == (code, "", "old")
        assert len(stderr.strip().splitlines()) == 1
        return stderr

    demo = write_bundle(tmp_path / "demo")
    assert "a folder named 'my demo' cannot be published" in refusal(write_bundle(tmp_path / "my demo"))
    assert "has the same name; rename one" in refusal(demo, write_bundle(tmp_path / "other" / "demo"))
    assert "nobody: has a title, but is not one of the bundles (demo)" in refusal(demo, "--title", "nobody=Me")
    assert "title" in refusal(demo, "--title", "demo=\x1b[2J")
    assert "--title takes NAME=TEXT" in refusal(demo, "--title", "demo", code=2)
    for url in ("http://models.example", "https://models.example/?q=1", "https://models.example#a", "https:///a"):
        assert f"have no query or fragment, not {url}" in refusal(demo, "--base-url", url, code=2)
    assert "nowhere" in refusal(tmp_path / "nowhere")
    (demo / "model.pte").write_bytes(b"changed" * 100)
    assert "model.pte" in refusal(demo)


def test_a_catalogue_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    demo = write_bundle(tmp_path / "demo")
    code, _, stderr = command(demo, "-o", tmp_path / "nowhere" / "catalog.json")
    assert code == 1
    assert str(tmp_path / "nowhere" / "catalog.json") in stderr


def test_with_a_key_only_what_it_signed_is_published(tmp_path: Path) -> None:
    folder = write_signed_bundle(tmp_path / "demo")
    assert "manifest.sig" in make_catalog([folder], public_key=PUBLIC).bundles[0].files
    for key, bundle in ((OTHER_PUBLIC, folder), (PUBLIC, write_bundle(tmp_path / "unsigned"))):
        with pytest.raises(BundleError, match=r"manifest\.sig"):
            make_catalog([bundle], public_key=key)


def test_more_files_or_bytes_than_readers_accept_are_refused(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "demo")
    empty = {"sha256": hashlib.sha256(b"").hexdigest(), "bytes": 0}
    names = [f"part{number}" for number in range(1000)]
    for name in names:
        (folder / name).touch()
    edit_manifest(folder, lambda manifest: manifest["files"].update(dict.fromkeys(names, empty)))
    with pytest.raises(BundleError, match="has 1003 files, but readers accept 1000"):
        make_catalog([folder])
