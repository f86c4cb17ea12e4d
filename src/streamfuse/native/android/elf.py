"""What a shared library asks of the phone that loads it: reads the headers of 64-bit ELF files."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamfuse.native.command import BuildError

PAGE = 16384  # bytes; phones with pages of this size load no library whose segments are aligned to less
MACHINES = {"arm64-v8a": 183, "x86_64": 62}  # EM_AARCH64, EM_X86_64
_LOAD, _DYNAMIC, _DYNSYM = 1, 2, 11  # PT_LOAD, PT_DYNAMIC, SHT_DYNSYM
_NEEDED, _RPATH, _RUNPATH, _STRTAB = 1, 15, 29, 5  # tags of the dynamic section


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the file that the loader maps: its place in the file and in memory, in bytes, and its alignment."""

    offset: int
    address: int
    size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """`machine` is an EM_ number, `exported` the names of defined dynamic symbols, `search_path` RPATH or RUNPATH."""

    machine: int
    segments: tuple[Segment, ...]
    needed: tuple[str, ...]
    search_path: str
    exported: frozenset[str]


def read_library(path: Path) -> SharedLibrary:
    """Read the headers of `path`.

    Raises:
        BuildError: it is not a 64-bit little-endian ELF file.
    """
    data = path.read_bytes()
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise BuildError(f"{path} is not a 64-bit ELF library")
    machine = struct.unpack_from("<H", data, 18)[0]
    programs_at, sections_at = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    loads, dynamic = [], None
    for index in range(programs):
        kind, _, offset, address, _, size, _, alignment = struct.unpack_from(
            "<IIQQQQQQ", data, programs_at + index * program_size
        )
        if kind == _LOAD:
            loads.append(Segment(offset, address, size, alignment))
        elif kind == _DYNAMIC:
            dynamic = (offset, size)
    entries = list(_dynamic(data, *dynamic)) if dynamic else []
    strings = next((_file_offset(loads, value) for tag, value in entries if tag == _STRTAB), 0)
    return SharedLibrary(
        machine,
        tuple(loads),
        tuple(_text(data, strings + value) for tag, value in entries if tag == _NEEDED),
        next((_text(data, strings + value) for tag, value in entries if tag in (_RPATH, _RUNPATH)), ""),
        frozenset(_exported(data, sections_at, section_size, sections)),
    )


def check_pages(path: Path) -> None:
    """Refuse a library that phones with large pages cannot load.

    Raises:
        BuildError: the sentence names the file and the segment.
    """
    for segment in read_library(path).segments:
        if segment.alignment % PAGE or (segment.address - segment.offset) % PAGE:
            raise BuildError(
                f"{path} has a segment at {segment.address:#x} aligned to {segment.alignment} bytes, and phones with "
                f"pages of {PAGE} bytes do not load it: link with -Wl,-z,max-page-size={PAGE}"
            )


def check_library(path: Path, abi: str, *, exported: str, needed: Iterable[str]) -> None:
    """Refuse a library that phones of `abi` cannot load, or that shows or wants more than it should.

    `exported` is a regular expression for the names of its symbols; `needed` are the libraries that it may ask for.

    Raises:
        BuildError: the sentence names the file and what is wrong.
    """
    library = read_library(path)
    if library.machine != MACHINES[abi]:
        raise BuildError(f"{path} is for ELF machine {library.machine}, not {MACHINES[abi]} ({abi})")
    check_pages(path)
    stray = sorted(name for name in library.exported if not re.fullmatch(exported, name))
    if stray or not library.exported:
        raise BuildError(f"{path} exports {', '.join(stray[:5]) or 'nothing'}; a version script allows {exported} only")
    if missing := sorted(set(library.needed) - set(needed)):
        raise BuildError(f"{path} needs {', '.join(missing)}, which is neither in the archive nor part of the system")
    if library.search_path not in ("", "$ORIGIN"):
        raise BuildError(f"{path} looks for libraries in {library.search_path}, folders of this machine")


def _dynamic(data: bytes, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for at in range(offset, offset + size, 16):
        yield struct.unpack_from("<qQ", data, at)


def _file_offset(segments: Iterable[Segment], address: int) -> int:
    for segment in segments:
        if segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    return 0


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _exported(data: bytes, sections_at: int, section_size: int, sections: int) -> Iterator[str]:
    for index in range(sections):
        _, kind, _, _, offset, size, link, _, _, entry = struct.unpack_from(
            "<IIQQQQIIQQ", data, sections_at + index * section_size
        )
        if kind != _DYNSYM:
            continue
        strings = struct.unpack_from("<Q", data, sections_at + link * section_size + 24)[0]
        for at in range(offset, offset + size, entry):
            name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
            if section and info >> 4 in (1, 2):  # defined, and global or weak
                yield _text(data, strings + name)
