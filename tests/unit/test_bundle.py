"""A bundle is read back as written, every damage is found and named in one line, and writing is all or nothing.

Run: python -m pytest tests/unit/test_bundle.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_samples import CAPACITY, WIDTHS, edit_manifest, manifest_fields, write_bundle
from streamfuse.bundle import BundleError, BundleWriter, open_bundle
from streamfuse.bundle.manifest import schema_json


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


def failure(path: Path) -> str:
    """The message of opening a bad bundle; it is one line."""
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_written_bundle_opens_with_the_same_facts(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened.manifest.model.name == "test/bytes"
    assert list(opened.manifest.verify_methods) == [f"verify_{width}" for width in WIDTHS]
    assert opened.graph.read_bytes().startswith(b"not a graph")
    assert set(opened.manifest.files) == {"model.pte", "tokenizer.json"}
    assert opened.draft is None


def test_the_spec_carries_what_the_loop_needs(bundle: Path) -> None:
    spec = open_bundle(bundle).spec()
    assert spec.capacity == CAPACITY
    assert dict(spec.widths) == {"verify_4": (4, 4), "verify_8": (8, 4)}
    assert (spec.prefill_rows, spec.num_streams, spec.top_k, spec.default_width) == (8, 2, 3, 8)


def _flip_a_byte(bundle: Path) -> None:
    data = bytearray((bundle / "model.pte").read_bytes())
    data[500] ^= 1
    (bundle / "model.pte").write_bytes(data)


def _cut(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes((bundle / name).read_bytes()[:-1])


def _leave_by_link(bundle: Path) -> None:
    shutil.move(str(bundle / "model.pte"), bundle.parent / "outside.pte")
    (bundle / "model.pte").symlink_to(bundle.parent / "outside.pte")


def _link_to_itself(bundle: Path) -> None:
    (bundle / "model.pte").unlink()
    (bundle / "model.pte").symlink_to("model.pte")


def _set(*path_and_value: Any) -> Callable[[Path], None]:
    *path, value = path_and_value

    def damage(bundle: Path) -> None:
        def edit(data: dict[str, Any]) -> None:
            target = data
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value

        edit_manifest(bundle, edit)

    return damage


def _list_file(name: str) -> Callable[[Path], None]:
    return _set("files", name, {"sha256": "0" * 64, "bytes": 0})


def _write(text: str | bytes) -> Callable[[Path], None]:
    data = text.encode() if isinstance(text, str) else text
    return lambda bundle: (bundle / "manifest.json").write_bytes(data) and None


def _drop(*path: str) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        def edit(data: dict[str, Any]) -> None:
            target = data
            for key in path[:-1]:
                target = target[key]
            del target[path[-1]]

        edit_manifest(bundle, edit)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "folder missing": (shutil.rmtree, ["demo", "no such folder"]),
    "manifest missing": (lambda b: (b / "manifest.json").unlink(), ["manifest.json", "missing"]),
    "manifest is a folder": (
        lambda b: ((b / "manifest.json").unlink(), (b / "manifest.json").mkdir()),
        ["manifest.json", "cannot be read"],
    ),
    "manifest empty": (_write(""), ["manifest.json", "not valid JSON"]),
    "manifest cut short": (lambda b: _cut(b, "manifest.json") or _cut(b, "manifest.json"), ["not valid JSON"]),
    "manifest is binary": (_write(b"\xff\xfe\x00\x01"), ["manifest.json", "not valid JSON"]),
    "manifest nested without end": (_write("[" * 200_000), ["manifest.json", "not valid JSON"]),
    "manifest of something else": (_write('{"name": "app", "version": "1"}'), ["format_version", "missing"]),
    "manifest is a list": (_write("[1, 2]"), ["format_version", "missing"]),
    "manifest with NaN": (_write('{"format_version": NaN}'), ["NaN"]),
    "format newer": (_set("format_version", 4), ["format_version", "newer", "upgrade"]),
    "format is text": (_set("format_version", "1"), ["format_version", "integer"]),
    "format older": (_set("format_version", 2), ["was written in format 2", "reads 3", "`streamfuse export`"]),
    "format zero": (_set("format_version", 0), ["format_version", "was written in format 0"]),
    "unknown field": (_set("model", "heads", 3), ["model.heads"]),
    "field missing": (_drop("cache", "capacity"), ["cache.capacity", "required"]),
    "field of the wrong kind": (_set("cache", "capacity", "many"), ["cache.capacity", "integer"]),
    "capacity zero": (_set("cache", "capacity", 0), ["cache.capacity"]),
    "decode missing": (_drop("methods", "decode"), ["methods.decode", "missing"]),
    "unknown method": (_set("methods", "forward", manifest_fields()["methods"]["decode"]), ["methods.forward"]),
    "verify rows disagree": (_set("methods", "verify_4", "rows", 5), ["methods.verify_4"]),
    "keep above rows": (_set("methods", "verify_8", "keep", 9), ["methods.verify_8.keep"]),
    "width unknown": (_set("speculation", "default_width", 5), ["speculation.default_width"]),
    "eos outside the vocabulary": (_set("model", "eos_token_ids", [99999]), ["99999", "vocabulary"]),
    "file missing": (lambda b: (b / "model.pte").unlink(), ["model.pte", "no such file"]),
    "file cut short": (lambda b: _cut(b, "model.pte"), ["model.pte", "bytes", "1100 expected, 1099 found"]),
    "file grown": (lambda b: (b / "model.pte").write_bytes(b"x" * 2000), ["model.pte", "bytes"]),
    "one bit flipped": (_flip_a_byte, ["model.pte", "sha256"]),
    "graph not listed": (_drop("files", "model.pte"), ["manifest.json", "files", "model.pte"]),
    "tokenizer not listed": (_drop("files", "tokenizer.json"), ["files", "tokenizer.json"]),
    "drafting data not listed": (_set("speculation", "parent_rank", 4), ["files", "draft.safetensors"]),
    "absolute name": (_list_file("/etc/passwd"), ["files", "/etc/passwd"]),
    "name climbs out": (_list_file("../outside.pte"), ["files", "../outside.pte"]),
    "name climbs out later": (_list_file("a/../../outside.pte"), ["files", "outside.pte"]),
    "name of another system": (_list_file("..\\outside.pte"), ["files", "outside.pte"]),
    "name with a drive": (_list_file("C:/outside.pte"), ["files", "C:/outside.pte"]),
    "name empty": (_list_file(""), ["files"]),
    "manifest lists itself": (_list_file("manifest.json"), ["files", "itself"]),
    "link leaves the folder": (_leave_by_link, ["model.pte", "leaves the bundle"]),
    "operator unknown": (
        _set("required_operators", ["streamfuse::nosuch.out"]),
        ["required_operators", "streamfuse::nosuch.out", "upgrade streamfuse"],
    ),
    "nothing proven": (_set("parity", {}), ["parity.decode", "missing", "export the bundle again"]),
    "a method not proven": (_drop("parity", "verify_8"), ["parity.verify_8", "missing"]),
    "proven by nothing": (_set("parity", "verify_4", "metrics", {}), ["parity.verify_4", "missing"]),
    "link to itself": (_link_to_itself, ["model.pte", "files"]),
    "name too long": (_list_file("x" * 300), ["files", "xxx", "cannot be read"]),
    "name that no disk has": (_list_file("\ud800"), ["manifest.json", "Invalid JSON"]),
    "hash is no hash": (_set("files", "model.pte", "sha256", "abc"), ["files.model.pte.sha256"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_in_one_line(name: str, bundle: Path) -> None:
    damage, words = DAMAGES[name]
    damage(bundle)
    message = failure(bundle)
    assert all(word in message for word in words), message


def test_a_file_is_not_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("x")
    assert "not a folder" in failure(tmp_path / "demo")


def test_hashes_can_be_skipped_but_sizes_cannot(bundle: Path) -> None:
    _flip_a_byte(bundle)
    open_bundle(bundle, verify=False)
    _cut(bundle, "model.pte")
    with pytest.raises(BundleError, match="bytes"):
        open_bundle(bundle, verify=False)


def test_a_file_that_the_manifest_does_not_list_is_not_given_out(bundle: Path) -> None:
    (bundle / "extra.bin").write_text("x")
    with pytest.raises(BundleError, match=r"extra\.bin"):
        open_bundle(bundle).file("extra.bin")


def test_writing_fails_when_the_name_is_taken(bundle: Path) -> None:
    with pytest.raises(BundleError, match="exists already"), BundleWriter(bundle):
        pass


def test_overwriting_replaces_the_whole_folder(bundle: Path) -> None:
    (bundle / "leftover.bin").write_text("x")
    with BundleWriter(bundle, overwrite=True) as writer:
        for name in ("model.pte", "tokenizer.json"):
            (writer.folder / name).write_text("new")
        writer.write_manifest(**manifest_fields())
    assert open_bundle(bundle).graph.read_text() == "new"
    assert sorted(path.name for path in bundle.iterdir()) == ["manifest.json", "model.pte", "tokenizer.json"]
    assert [path.name for path in bundle.parent.iterdir()] == ["demo"]


def test_overwriting_spares_what_is_not_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")
    with pytest.raises(BundleError, match="not a bundle"), BundleWriter(tmp_path / "home", overwrite=True):
        pass
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_writer_leaves_the_old_bundle_and_nothing_else(error: type[BaseException], bundle: Path) -> None:
    def write_half() -> None:
        with BundleWriter(bundle, overwrite=True) as writer:
            (writer.folder / "model.pte").write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    open_bundle(bundle)
    assert [path.name for path in bundle.parent.iterdir()] == ["demo"]


def test_a_writer_without_manifest_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="never written"), BundleWriter(tmp_path / "demo") as writer:
        (writer.folder / "model.pte").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_field_is_refused_while_writing(tmp_path: Path) -> None:
    fields = manifest_fields()
    fields["cache"]["capacity"] = -1
    with pytest.raises(BundleError, match=r"cache\.capacity"), BundleWriter(tmp_path / "demo") as writer:
        writer.write_manifest(**fields)
    assert list(tmp_path.iterdir()) == []


def test_files_in_folders_belong_to_the_bundle(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "demo") as writer:
        (writer.folder / "model.mlpackage").mkdir()
        for name in ("model.mlpackage/weights.bin", "model.pte", "tokenizer.json"):
            (writer.folder / name).write_text(name)
        writer.write_manifest(**manifest_fields())
    assert open_bundle(tmp_path / "demo").file("model.mlpackage/weights.bin").read_text().endswith("weights.bin")


def test_the_published_schema_is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == json.loads(schema_json()), (
        "run: python -m streamfuse.bundle docs/manifest.schema.json"
    )


@pytest.mark.parametrize(
    ("target", "files", "graph"),
    [
        ("coreml", ["model.mlpackage/Manifest.json", "model.mlpackage/Data/model.mlmodel"], "model.mlpackage"),
        ("onnx", ["prefill.onnx", "decode.onnx", "verify_4.onnx", "verify_8.onnx"], ""),
    ],
)
def test_a_bundle_of_each_target_says_where_its_graphs_are(
    tmp_path: Path, target: str, files: list[str], graph: str
) -> None:
    def write(name: str, left_out: str = "") -> Path:
        with BundleWriter(tmp_path / name) as writer:
            for file in (*files, "tokenizer.json", "draft.safetensors"):
                (writer.folder / file).parent.mkdir(parents=True, exist_ok=True)
                if file != left_out:
                    (writer.folder / file).write_text("content")
            fields = {"target": target, "kernels": False, "required_operators": []}
            writer.write_manifest(**{**manifest_fields(), **fields})
        return tmp_path / name

    folder = write("whole")
    assert open_bundle(folder).graph == folder / graph
    with pytest.raises(BundleError, match=f"files: has no {files[0]}"):
        open_bundle(write("damaged", left_out=files[0]))
