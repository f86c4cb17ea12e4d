"""Symbols that no library of macOS defines are found in what Zig links, which leaves C++ symbols undefined."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from streamfuse.native.apple import CXX_LIBRARY, unlinked_symbols
from streamfuse.native.command import BuildError

UNDEFINED, DEFINED = 0x01, 0x0F
ANY_LIBRARY, FIRST_LIBRARY = 0 << 8, 1 << 8


def mach_o(symbols: list[tuple[str, int, int]]) -> bytes:
    """An arm64 library with a symbol table alone: of each symbol its name, type and description."""
    strings, entries = b"\0", b""
    for name, kind, description in symbols:
        entries += struct.pack("<IBBHQ", len(strings), kind, 0, description, 0)
        strings += name.encode() + b"\0"
    header = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 2, 16 + 24, 0, 0)
    other = struct.pack("<4I", 0x1B, 16, 0, 0)
    table = struct.pack("<6I", 2, 24, 32 + 16 + 24, len(symbols), 32 + 16 + 24 + len(entries), len(strings))
    return header + other + table + entries + strings


def test_undefined_symbols_of_no_library_are_found(tmp_path: Path) -> None:
    file = tmp_path / "library.dylib"
    lost = ["_sf_lost", "__ZN10streamfuse4Tree4sizeEv", "__ZTIN10streamfuse5ErrorE"]
    cxx = ["___cxa_throw", "__Znwm", "__ZNSt3__112basic_string", "__ZTVN10__cxxabiv120__si_class_type_infoE", "__ZTIi"]
    symbols = [(name, UNDEFINED, ANY_LIBRARY) for name in lost + cxx]
    file.write_bytes(mach_o([*symbols, ("_open", UNDEFINED, FIRST_LIBRARY), ("_sf_plan", DEFINED, 0)]))
    assert unlinked_symbols(file) == lost + cxx
    assert [name for name in lost + cxx if not CXX_LIBRARY.match(name)] == lost


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(BuildError, match=r"library\.so is not a Mach-O file for arm64"):
        unlinked_symbols(file)
