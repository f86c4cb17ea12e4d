"""The C border of text/: what it exports, null pointers, structures of other sizes, text that is none.

Run: python -m pytest tests/text/test_bundle_library_border.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest
from app_library import BUILT
from bundle_library import BAD_ARGUMENT, BAD_FILE, BROKEN, LIBRARY, OK, LibraryBundle, LibraryFailure, library
from bundle_samples import write_bundle
from c_headers import functions

from streamfuse.runtime.structures import BundleOptions


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


def exported(library: Path) -> set[str]:
    command = ["nm", "-gU"] if sys.platform == "darwin" else ["nm", "-D", "--defined-only"]
    listing = subprocess.run([*command, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].lstrip("_") for line in listing.splitlines()}


def test_the_library_exports_its_header_and_nothing_else() -> None:
    assert exported(LIBRARY) == {name for name in functions() if "bundle" in name or "text" in name}


@pytest.mark.skipif(not BUILT.is_file(), reason=f"{BUILT.name} is missing; run: make native-mobile")
def test_the_library_of_apps_exports_all_headers_and_nothing_else() -> None:
    names = exported(BUILT)
    assert {"sf_core_model_open", "sf_program_open", "sf_bundle_open", "sf_text_end"} <= names
    assert all(name.startswith("sf_") for name in names)


def test_null_pointers_and_wrong_sizes_are_errors(bundle: Path) -> None:
    lib, place, size, count, n = library(), c_void_p(), c_size_t(), c_int64(), c_int32()
    assert lib.sf_bundle_open(bytes(bundle), None, None) == BAD_ARGUMENT
    code, handle = opened_with(None)
    assert (code, lib.sf_bundle_error(handle)) == (BAD_ARGUMENT, b"the folder is a null pointer")
    lib.sf_bundle_close(handle)
    wrong_size = BundleOptions()
    wrong_size.size = 3
    for options, sentence in (
        (BundleOptions(public_key=b"\xff" * 64), b"the public key must be 64 hexadecimal digits"),
        (wrong_size, b"the options do not contain their size"),
    ):
        assert lib.sf_bundle_open(bytes(bundle), byref(options), byref(handle)) == BAD_ARGUMENT
        assert lib.sf_bundle_error(handle).startswith(sentence)
        lib.sf_bundle_close(handle)
    assert lib.sf_bundle_error(None)
    assert lib.sf_text_error(None)
    assert lib.sf_bundle_can_chat(None) == lib.sf_text_can_chat(None) == 0
    assert lib.sf_bundle_folder(None) == b""
    assert lib.sf_bundle_check_key(None)
    assert lib.sf_text_open(b"tokenizer.json", None, 0, None) == lib.sf_text_clone(None, None) == BAD_ARGUMENT
    for make in (
        lambda out: lib.sf_text_open(None, None, 0, out),
        lambda out: lib.sf_text_open(bytes(bundle / "tokenizer.json"), b"[", 1, out),
        lambda out: lib.sf_text_clone(None, out),
    ):
        assert make(byref(handle)) == BAD_ARGUMENT
        assert lib.sf_text_error(handle)
        lib.sf_free_text(handle)
    assert lib.sf_bundle_spec(None, None) == BAD_ARGUMENT
    lib.sf_bundle_close(None)
    lib.sf_free_text(None)
    assert lib.sf_text_end(None, 0, byref(place), byref(n)) == BAD_ARGUMENT
    with LibraryBundle(bundle) as opened:
        assert lib.sf_bundle_spec(opened.handle, None) == BAD_ARGUMENT
        spec = opened.spec()
        spec.size = 3
        assert lib.sf_bundle_spec(opened.handle, byref(spec)) == BAD_ARGUMENT
        spec.size, spec.capacity, spec.vocab_size = 16, 0, 0  # an older caller, who knows two fields
        assert lib.sf_bundle_spec(opened.handle, byref(spec)) == OK
        assert (spec.size, spec.capacity, spec.vocab_size) == (16, 64, 0)
        text = opened.text()
        for code in (
            lib.sf_text_encode(text.handle, None, 5, 0, byref(place), byref(count)),
            lib.sf_text_encode(text.handle, b"abc", 3, 0, None, byref(count)),
            lib.sf_text_decode(text.handle, None, 2, byref(place), byref(size)),
            lib.sf_text_decode(text.handle, None, -2, byref(place), byref(size)),
            lib.sf_text_ask(text.handle, b"abc", 3, None, None),
            lib.sf_text_encode_chat(text.handle, None, 5, byref(place), byref(count)),
            lib.sf_text_encode_chat(text.handle, b"[]", 2, None, None),
            lib.sf_text_render_cut(text.handle, b"[]", 2, None, None),
            lib.sf_text_push(text.handle, 1, None, byref(n)),
            lib.sf_text_end(text.handle, 0, byref(place), None),
            lib.sf_text_set_first(text.handle, None, 2, None, 0),
            lib.sf_text_begin(text.handle, None, 0, None, 2, None, 0),
            lib.sf_text_encode(text.handle, b"abc", 2**63, 0, byref(place), byref(count)),
        ):
            assert code == BAD_ARGUMENT
            assert lib.sf_text_error(text.handle)
        assert text.messages() == []
        assert lib.sf_text_encode(text.handle, None, 0, 0, byref(place), byref(count)) == OK
        assert count.value == 0
        for wrong in ([-1], [2**32], [2**63 - 1]):
            with pytest.raises(LibraryFailure, match="not a token id"):
                text.decode(wrong)


def opened_with(folder: bytes | None) -> tuple[int, c_void_p]:
    handle = c_void_p()
    return library().sf_bundle_open(folder, None, byref(handle)), handle


def test_a_bundle_that_did_not_open_makes_no_text(tmp_path: Path) -> None:
    code, handle = opened_with(bytes(tmp_path))
    assert code == BAD_FILE
    text = c_void_p()
    assert library().sf_new_text(handle, byref(text)) == BROKEN
    assert b"not open" in library().sf_text_error(text)
    assert library().sf_text_take_back(text) == BROKEN
    assert library().sf_bundle_can_chat(handle) == 0
    assert library().sf_bundle_graph(handle) == b""
    library().sf_free_text(text)
    library().sf_bundle_close(handle)


CALLS: list[Callable[[Any], Any]] = [
    lambda text: text.encode(b"\xff"),
    lambda text: text.render(b"\xff"),
    lambda text: text.render(b"{}"),
    lambda text: text.render([{"role": "user"}]),
    lambda text: text.render([{"role": "user", "content": 3}]),
    lambda text: text.render([{"role": "user", "content": None, "tool_calls": []}]),
    lambda text: text.set_first(messages=b"nonsense"),
    lambda text: text.begin(b"[1]"),
    lambda text: text.begin([""]),
    lambda text: text.begin(b"[" * 100_000),
    lambda text: text.push(1),
]


@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_taken_is_one_sentence(call: Callable[[Any], Any], bundle: Path) -> None:
    with LibraryBundle(bundle) as opened:
        text = opened.text()
        with pytest.raises(LibraryFailure) as failure:
            call(text)
        assert failure.value.code == BAD_ARGUMENT
        assert str(failure.value)
        assert "\n" not in str(failure.value)
        assert text.decode(text.encode("as before\0")) == "as before\0"


def test_texts_outlive_their_bundle(bundle: Path) -> None:
    opened = LibraryBundle(bundle)
    text = opened.text()
    opened.close()
    assert text.decode(text.encode("still here")) == "still here"
