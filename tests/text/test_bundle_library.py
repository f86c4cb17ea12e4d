"""A bundle opens with the facts of its manifest, in Python and in C, or is refused in a sentence.

Run: python -m pytest tests/text/test_bundle_library.py
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_damages import DAMAGES, edit_manifest, flip_a_byte
from bundle_library import LibraryBundle
from bundle_samples import list_file, manifest_fields, write_bundle
from pydantic import ValidationError
from safetensors.numpy import save

from streamfuse.bundle import BundleError, BundleWriter, Manifest, open_bundle
from streamfuse.bundle.manifest import OPERATORS
from streamfuse.bundle.reader import Bundle

BUILD = Path(__file__).parents[2] / "build"
TABLES = {
    "stream_vocab": np.arange(6, dtype=np.int32),
    "parent_left": np.arange(8, dtype=np.float16).reshape(4, 2),
    "calibration": np.array([[0.5, -1.5]], np.float32),
    "ngram_keys": np.array([2**40, -1, 3]),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


def refusal(folder: Path, verify: bool = True) -> str | None:
    """The sentence with which a bundle is refused; None where it opens, and then C has the same facts."""
    try:
        python = open_bundle(folder, verify)
        tables = python.tables or {}
    except BundleError as error:
        return str(error)
    with LibraryBundle(folder, verify) as opened:
        compare(opened, python, tables)
    return None


def compare(opened: LibraryBundle, python: Bundle, tensors: dict[str, Any]) -> None:
    manifest, spec, expected = python.manifest, opened.spec(), python.spec()
    facts = ("capacity", "vocab_size", "num_streams", "top_k", "prefill_rows")
    assert [getattr(spec, name) for name in facts] == [getattr(expected, name) for name in facts]
    assert spec.deferred == expected.deferred
    assert list((c_int64 * spec.stop_count).from_address(spec.stop_ids)) == list(manifest.model.eos_token_ids)
    files = manifest.files
    hashes = "\n".join(f"{name} {files[name].sha256}" for name in sorted(files))
    assert spec.identity.decode() == python.identity == hashlib.sha256(hashes.encode()).hexdigest()
    verify = [spec.verify[i] for i in range(spec.verify_count)]
    assert [(m.name.decode(), m.rows, m.keep) for m in verify] == [(n, *rows) for n, rows in expected.widths.items()]
    assert [m.carrying for m in verify] == [expected.streams_of(name) for name in expected.widths]

    options, defaults = opened.defaults(), manifest.sampling_defaults
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    assert [getattr(options, name) for name in names] == [getattr(defaults, name) for name in names]
    assert (options.speculative, options.width, options.seed, options.stop_count) == (1, 0, 0, 0)

    given = opened.tensors()
    assert [tensor.name.decode() for tensor in given] == list(tensors)
    for tensor, array in zip(given, tensors.values(), strict=True):
        assert ctypes.string_at(tensor.data, array.nbytes) == array.tobytes()
        assert (tensor.rank, list(tensor.shape)) == (array.ndim, [*array.shape, 1, 1][:2])
        assert tensor.dtype == ["float16", "float32", "int32", "int64"].index(str(array.dtype)) + 1
    assert opened.manifest() == (python.folder / "manifest.json").read_text(encoding="utf-8")
    assert opened.graph() == python.graph


@pytest.mark.parametrize("name", ["demo", "e2e", "sql"])
def test_real_bundles_open_with_the_same_facts(name: str) -> None:
    if not (BUILD / name / "manifest.json").is_file():
        pytest.skip(f"build/{name} is missing; run: make bundles")
    assert refusal(BUILD / name) is None


@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("coreml", ["model.mlpackage/Manifest.json"]),
        ("onnx", ["prefill.onnx", "decode.onnx", "verify_4.onnx", "verify_8.onnx"]),
    ],
)
def test_bundles_of_other_targets_open(target: str, files: list[str], tmp_path: Path) -> None:
    for left_out in ("", files[0]):
        with BundleWriter(tmp_path / "demo", overwrite=True) as writer:
            (writer.folder / "model.mlpackage").mkdir()
            for file in (set(files) | {"model.pte"}) - {left_out}:
                (writer.folder / file).write_text("content")
            tokenizer = (write_bundle(tmp_path / f"of {left_out[:3]}") / "tokenizer.json").read_text()
            (writer.folder / "tokenizer.json").write_text(tokenizer)
            writer.write_manifest(**{**manifest_fields(), "target": target})
        assert (refusal(tmp_path / "demo") is None) == (not left_out)


def test_every_operator_that_the_exporter_knows_is_known(bundle: Path) -> None:
    edit_manifest(bundle, lambda data: data.update(required_operators=list(OPERATORS)))
    assert refusal(bundle) is None


def schema_words(schema: dict[str, Any]) -> set[str]:
    """The words of JSON Schema that constrain, in a schema and those inside it."""
    inner = [*schema.get("$defs", {}).values(), *schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    inner += [schema[word] for word in ("items", "additionalProperties") if isinstance(schema.get(word), dict)]
    if "anyOf" in schema:
        assert len(schema["anyOf"]) == 2
        assert schema["anyOf"][1] == {"type": "null"}
    return set(schema).union(*map(schema_words, inner))


def test_the_schema_uses_only_words_that_the_library_reads() -> None:
    """text/src/schema.rs."""
    known = {"$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "enum", "exclusiveMinimum", "items"}
    known |= {
        "maxLength",
        "maxProperties",
        "maximum",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "propertyNames",
        "required",
        "type",
    }
    schema = json.loads((BUILD.parent / "docs" / "manifest.schema.json").read_text(encoding="utf-8"))
    assert schema_words(schema) - known == {"$schema", "description", "title"}


def test_a_manifest_may_be_a_link_inside(bundle: Path) -> None:
    (bundle / "manifest.json").rename(bundle / "other.json")
    (bundle / "manifest.json").symlink_to("other.json")
    assert refusal(bundle) is None


def test_a_bundle_that_a_killed_writer_set_aside_is_found(bundle: Path) -> None:
    bundle.rename(bundle.with_name(".demo.replaced"))
    assert refusal(bundle) is None


def test_hashes_can_be_skipped_but_sizes_cannot(bundle: Path) -> None:
    flip_a_byte(bundle)
    assert "sha256" in str(refusal(bundle))
    assert refusal(bundle, verify=False) is None


@pytest.mark.parametrize("kind", ["an object", "nothing", "brackets", "decoders", "pre_tokenizers"])
def test_a_file_that_is_no_tokenizer_is_named(kind: str, bundle: Path) -> None:
    made = json.loads((bundle / "tokenizer.json").read_text(encoding="utf-8"))
    nested: dict[str, Any] = made["decoder"]
    for _ in range(120):  # some of it makes the library panic
        nested = {"type": "Sequence", "decoders" if kind == "decoders" else "pretokenizers": [nested]}
    texts = {"an object": "{}", "nothing": "", "brackets": '{"model": ' + "[" * 9999}
    list_file(bundle, "tokenizer.json", texts.get(kind, json.dumps({**made, kind[:-1]: nested})).encode())
    assert "tokenizer.json: not a tokenizer" in str(refusal(bundle))


@pytest.mark.parametrize("template", ["{% for %}", "{{", "{% endif %}", "{% if x %}", "{{ x | }}", "{% unknown %}"])
def test_a_template_that_is_not_jinja_is_refused(template: str, bundle: Path) -> None:
    edit_manifest(bundle, lambda data: data["model"].update(chat_template=template))
    assert "not valid Jinja" in str(refusal(bundle))


VALUES = [None, True, False, 0, 1, -1, 3, 8, 64, 2**31, 2**53, 2**53 + 1, 2**70, 0.5, 1.0, -0.5, 1e30]
VALUES += ["", "x", "8", [], [1], ["x"], {}, {"a": 1}]


def mutate(value: Any, rng: random.Random) -> Any:
    """The same with one change somewhere: a value replaced, a field dropped, copied or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.12:
            return {key: inner for key, inner in value.items() if key != name}
        if kind < 0.18:
            return {**value, rng.choice(["extra", "verify_2", "a/b", "streams"]): value[name]}
        if kind < 0.24:
            return {(name + "x" if key == name else key): inner for key, inner in value.items()}
        return {**value, name: mutate(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutate(value[place], rng), *value[place + 1 :]]
    return rng.choice(VALUES)


def by_schema(text: str) -> str | None:
    """The first field that the schema's own types refuse; None where they take it."""
    try:
        Manifest.model_validate_json(text)
    except ValidationError as error:
        return ".".join(map(str, error.errors()[0]["loc"]))
    return None


def test_four_hundred_changed_manifests_are_held_to_the_schema(bundle: Path) -> None:
    """What is read is of the schema's types; what they refuse is refused at the same field."""
    rng, path = random.Random(31), bundle / "manifest.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    accepted = named = 0
    for _ in range(400):
        data = mutate(whole, rng)
        data = mutate(data, rng) if rng.random() < 0.3 else data
        path.write_text(json.dumps(data), encoding="utf-8")
        field, refused = by_schema(path.read_text(encoding="utf-8")), refusal(bundle)
        accepted += refused is None
        assert field is None or refused is not None
        named += field is not None and f"{field}: " in str(refused)
    assert 5 < accepted < 200
    assert named > 150


def test_five_hundred_damaged_texts_of_manifests_are_refused_or_harmless(bundle: Path) -> None:
    rng, path = random.Random(37), bundle / "manifest.json"
    whole = path.read_bytes()
    accepted = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 4])):
            place, kind = rng.randrange(len(data)), rng.random()
            if kind < 0.3:
                data[place] ^= 1 << rng.randrange(8)
            elif kind < 0.6:
                data[place : place + rng.choice([1, 1, 20])] = b""
            else:
                data[place:place] = rng.choice(
                    [b"0", b"-", b".0", b"e9", b'"', b",", b"\\u0000", b"{", b"]", b"\xc3", b"null"]
                )
        path.write_bytes(data)
        refused = refusal(bundle)
        accepted += refused is None
        assert "\n" not in (refused or "")
    assert 5 < accepted < 250, "most damage is found, and some of it changes nothing that counts"


