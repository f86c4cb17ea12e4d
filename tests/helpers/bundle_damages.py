"""What can be wrong with a bundle, for the tests of its readers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle_samples import edit_manifest, manifest_fields


def flip_a_byte(bundle: Path) -> None:
    data = bytearray((bundle / "model.pte").read_bytes())
    data[500] ^= 1
    (bundle / "model.pte").write_bytes(data)


def cut(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes((bundle / name).read_bytes()[:-1])


def _leave_by_link(bundle: Path) -> None:
    shutil.move(str(bundle / "model.pte"), bundle.parent / "outside.pte")
    (bundle / "model.pte").symlink_to(bundle.parent / "outside.pte")


def change(*path_and_value: Any) -> Callable[[Path], None]:
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
    return change("files", name, {"sha256": "0" * 64, "bytes": 0})


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


def _hang_a_link(bundle: Path) -> None:
    (bundle / "model.pte").unlink()
    (bundle / "model.pte").symlink_to("nothing")


def _loop_a_link(bundle: Path) -> None:
    (bundle / "model.pte").unlink()
    (bundle / "model.pte").symlink_to("model.pte")


def _pipe(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)


def _link_the_manifest(target: str) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        (bundle / "manifest.json").unlink()
        (bundle / "manifest.json").symlink_to(target)

    return damage


def _move_the_manifest_out(bundle: Path) -> None:
    shutil.move(str(bundle / "manifest.json"), bundle.parent / "outside.json")
    (bundle / "manifest.json").symlink_to(bundle.parent / "outside.json")


def _replace(old: str, new: str) -> Callable[[Path], None]:
    """Change the manifest's text, where JSON would not write it so."""

    def damage(bundle: Path) -> None:
        text = (bundle / "manifest.json").read_text(encoding="utf-8")
        assert old in text
        (bundle / "manifest.json").write_text(text.replace(old, new, 1), encoding="utf-8")

    return damage


