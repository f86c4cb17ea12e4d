"""The files of a checkpoint's weights and their headers: names, dtypes and shapes, without the data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from streamfuse.digest import sha256_of

from .fields import CheckpointError, read_object

_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_QUANTIZED = ("qweight", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_packed", "SCB", "absmax")
TAKE_UNQUANTIZED = "take the float16 or bfloat16 checkpoint that they were made from, or a GGUF of it"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a file; `dtype` by its safetensors name."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


def shards(folder: Path) -> list[Path]:
    """The expected files of a checkpoint's weights, whether they exist or not: `model.safetensors`, else the files in
    the index, as in transformers.

    Raises:
        CheckpointError: the index is damaged.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    try:
        names = sorted(set(read_object(index)["weight_map"].values()))
        return [folder / Path(name).name for name in names]
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{index}: not a safetensors index: its field 'weight_map' must give each tensor's file; copy or download "
            "it again"
        ) from None


def checkpoint_digest(folder: Path) -> str:
    """A short digest of a checkpoint's configuration and weights, the same in a copy of the folder. A process reads
    unchanged files only once.

    Raises:
        CheckpointError: the index is damaged.
    """
    files = [path.absolute() for path in (folder / "config.json", *shards(folder)) if path.is_file()]
    return _digest_of(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@cache
def _digest_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Of files by path, size and time of change."""
    return sha256_of(path for path, _, _ in files)[:16]


def read_header(path: Path) -> dict[str, TensorFacts]:
    """The tensors of a safetensors file, by name.

    Raises:
        CheckpointError: it is not such a file, or its size does not match its header, as after an incomplete download.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or header_bytes > size - 8:
                hint = lfs_hint(header_bytes.to_bytes(8, "little")) or "; copy or download it again"
                raise CheckpointError(f"{path}: not a safetensors file, or truncated{hint}")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        found = {name: TensorFacts(path, str(e["dtype"]), tuple(e["shape"])) for name, e in entries.items()}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing, but the index of the weights names it; copy or download it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a safetensors file ({error}); copy or download it again") from None
    if size != 8 + header_bytes + end:
        raise CheckpointError(
            f"{path}: damaged or truncated: it has {size} bytes, and its header says {8 + header_bytes + end}; "
            "copy or download it again"
        )
    return found


def lfs_hint(start: bytes) -> str:
    """What to do if a file that begins with these 8 bytes or more is a pointer of Git LFS; else empty."""
    return "; it is a Git LFS pointer: run `git lfs pull` in its repository to get the file" * (
        start[:8] == b"version "
    )


def check_types(tensors: Mapping[str, TensorFacts]) -> None:
    """CheckpointError if a weight is not a floating-point number: integers are quantized weights."""
    for name, facts in tensors.items():
        if name.endswith((".weight", ".bias")) and facts.dtype not in _FLOATS:
            raise CheckpointError(
                f"{facts.path}: tensor {name!r} has the dtype {facts.dtype}, which is not supported "
                f"({', '.join(_FLOATS)} are); if the weights are quantized, {TAKE_UNQUANTIZED}"
            )


def misfit(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why tensors of these shapes do not match a model, in a few words; None if they do."""
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    problems = [
        f"{what} {_listed(names)}" for what, names in (("missing:", missing), ("unexpected:", unknown)) if names
    ]
    if not problems:
        wrong = [name for name in wanted if tuple(found[name]) != tuple(wanted[name])]
        problems = [f"{name} is {list(found[name])}, not {list(wanted[name])}" for name in wrong[:1]]
    if not problems:
        return None
    quantized = any(name.rpartition(".")[2] in _QUANTIZED for name in unknown)
    return "; ".join(problems) + (f"; the weights are quantized: {TAKE_UNQUANTIZED}" if quantized else "")


def _listed(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first