def test_four_hundred_damaged_tables_are_refused_or_the_same_for_c(bundle: Path) -> None:
    rng, whole = random.Random(41), save(TABLES)
    list_file(bundle, "draft.safetensors", whole)
    assert refusal(bundle) is None
    end = 8 + int.from_bytes(whole[:8], "little")
    accepted = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(end)
            data[place] = rng.choice([data[place] ^ 1 << rng.randrange(8), *b'0123456789"[]{},:-. '])
        (bundle / "draft.safetensors").write_bytes(data)
        accepted += refusal(bundle, verify=False) is None
    assert 5 < accepted < 200


def with_adapters(count: int) -> dict[str, Any]:
    fields = manifest_fields()
    own = {name: fields[name] for name in ("methods", "speculation", "quantization", "parity")}
    return {f"a{number}": {**own, "chat_template": None} for number in range(count)}


def test_a_bundle_has_at_most_64_adapters(bundle: Path) -> None:
    edit_manifest(bundle, lambda data: data.update(adapters=with_adapters(64)))
    assert refusal(bundle) is None
    assert open_bundle(bundle).adapter("a63").manifest.files == open_bundle(bundle).manifest.files
    edit_manifest(bundle, lambda data: data.update(adapters=with_adapters(65)))
    assert "adapters: Dictionary should have at most 64 items" in str(refusal(bundle))


