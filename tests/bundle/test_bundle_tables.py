"""The drafting tables of a bundle: what the safetensors package wrote comes back, and damage is named in one sentence.

Run: python -m pytest tests/bundle/test_bundle_tables.py
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_damages import TABLE_DAMAGES, entry
from bundle_samples import list_file, write_bundle
from safetensors.numpy import save

from streamfuse.bundle import BundleError, open_bundle
from streamfuse.runtime.tables import AnyArray

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(3, 2),
    "single": np.array([[0.5, -1.5]], np.float32),
    "int": np.array([7, -7], np.int32),
    "long": np.array([2**40, -1, 3]),
    "none": np.zeros((5, 0), np.float16),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (text as it stands, anything else as JSON, padded) and these data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tables_of(bundle: Path, content: bytes) -> dict[str, AnyArray]:
    """What a bundle with this file gives."""
    list_file(bundle, "draft.safetensors", content)
    tables = open_bundle(bundle, verify=False).tables
    assert tables is not None
    return tables


def failure(bundle: Path, content: bytes) -> str:
    with pytest.raises(BundleError, match=r"draft\.safetensors: ") as caught:
        tables_of(bundle, content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("metadata", [None, {"by": "a test"}])
def test_what_the_package_wrote_comes_back(bundle: Path, metadata: dict[str, str] | None) -> None:
    found = tables_of(bundle, save(ARRAYS, metadata))
    gc.collect()  # the arrays keep the file mapped
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert not found[name].flags.writeable
        assert found[name].flags.aligned
    assert tables_of(bundle, file_of({})) == {}


def test_a_bundle_without_the_file_has_no_tables(bundle: Path) -> None:
    assert open_bundle(bundle).tables is None


def test_three_dimensions_are_refused_by_name(bundle: Path) -> None:
    assert "'a' has 3 dimensions" in failure(bundle, save({"a": np.zeros((1, 2, 3), np.float32)}))


def test_a_file_cut_short_or_grown_is_refused(bundle: Path) -> None:
    whole = save(ARRAYS)
    for length in range(0, len(whole), 3):
        failure(bundle, whole[:length])
    assert "1 bytes at the end" in failure(bundle, whole + b"\0")


def test_a_flipped_bit_of_the_header_is_refused_or_harmless(bundle: Path) -> None:
    """Harmless: another name, two names exchanged, other sizes of the same product. Nothing reaches beyond the data."""
    whole, refused, tried = save(ARRAYS), 0, 0
    end = 8 + int.from_bytes(whole[:8], "little")
    for bit in range(0, 8 * end, 5):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        tried += 1
        try:
            found = tables_of(bundle, bytes(damaged))
        except BundleError:
            refused += 1
        else:
            assert sum(array.nbytes for array in found.values()) == len(whole) - end
    assert refused > tried / 2


@pytest.mark.parametrize("length", [0, 1, 3, 10**6 + 1, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_that_cannot_be_is_refused(bundle: Path, length: int) -> None:
    assert "header" in failure(bundle, file_of({"a": entry()}, bytes(8), length))


def test_a_header_above_a_megabyte_is_refused(bundle: Path) -> None:
    assert "header" in failure(bundle, file_of(b"{}" + b" " * 10**6))


@pytest.mark.parametrize(("header", "words"), TABLE_DAMAGES)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(bundle: Path, header: Any, words: str) -> None:
    refused = failure(bundle, file_of(header, bytes(16)))
    assert words in refused or "header is damaged" in refused
