"""A bundle is read back as written, every damage is found and named in one line, and writing is all or nothing.

Run: python -m pytest tests/bundle/test_bundle.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundle_damages import DAMAGES, cut, flip_a_byte
from bundle_samples import CAPACITY, WIDTHS, manifest_fields, write_bundle, write_tokenizer

from streamfuse.bundle import BundleError, BundleWriter, open_bundle
from streamfuse.bundle.manifest import FORMAT_VERSION, manifest_json, parse_manifest, schema_json


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
    flip_a_byte(bundle)
    open_bundle(bundle, verify=False)
    cut(bundle, "model.pte")
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
        (writer.folder / "model.pte").write_text("new")
        write_tokenizer(writer.folder)
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
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "manifest.json").write_text('{"manifest_version": 3}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("extension", "link"):
        with pytest.raises(BundleError, match="not a bundle"), BundleWriter(tmp_path / name, overwrite=True):
            pass


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
        for name in ("model.mlpackage/weights.bin", "model.pte"):
            (writer.folder / name).write_text(name)
        write_tokenizer(writer.folder)
        writer.write_manifest(**manifest_fields())
    assert open_bundle(tmp_path / "demo").file("model.mlpackage/weights.bin").read_text().endswith("weights.bin")


def test_merged_streams_are_left_out_of_a_manifest_that_has_none() -> None:
    for merged in (False, True):
        fields = manifest_fields()
        fields["speculation"]["merged_streams"] = merged
        own = {name: fields[name] for name in ("methods", "speculation", "quantization", "parity")}
        fields["adapters"] = {"sql": {**own, "chat_template": None}}
        manifest = parse_manifest(json.dumps({**fields, "format_version": FORMAT_VERSION, "files": {}}))
        text = manifest_json(manifest)
        assert parse_manifest(text) == manifest
        written = json.loads(text)
        for part in (written, written["adapters"]["sql"]):
            assert part["speculation"].get("merged_streams") is (True if merged else None)


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
            write_tokenizer(writer.folder)
            for file in files:
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
