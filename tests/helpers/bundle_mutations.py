"""Damage to a bundle, as data: lists of mutations that `damage` applies, `random_damage` makes, tests/corpus keeps.

A mutation is a list, its kind first:

    ["json", file, path, value]      put a value at a path of a JSON file; `path` is a list of names and numbers
    ["drop", file, path]             take it out
    ["many", file, path, count, value] put a value there many times, under new names or as items
    ["header", tensor, field, value] the same in the header of draft.safetensors; a field of null takes the tensor out
    ["number", tensor, index, value] one number of a tensor; "nan" and "inf" are words
    ["flip", file, byte, bit]        ["cut", file, bytes left]    ["grow", file, bytes more]
    ["paste", file, byte, hex]       overwrite bytes from there on
    ["link", file, target]           ["fifo", file]    ["folder", file]    ["gone", file]    instead of the file
    ["honest"]                       sizes and hashes in the manifest are made right
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bundle_samples import VOCAB_SIZE, manifest_fields, write_bundle

from streamfuse.bundle import BundleWriter

MANIFEST, DRAFT, TOKENIZER, GRAPH = "manifest.json", "draft.safetensors", "tokenizer.json", "model.pte"
RANK, STREAMS, SLOTS = 2, 2, VOCAB_SIZE  # the arithmetic model's streams propose any token
_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8"}
_CONTAINERS: list[list[str]] = [
    ["files"], ["methods"], ["parity"], ["parity", "decode", "metrics"], ["model"], [], ["required_operators"],
    ["model", "eos_token_ids"], ["methods", "decode", "inputs"],
]  # fmt: skip
_PLACES = ("fifo", "folder", "gone", "link")
_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 65, 258, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.5, -0.0, 1e-320, 1e308, "", "x", "nan", "../x", "/etc/passwd", "\x00", "\ud800", "ä" * 300, [], {},
    [[]], [0], {"a": 1},
]  # fmt: skip


def seed_bundle(folder: Path) -> Path:
    """A valid bundle with all drafting tables; its graph is nothing."""
    write_bundle(folder.with_name("plain"))
    speculation = {**manifest_fields()["speculation"], "parent_rank": RANK, "stream_vocab_size": SLOTS}
    with BundleWriter(folder) as writer:
        for name in (GRAPH, TOKENIZER):
            shutil.copy(folder.with_name("plain") / name, writer.folder / name)
        write_tables(writer.folder / DRAFT)
        writer.write_manifest(**{**manifest_fields(), "speculation": speculation})
    shutil.rmtree(folder.with_name("plain"))
    return folder


def write_tables(path: Path) -> None:
    from safetensors.numpy import save_file

    draw = np.random.default_rng(1)
    contexts = np.sort(draw.choice(VOCAB_SIZE, 12, replace=False))
    log_probs = -np.sort(draw.uniform(0.1, 3, (12, 3)), axis=1)
    tables = {
        "parent_left": draw.normal(size=(VOCAB_SIZE, RANK)).astype(np.float16),
        "parent_right": draw.normal(size=(SLOTS, RANK)).astype(np.float16),
        "gate": draw.normal(size=(STREAMS, RANK)).astype(np.float32),
        "stream_vocab": np.arange(SLOTS, dtype=np.int32),
        "calibration": np.full(STREAMS, 0.5, np.float32),
        "ngram_keys": contexts.astype(np.int64) * (VOCAB_SIZE + 1),
        "ngram_starts": np.arange(0, 37, 3, dtype=np.int32),
        "ngram_ids": draw.integers(0, VOCAB_SIZE, 36).astype(np.int32),
        "ngram_log_probs": log_probs.reshape(-1).astype(np.float16),
    }
    save_file(tables, path)


def damage(bundle: Path, mutations: Sequence[Sequence[Any]]) -> None:
    for kind, *arguments in mutations:
        _KINDS[kind](bundle, *arguments)


def _json(bundle: Path, name: str, path: list[Any], value: Any, drop: bool = False) -> None:
    file = bundle / name
    data = json.loads(file.read_text(encoding="utf-8"))
    place = data
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    file.write_text(json.dumps(data), encoding="utf-8")


def _many(bundle: Path, name: str, path: list[Any], count: int, value: Any) -> None:
    file = bundle / name
    data = json.loads(file.read_text(encoding="utf-8"))
    place = data
    for key in path:
        place = place[key]
    if isinstance(place, list):
        place.extend([value] * count)
    else:
        place.update({f"extra {number}": value for number in range(count)})
    file.write_text(json.dumps(data), encoding="utf-8")


def _tensors(bundle: Path) -> tuple[dict[str, Any], bytes]:
    data = (bundle / DRAFT).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _header(bundle: Path, tensor: str, field: str | None, value: Any) -> None:
    header, data = _tensors(bundle)
    if field is None:
        header.pop(tensor)
    elif field == "name":
        header[str(value)] = header.pop(tensor)
    else:
        header[tensor][field] = value
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    (bundle / DRAFT).write_bytes(len(text).to_bytes(8, "little") + text + data)


def _number(bundle: Path, tensor: str, index: int, value: Any) -> None:
    header, data = _tensors(bundle)
    entry = header[tensor]
    kind, start = np.dtype(_DTYPES[entry["dtype"]]), entry["data_offsets"][0]
    number = float(value) if kind.kind == "f" else np.int64(value)
    with np.errstate(all="ignore"):
        packed = np.array(number).astype(kind).tobytes()
    at = (bundle / DRAFT).stat().st_size - len(data) + start + index * kind.itemsize
    _paste(bundle, DRAFT, at, packed.hex())


def _paste(bundle: Path, name: str, at: int, hexes: str) -> None:
    data = bytearray((bundle / name).read_bytes())
    new = bytes.fromhex(hexes)
    data[at : at + len(new)] = new
    (bundle / name).write_bytes(data)


def _flip(bundle: Path, name: str, at: int, bit: int) -> None:
    data = (bundle / name).read_bytes()
    _paste(bundle, name, at, bytes([data[at] ^ 1 << bit]).hex())


def _cut(bundle: Path, name: str, left: int) -> None:
    os.truncate(bundle / name, left)


def _grow(bundle: Path, name: str, more: int) -> None:
    with (bundle / name).open("ab") as file:
        file.write(bytes(more))


def _gone(bundle: Path, name: str) -> None:
    (bundle / name).unlink()


def _link(bundle: Path, name: str, target: str) -> None:
    _gone(bundle, name)
    (bundle / name).symlink_to(target)


def _fifo(bundle: Path, name: str) -> None:
    _gone(bundle, name)
    os.mkfifo(bundle / name)


def _folder(bundle: Path, name: str) -> None:
    _gone(bundle, name)
    (bundle / name).mkdir()


def _honest(bundle: Path) -> None:
    if not (bundle / MANIFEST).is_file():
        return
    try:
        manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
        for name, facts in manifest["files"].items():
            if (bundle / name).is_file():
                data = (bundle / name).read_bytes()
                facts.update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        pass  # a manifest that is none any more


_KINDS: dict[str, Any] = {
    "json": _json,
    "drop": lambda bundle, name, path: _json(bundle, name, path, None, drop=True),
    "many": _many,
    "header": _header,
    "number": _number,
    "flip": _flip,
    "cut": _cut,
    "grow": _grow,
    "paste": _paste,
    "link": _link,
    "fifo": _fifo,
    "folder": _folder,
    "gone": _gone,
    "honest": _honest,
}


def random_damage(draw: np.random.Generator, bundle: Path) -> list[list[Any]]:
    """One to three mutations of a sound bundle. Most are honest about sizes and hashes, or none would get further."""
    kinds = ["json"] * 6 + ["drop"] * 2 + ["many"] + ["header"] * 3 + ["number"] * 4 + ["bytes"] * 3 + ["place"]
    made: list[list[Any]] = []
    for _ in range(draw.integers(1, 4)):
        kind = _pick(draw, kinds)
        name = str(draw.choice([MANIFEST, MANIFEST, TOKENIZER]))
        if kind in ("json", "drop"):
            path = _random_path(draw, json.loads((bundle / name).read_text(encoding="utf-8")))
            made.append([kind, name, path, *([_pick(draw, _VALUES)] if kind == "json" else [])])
        elif kind == "many":
            count = _pick(draw, [1, 1000, 1000, 50_000, 101_000])
            made.append(["many", MANIFEST, _pick(draw, _CONTAINERS), count, _pick(draw, _VALUES)])
        elif kind == "header":
            made.append(_random_header(draw, bundle))
        elif kind == "number":
            header, _ = _tensors(bundle)
            tensor = _pick(draw, sorted(header.keys() - {"__metadata__"}))
            count = int(np.prod(header[tensor]["shape"]))
            value = _pick(draw, [-1, 0, 1, 5, VOCAB_SIZE, 2**31 - 1, -(2**31), 2**62, "nan", "inf", "-inf"])
            if isinstance(value, str) and header[tensor]["dtype"].startswith("I"):
                value = -(2**31)
            made.append(["number", tensor, int(draw.integers(count)), value])
        elif kind == "bytes":
            made.append(_random_bytes(draw, bundle, str(draw.choice([MANIFEST, DRAFT, DRAFT, TOKENIZER, GRAPH]))))
        else:
            name = str(draw.choice([MANIFEST, DRAFT, TOKENIZER, GRAPH]))
            how = _pick(draw, _PLACES)
            target = _pick(draw, ["/dev/zero", name, ".", "nowhere", "../outside", GRAPH])
            made.append([how, name, *([target] if how == "link" else [])])
    made.sort(key=lambda mutation: mutation[0] in _PLACES)  # nothing is read from what is no file any more
    return [*made, ["honest"]] if draw.random() < 0.85 else made


def _random_path(draw: np.random.Generator, data: Any) -> list[Any]:
    """A path that ends anywhere, in depth too, sometimes at a name that is not there."""
    path: list[Any] = []
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(min(len(data), 4)))
        if not keys or (isinstance(data, dict) and draw.random() < 0.03):
            name = _pick(draw, ["extra", "extra", "x" * 255, "x" * 1_000_000, "\x1b[2J"])
            return [*path, name] if isinstance(data, dict) else path
        path.append(_pick(draw, keys))
        data = data[path[-1]]
        if not isinstance(data, (dict, list)) or not data or draw.random() < 0.2:
            return path


def _random_header(draw: np.random.Generator, bundle: Path) -> list[Any]:
    header, _ = _tensors(bundle)
    tensor = _pick(draw, sorted(header.keys() - {"__metadata__"}))
    field = _pick(draw, ["dtype", "shape", "shape", "data_offsets", "name", None])
    if field == "dtype":
        return ["header", tensor, field, _pick(draw, ["F16", "F32", "I32", "I64", "BF16", "U8", "BOOL", "F64", 5])]
    if field == "shape":
        shape = list(header[tensor]["shape"])
        changed = [
            shape[::-1], [1, *shape], [*shape, 1], shape[:-1], [], [0], [int(np.prod(shape))], [-1], [2**62, 4],
            ["x"], [1.5], [n // 2 for n in shape], [1] * 9,
        ]  # fmt: skip
        return ["header", tensor, field, _pick(draw, changed)]
    if field == "data_offsets":
        first, last = header[tensor][field]
        return ["header", tensor, field, _pick(draw, [[0, 0], [last, first], [first, last + 4], [first + 4, last + 4],
                                                      [-8, 8], [0, 2**64], [first], "x", [first, 2**31]])]  # fmt: skip
    return ["header", tensor, field, _pick(draw, ["gate", "calibration", "ngram_keys", "", "other", "parent.mix"])]


def _random_bytes(draw: np.random.Generator, bundle: Path, name: str) -> list[Any]:
    size = (bundle / name).stat().st_size
    at = int(draw.integers(size) if draw.random() < 0.6 else draw.integers(min(size, 200)))
    kind = _pick(draw, ["flip", "flip", "cut", "grow", "paste"])
    last = {
        "flip": [at, int(draw.integers(8))],
        "cut": [at],
        "grow": [int(draw.integers(1, 5000))],
        "paste": [at, draw.bytes(int(draw.integers(1, 9))).hex()],
    }
    return [kind, name, *last[kind]]


def _pick(draw: np.random.Generator, items: Sequence[Any]) -> Any:
    return items[int(draw.integers(len(items)))]
