"""The text library opens a bundle as Python's reader does: the same facts, and the same refusal of every damaged one.

Run: python -m pytest tests/text/test_bundle_library.py
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_damages import DAMAGES, TABLE_DAMAGES, edit_manifest, flip_a_byte
from bundle_library import (
    BAD_FILE,
    BAD_TABLES,
    OK,
    LibraryBundle,
    LibraryFailure,
)
from bundle_samples import manifest_fields, write_bundle
from safetensors.numpy import save

from streamfuse.bundle import BundleError, BundleWriter, open_bundle
from streamfuse.bundle.manifest import OPERATORS
from streamfuse.bundle.reader import Bundle
from streamfuse.engines import identity_of
from streamfuse.runtime.tensors import map_tensors
from streamfuse.runtime.text import TextError, Tokenizer

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


def open_in_python(folder: Path, verify: bool = True) -> tuple[Bundle, dict[str, Any]]:
    """All that opening checks, in the order of streamfuse.api."""
    bundle = open_bundle(folder, verify)
    model = bundle.manifest.model
    Tokenizer(bundle.tokenizer, model.chat_template, model.bos_token_id, model.eos_token_ids)
    return bundle, map_tensors(bundle.draft) if bundle.draft else {}


def verdicts(folder: Path, verify: bool = True) -> tuple[str | None, str | None]:
    """What Python's reader and the library's refuse with; None where they accept, and then the facts agree."""
    expected = found = None
    try:
        python = open_in_python(folder, verify)
    except (BundleError, TextError, ValueError) as error:
        expected = str(error)
    try:
        with LibraryBundle(folder, verify) as opened:
            if expected is None:
                compare(opened, *python)
    except LibraryFailure as failure:
        found = str(failure)
        code = failure.code
    else:
        code = OK
    assert (expected is None) == (found is None), (expected, found)
    assert code in (OK, BAD_FILE, BAD_TABLES)
    assert "\n" not in (found or "")
    return expected, found


def said_alike(expected: str, found: str) -> bool:
    """The same sentence, but where a parser has words of its own, or no place for a number of that size."""
    if "valid J" in found:
        return "JSON" in expected
    expected, found = (text.partition("must be an integer, is ")[0] for text in (expected, found))
    return found == expected or found.replace("a valid integer", "less than or equal to 9007199254740992") == expected


def compare(opened: LibraryBundle, python: Bundle, tensors: dict[str, Any]) -> None:
    manifest, spec, expected = python.manifest, opened.spec(), python.spec()
    facts = ("capacity", "vocab_size", "num_streams", "top_k", "prefill_rows")
    assert [getattr(spec, name) for name in facts] == [getattr(expected, name) for name in facts]
    assert spec.deferred == expected.deferred
    assert list((c_int64 * spec.stop_count).from_address(spec.stop_ids)) == list(manifest.model.eos_token_ids)
    assert spec.identity.decode() == identity_of(python)
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
    assert verdicts(BUILD / name) == (None, None)


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
        refused = verdicts(tmp_path / "demo")
        assert refused[0] == refused[1]
        assert (refused[0] is None) == (not left_out)


def test_every_operator_that_python_knows_is_known(bundle: Path) -> None:
    edit_manifest(bundle, lambda data: data.update(required_operators=list(OPERATORS)))
    assert verdicts(bundle) == (None, None)


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


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_bundle_is_refused_as_python_refuses_it(name: str, bundle: Path) -> None:
    DAMAGES[name][0](bundle)
    expected, found = verdicts(bundle)
    assert expected is not None
    assert found is not None
    assert said_alike(expected, found)


def test_a_manifest_may_be_a_link_inside(bundle: Path) -> None:
    (bundle / "manifest.json").rename(bundle / "other.json")
    (bundle / "manifest.json").symlink_to("other.json")
    assert verdicts(bundle) == (None, None)


def test_a_bundle_that_a_killed_writer_set_aside_is_found(bundle: Path) -> None:
    bundle.rename(bundle.with_name(".demo.replaced"))
    assert verdicts(bundle) == (None, None)


def test_hashes_can_be_skipped_but_sizes_cannot(bundle: Path) -> None:
    flip_a_byte(bundle)
    assert "sha256" in str(verdicts(bundle)[1])
    assert verdicts(bundle, verify=False) == (None, None)


@pytest.mark.parametrize("kind", ["an object", "nothing", "brackets", "decoders", "pre_tokenizers"])
def test_a_file_that_is_no_tokenizer_is_named(kind: str, bundle: Path) -> None:
    made = json.loads((bundle / "tokenizer.json").read_text(encoding="utf-8"))
    nested: dict[str, Any] = made["decoder"]
    for _ in range(120):  # some of it makes the library panic
        nested = {"type": "Sequence", "decoders" if kind == "decoders" else "pretokenizers": [nested]}
    texts = {"an object": "{}", "nothing": "", "brackets": '{"model": ' + "[" * 9999}
    listed(bundle, "tokenizer.json", texts.get(kind, json.dumps({**made, kind[:-1]: nested})).encode())
    words = "not a tokenizer"
    expected, found = verdicts(bundle)
    assert words in str(expected)
    assert words in str(found)


@pytest.mark.parametrize("template", ["{% for %}", "{{", "{% endif %}", "{% if x %}", "{{ x | }}", "{% unknown %}"])
def test_a_template_that_is_not_jinja_is_refused(template: str, bundle: Path) -> None:
    edit_manifest(bundle, lambda data: data["model"].update(chat_template=template))
    assert "not valid Jinja" in str(verdicts(bundle)[1])


def listed(bundle: Path, name: str, data: bytes) -> None:
    """Put a file into the bundle, and what the manifest says of it."""
    (bundle / name).write_bytes(data)
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: facts}))


@pytest.mark.parametrize("place", range(len(TABLE_DAMAGES)))
def test_damaged_tables_are_refused_as_python_refuses_them(place: int, bundle: Path) -> None:
    header, words = TABLE_DAMAGES[place]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    listed(bundle, "draft.safetensors", len(text).to_bytes(8, "little") + text + bytes(16))
    expected, found = verdicts(bundle)
    assert words in str(expected)
    assert words in str(found) or "header is damaged" in str(found)


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


def test_four_hundred_changed_manifests_have_the_same_verdict(bundle: Path) -> None:
    rng, path = random.Random(31), bundle / "manifest.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    accepted = 0
    for _ in range(400):
        data = mutate(whole, rng)
        data = mutate(data, rng) if rng.random() < 0.3 else data
        path.write_text(json.dumps(data), encoding="utf-8")
        expected, found = verdicts(bundle)
        accepted += expected is None
        assert expected is None or said_alike(expected, str(found))
    assert 5 < accepted < 200


def test_five_hundred_damaged_texts_of_manifests_have_the_same_verdict(bundle: Path) -> None:
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
        accepted += verdicts(bundle) == (None, None)
    assert 5 < accepted < 250, "most damage is found, and some of it changes nothing that counts"


def test_four_hundred_damaged_tables_have_the_same_verdict(bundle: Path) -> None:
    rng, whole = random.Random(41), save(TABLES)
    listed(bundle, "draft.safetensors", whole)
    assert verdicts(bundle) == (None, None)
    end = 8 + int.from_bytes(whole[:8], "little")
    accepted = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(end)
            data[place] = rng.choice([data[place] ^ 1 << rng.randrange(8), *b'0123456789"[]{},:-. '])
        (bundle / "draft.safetensors").write_bytes(data)
        accepted += verdicts(bundle, verify=False) == (None, None)
    assert 5 < accepted < 200


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
                assert None not in small.submit(verdicts, bundle).result()
    finally:
        threading.stack_size(before)