# Each damage, and words of the sentence that names it.
DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "folder missing": (shutil.rmtree, ["demo", "no such folder"]),
    "manifest missing": (lambda b: (b / "manifest.json").unlink(), ["manifest.json", "missing"]),
    "manifest is a folder": (
        lambda b: ((b / "manifest.json").unlink(), (b / "manifest.json").mkdir()),
        ["manifest.json", "cannot be read"],
    ),
    "manifest empty": (_write(""), ["manifest.json", "not valid JSON"]),
    "manifest cut short": (lambda b: cut(b, "manifest.json") or cut(b, "manifest.json"), ["not valid JSON"]),
    "manifest is binary": (_write(b"\xff\xfe\x00\x01"), ["manifest.json", "not valid JSON"]),
    "manifest nested without end": (_write("[" * 200_000), ["manifest.json", "not valid JSON"]),
    "manifest of something else": (_write('{"name": "app", "version": "1"}'), ["format_version", "missing"]),
    "manifest is a list": (_write("[1, 2]"), ["format_version", "missing"]),
    "manifest with NaN": (_write('{"format_version": NaN}'), ["manifest.json", "not valid JSON"]),
    "format newer": (change("format_version", 5), ["5 is newer than 4", "upgrade streamfuse"]),
    "format is text": (change("format_version", "1"), ["format_version", "integer"]),
    "format older": (change("format_version", 3), ["was written in format 3", "reads 4", "`streamfuse export`"]),
    "format zero": (
        change("format_version", 0),
        ["was written in format 0", "reads 4", "`streamfuse export`"],
    ),
    "unknown field": (change("model", "heads", 3), ["model.heads"]),
    "field missing": (_drop("cache", "capacity"), ["cache.capacity", "required"]),
    "field of the wrong kind": (change("cache", "capacity", "many"), ["cache.capacity", "integer"]),
    "capacity zero": (change("cache", "capacity", 0), ["cache.capacity"]),
    "decode missing": (_drop("methods", "decode"), ["methods.decode", "missing"]),
    "unknown method": (change("methods", "forward", manifest_fields()["methods"]["decode"]), ["methods.forward"]),
    "verify rows disagree": (change("methods", "verify_4", "rows", 5), ["methods.verify_4"]),
    "keep above rows": (change("methods", "verify_8", "keep", 9), ["methods.verify_8.keep"]),
    "width unknown": (change("speculation", "default_width", 5), ["speculation.default_width"]),
    "eos outside the vocabulary": (change("model", "eos_token_ids", [99999]), ["99999", "vocabulary"]),
    "file missing": (lambda b: (b / "model.pte").unlink(), ["model.pte", "no such file"]),
    "file cut short": (lambda b: cut(b, "model.pte"), ["model.pte", "bytes", "1100 expected, 1099 found"]),
    "file grown": (lambda b: (b / "model.pte").write_bytes(b"x" * 2000), ["model.pte", "bytes"]),
    "one bit flipped": (flip_a_byte, ["model.pte", "sha256"]),
    "graph not listed": (_drop("files", "model.pte"), ["manifest.json", "files", "model.pte"]),
    "tokenizer not listed": (_drop("files", "tokenizer.json"), ["files", "tokenizer.json"]),
    "drafting data not listed": (change("speculation", "parent_rank", 4), ["files", "draft.safetensors"]),
    "absolute name": (_list_file("/etc/passwd"), ["files", "/etc/passwd"]),
    "name climbs out": (_list_file("../outside.pte"), ["files", "../outside.pte"]),
    "name climbs out later": (_list_file("a/../../outside.pte"), ["files", "outside.pte"]),
    "name of another system": (_list_file("..\\outside.pte"), ["files", "outside.pte"]),
    "name with a drive": (_list_file("C:/outside.pte"), ["files", "C:/outside.pte"]),
    "name empty": (_list_file(""), ["files"]),
    "manifest lists itself": (_list_file("manifest.json"), ["files", "itself"]),
    "manifest lists its signature": (_list_file("manifest.sig"), ["files", "cannot list its signature"]),
    "link leaves the folder": (_leave_by_link, ["model.pte", "a link out of the bundle"]),
    "link leads nowhere": (_hang_a_link, ["model.pte", "no such file"]),
    "link to itself": (_loop_a_link, ["model.pte", "files: cannot be read"]),
    "tokenizer is a pipe": (lambda b: _pipe(b, "tokenizer.json"), ["tokenizer.json", "no such file"]),
    "tokenizer too large": (
        change("files", "tokenizer.json", "bytes", 2**27 + 1),
        ["files.tokenizer.json.bytes", "too large for a tokenizer"],
    ),
    "manifest is a pipe": (lambda b: _pipe(b, "manifest.json"), ["manifest.json", "not a regular file"]),
    "manifest is a device": (_link_the_manifest("/dev/zero"), ["manifest.json", "a link out of the bundle"]),
    "manifest is a link out": (_move_the_manifest_out, ["manifest.json", "a link out of the bundle"]),
    "manifest is a link to nothing": (_link_the_manifest("nothing"), ["manifest.json", "cannot be read"]),
    "manifest too large": (lambda b: os.truncate(b / "manifest.json", 2**24 + 1), ["too large for a manifest"]),
    "a name twice": (_replace('"capacity": 64', '"capacity": 64, "capacity": 64'), ["'capacity'", "duplicated"]),
    "a name twice in files": (_replace('"files": {', '"files": {"a": 1, "a": 2, '), ["'a'", "duplicated"]),
    "a vocabulary too large": (change("model", "vocab_size", 2**22 + 1), ["model.vocab_size", "4194304"]),
    "count above 2**53": (change("cache", "capacity", 2**53 + 1), ["cache.capacity", "9007199254740992"]),
    "count without end": (change("cache", "capacity", 10**300), ["cache.capacity"]),
    "count of 400 digits": (_replace('"capacity": 64', '"capacity": ' + "9" * 400), ["not valid JSON"]),
    "count as a decimal": (_replace('"capacity": 64', '"capacity": 64.0'), ["cache.capacity", "integer"]),
    "zero with a sign": (_replace('"parent_rank": 0', '"parent_rank": -0'), ["negative zero"]),
    "decimal zero with a sign": (_replace('"temperature": 0.0', '"temperature": -0.0'), ["negative zero"]),
    "number beyond a double": (_replace('"temperature": 0.0', '"temperature": 1e400'), ["not valid JSON"]),
    "number as text": (change("sampling_defaults", "temperature", "0"), ["sampling_defaults.temperature", "number"]),
    "template too long": (change("model", "chat_template", " " * (2**20 + 1)), ["model.chat_template", "1048576"]),
    "half a surrogate": (_replace('"test/bytes"', '"\\ud800"'), ["manifest.json"]),
    "several fields wrong": (change("cache", {"layout": "x", "capacity": "y", "z": 1}), ["cache.layout", "more)"]),
    "operator unknown": (
        change("required_operators", ["streamfuse::nosuch.out"]),
        ["required_operators", "streamfuse::nosuch.out", "upgrade streamfuse"],
    ),
    "nothing proven": (change("parity", {}), ["parity.decode", "missing", "export the bundle again"]),
    "a method not proven": (_drop("parity", "verify_8"), ["parity.verify_8", "missing"]),
    "proven by nothing": (change("parity", "verify_4", "metrics", {}), ["parity.verify_4", "missing"]),
    "name that no disk has room for": (_list_file("ä" * 200), ["files", "ää", "cannot be read"]),
    "name too long": (_list_file("x" * 300), ["not valid JSON", "a name is longer than 255 characters"]),
    "name that acts on a terminal": (change("parity", "\x1b[2J", {}), ["a name has a control character"]),
    "name that ends a line": (change("parity", "decode\n", {}), ["a name has a control character"]),
    "text that acts on a terminal": (change("model", "license", "mit\x1b]0;x\x07"), ["model.license", "pattern"]),
    "text that turns the writing": (change("model", "name", "a\u202eb"), ["model.name", "pattern"]),
    "too many values": (change("required_operators", ["x"] * 100_001), ["more than 100000 values"]),
    "name that no disk has": (_list_file("\ud800"), ["manifest.json", "not valid JSON"]),
    "hash is no hash": (change("files", "model.pte", "sha256", "abc"), ["files.model.pte.sha256"]),
}


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# Headers of safetensors files with 16 bytes of data, and words of the sentence that refuses them.
TABLE_DAMAGES: list[tuple[Any, str]] = [
    (b"[" * 200_000, "damaged"),
    (b"\xff\xfe", "damaged"),
    (b'{"a": 1', "damaged"),
    (b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": {}}', "twice"),
    ([], "not a JSON object"),
    (None, "not a JSON object"),
    ({"a": 3}, "'a' is not described"),
    ({"a": {"dtype": "F32", "shape": [2]}}, "'a' is not described"),
    ({"a": entry("F64")}, "'a' has dtype 'F64', not one of F16, F32, I32, I64"),
    ({"a": entry("BF16", (4,))}, "'a' has dtype"),
    ({"a": entry(["F32"])}, "'a' has dtype"),
    ({"a": entry(shape=2)}, "'a' has shape"),
    ({"a": entry(shape=[-2])}, "'a' has shape"),
    ({"a": entry(shape=[2.0])}, "'a' has shape"),
    ({"a": entry(shape=[2, True])}, "'a' has shape"),
    ({"a": entry(shape=[2**62, 0], offsets=[0, 0])}, "'a' has shape"),
    ({"a": entry(shape=[1] * 70 + [2])}, "'a' has shape"),
    ({"a": entry(shape=[3])}, "'a' is F32 [3], which are not the 8 bytes"),
    ({"a": entry(offsets=[8, 0])}, "'a' has data_offsets"),
    ({"a": entry(offsets=[-8, 0])}, "'a' has data_offsets"),
    ({"a": entry(offsets=[0, 8, 8])}, "'a' has data_offsets"),
    ({"a": entry(offsets=[8, 16])}, "'a' begins at 8"),
    ({"a": entry(offsets=[16, 24])}, "'a' has data_offsets [16, 24], which are not a valid range of 16 bytes"),
    ({"a": entry(offsets=[0, 10**30])}, "'a' has data_offsets"),
    ({"a": entry(), "b": entry()}, "'b' begins at 0, which overlaps another tensor"),
    ({"a": entry(), "b": entry(offsets=[4, 12])}, "'b' begins at 4, which overlaps another tensor"),
    ({"a": entry("F16", [3], [0, 6]), "b": entry("F16", [5], [6, 16]), "c": entry(offsets=[8, 16])}, "over"),
    ({"a": entry("F16", [1], [0, 2]), "b": entry("F32", [3], [2, 14])}, "'b' is not aligned to its 4 bytes"),
    ({"a": entry()}, "8 bytes at the end"),
    (b'{"a\\u0000b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', "zero byte"),
    (b'{"a": {"dtype": "F32", "shape": [-0, 4], "data_offsets": [0, 0]}}', "negative zero"),
    (b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1.6e1]}}', "'a' has data_offsets"),
    (b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 16]}}', "NaN"),
    (b'{"__metadata__": {"x": 1, "x": 2}}', "twice"),
]
