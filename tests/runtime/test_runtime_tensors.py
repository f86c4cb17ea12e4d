"""The reader of safetensors files: what the safetensors package wrote comes back, and damage is named in one sentence.

Run: pytest tests/runtime/test_runtime_tensors.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_damages import TABLE_DAMAGES, entry
from safetensors.numpy import save, save_file

from streamfuse.runtime.tensors import map_tensors

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(3, 2),
    "single": np.array([[0.5, -1.5]], np.float32),
    "int": np.array([7, -7], np.int32),
    "long": np.array([2**40, -1, 3]),
    "none": np.zeros((5, 0), np.float16),
}


def write(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header (text as it stands, anything else as JSON, padded) and these data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "made.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def failure(path: Path) -> str:
    with pytest.raises(ValueError, match=r"made\.safetensors: ") as caught:
        map_tensors(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("metadata", [None, {"by": "a test"}])
def test_what_the_package_wrote_comes_back(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "good.safetensors"
    save_file(ARRAYS, path, metadata)
    found = map_tensors(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert not found[name].flags.writeable
        assert found[name].flags.aligned
    assert map_tensors(write(tmp_path, {})) == {}


def test_a_file_cut_short_or_grown_is_refused(tmp_path: Path) -> None:
    whole, path = save(ARRAYS), tmp_path / "made.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        failure(path)
    path.write_bytes(whole + b"\0")
    assert "1 bytes at the end" in failure(path)
    with pytest.raises(OSError, match="gone"):
        map_tensors(tmp_path / "gone.safetensors")


def test_a_flipped_bit_of_the_header_is_refused_or_harmless(tmp_path: Path) -> None:
    """Harmless: another name, two names exchanged, other sizes of the same product. Nothing reaches beyond the data."""
    whole, path = save(ARRAYS), tmp_path / "made.safetensors"
    refused = 0
    end = 8 + int.from_bytes(whole[:8], "little")
    for bit in range(8 * end):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = map_tensors(path)
        except ValueError:
            refused += 1
        else:
            assert sum(array.nbytes for array in found.values()) == len(whole) - end
    assert refused > 4 * end


@pytest.mark.parametrize("length", [0, 1, 3, 10**6 + 1, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_that_cannot_be_is_refused(tmp_path: Path, length: int) -> None:
    assert "header" in failure(write(tmp_path, {"a": entry()}, bytes(8), length))


def test_a_header_above_a_megabyte_is_refused(tmp_path: Path) -> None:
    assert "header" in failure(write(tmp_path, b"{}" + b" " * 10**6))


@pytest.mark.parametrize(
    ("header", "words"),
    TABLE_DAMAGES,
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(tmp_path: Path, header: Any, words: str) -> None:
    assert words in failure(write(tmp_path, header, bytes(16)))