_LITTLE_MEMORY = """
import resource, sys
from streamfuse.runtime.text_library import manifest_problem
text = sys.stdin.read()
manifest_problem("{}")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
print(manifest_problem(text))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's addresses is Linux's")
def test_adapters_do_not_copy_a_long_list_of_files(bundle: Path) -> None:
    data = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    files = {f"{'x' * 200}{number}": {"sha256": "0" * 64, "bytes": 1} for number in range(25_000)}
    text = json.dumps({**data, "adapters": with_adapters(64), "files": files})
    done = subprocess.run([sys.executable, "-c", _LITTLE_MEMORY], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_a_small_stack_is_enough(bundle: Path) -> None:
    """Threads of phones have half a megabyte."""

    def work() -> tuple[list[int], str]:
        with LibraryBundle(bundle) as opened:
            text = opened.text()
            return text.ask("x" * 1000), text.render([{"role": "user", "content": "x"}])

    expected = work()
    before = threading.stack_size(512 << 10)
    try:
        with ThreadPoolExecutor(1) as small:
            assert small.submit(work).result() == expected
            for damage in ("unknown field", "manifest nested without end"):
                DAMAGES[damage][0](bundle)
                assert small.submit(refusal, bundle).result() is not None
    finally:
        threading.stack_size(before)
