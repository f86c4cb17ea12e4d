"""The project's C headers, read for comparison with what other languages declare by hand: functions and structures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
APP_HEADER = "native/streamfuse.h"
HEADERS = (
    APP_HEADER,
    "core/streamfuse_core.h",
    "core/streamfuse_low.h",
    "text/streamfuse_bundle.h",
    "kernels/engine/streamfuse_engine.h",
)
NUMBERS = {
    "int": "int4", "int32_t": "int4", "uint32_t": "int4", "int64_t": "int8", "uint64_t": "int8", "size_t": "int8",
    "uint8_t": "int1", "float": "float4", "double": "float8", "void": "void",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a caller must agree on: a number of so many bytes, "pointer", "void", a function, or a structure."""

    name: str
    count: int = 1  # of an array
    function: Function | None = None

    @property
    def size(self) -> int:
        return self.count * (int(self.name[-1]) if self.name[-1].isdigit() else 8)


@dataclass(frozen=True)
class Function:
    result: Kind
    arguments: tuple[Kind, ...]


def kind_of(declaration: str) -> Kind:
    """Of a parameter or a field, with or without its name."""
    if match := re.fullmatch(r"(.*?)\(\s*\*\s*\w*\s*\)\s*\((.*)\)", declaration.strip(), re.DOTALL):
        return Kind("pointer", function=Function(kind_of(match[1]), arguments_of(match[2])))
    if "*" in declaration:
        return Kind("pointer")
    words = re.sub(r"\bconst\b", "", declaration)
    array = re.search(r"\[(\d+)\]", words)
    name = re.match(r"\s*(\w+)", words)
    assert name, declaration
    return Kind(NUMBERS.get(name[1], name[1]), int(array[1]) if array else 1)


def split(text: str) -> list[str]:
    """At the commas that stand in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def arguments_of(text: str) -> tuple[Kind, ...]:
    return () if text.strip() in ("", "void") else tuple(kind_of(part) for part in split(text))


@lru_cache
def text_of_headers(*names: str) -> str:
    whole = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names or HEADERS)
    without = re.sub(r"/\*.*?\*/", " ", whole, flags=re.DOTALL)
    return re.sub(r"^\s*#.*$", "", without, flags=re.MULTILINE)


def functions(*names: str) -> dict[str, Function]:
    """Those that the headers export, by name; of all headers, or of some."""
    found = {}
    for match in re.finditer(r"SF_EXPORT\s+([^;]*?)\b(sf_\w+)\s*\(([^;]*)\)\s*;", text_of_headers(*names)):
        found[match[2]] = Function(kind_of(match[1]), arguments_of(match[3]))
    return found


def structures() -> dict[str, dict[str, Kind]]:
    """Those that the headers lay out: their fields in order."""
    found: dict[str, dict[str, Kind]] = {}
    for match in re.finditer(r"typedef struct (sf_\w+) \{(.*?)\} \1;", text_of_headers(), re.DOTALL):
        fields = found.setdefault(match[1], {})
        for line in match[2].split(";"):
            if not line.strip():
                continue
            if pointer := re.search(r"\(\s*\*\s*(\w+)\s*\)", line):
                fields[pointer[1]] = kind_of(line)
                continue
            first, *more = split(line)
            kind = kind_of(first)
            for part in (first, *more):
                name = re.search(r"(\w+)\s*(\[\d+\])?\s*$", part)
                assert name, line
                fields[name[1]] = kind
    return found


def layout(fields: dict[str, Kind]) -> tuple[dict[str, tuple[int, int]], int]:
    """(offset, bytes) of each field as C lays them out, and the size of all."""
    places, at, widest = {}, 0, 1
    for name, kind in fields.items():
        if kind.name in structures():
            nested = layout(structures()[kind.name])[1]
            size, align = nested, 8
        else:
            size, align = kind.size, kind.size // kind.count
        at = -(-at // align) * align
        places[name] = (at, size)
        at += size
        widest = max(widest, align)
    return places, -(-at // widest) * widest
