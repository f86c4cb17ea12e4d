"""The same nouns, options and statistics in C, Kotlin, Swift and Python.

Run: python -m pytest tests/docs/test_same_names.py
"""

from __future__ import annotations

import re
from dataclasses import fields

from pages import ROOT

import streamfuse.api
import streamfuse.runtime.session
from streamfuse.api import GenerationOptions, Statistics

KOTLIN = ROOT / "android_demo" / "streamfuse" / "src" / "main"
SWIFT = ROOT / "ios_demo" / "StreamFuse" / "Sources" / "StreamFuseCore"
OF_CHAT = ("tools", "template_variables", "documents")  # which an app gives to a whole chat
OF_BENCHMARKS = ("sources",)
HEADER = ROOT / "native" / "streamfuse.h"


def sources(suffix: str) -> str:
    folder = KOTLIN if suffix == ".kt" else SWIFT
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob(f"*{suffix}")))


def test_every_noun_of_the_table_is_there_in_its_language() -> None:
    page = (ROOT / "docs" / "core.md").read_text(encoding="utf-8")
    table = re.search(r"\| noun \| C \| Kotlin, Swift \| Python \|\n\| --- .*\n((?:\|.*\n)+)", page)
    assert table is not None
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row.split("|")[2:-1]] for row in table[1].splitlines()]
    assert len(rows) >= 5
    header, kotlin, swift = HEADER.read_text(encoding="utf-8"), sources(".kt"), sources(".swift")
    for c, apps, python in rows:
        assert len(c) >= 1
        assert len(apps) == len(python) == 1
        assert [name for name in c if not re.search(rf"\b{name}\b", header)] == []
        assert re.search(rf"^public [a-z ]*(?:class|interface) {apps[0]}\b", kotlin, re.MULTILINE), apps
        assert re.search(rf"^public [a-z ]*(?:class|struct|actor) {apps[0]}\b", swift, re.MULTILINE), apps
        assert hasattr(streamfuse.api, python[0]) or hasattr(streamfuse.runtime.session, python[0])


def keys(class_: str) -> list[str]:
    """The names in JSON of a Kotlin class's properties."""
    found = re.search(rf"public data class {class_}\((.*?)^\)", sources(".kt"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return [serial or name for serial, name in re.findall(r'(?:@SerialName\("(\w+)"\) )?val (\w+):', found[1])]


def property_of(key: str) -> str:
    """A key as a Swift property."""
    first, *rest = key.replace("token_per_sec", "tokens_per_second").split("_")
    return first + "".join(word.capitalize() for word in rest)


def test_options_are_the_same_in_every_language() -> None:
    names = [name for name in GenerationOptions.__annotations__ if name not in (*OF_CHAT, *OF_BENCHMARKS)]
    assert keys("GenerationConfig") == names
    swift = (SWIFT / "GenerationConfig.swift").read_text(encoding="utf-8")
    found = re.findall(r"^  public var (\w+): [^{\n]*$", swift, re.MULTILINE)
    spelt = {"speculative": "enableSpeculativeDecoding", "stop_token_ids": "stopTokenIDs", "ignore_eos": "ignoreEOS"}
    assert found == [spelt.get(name, property_of(name)) for name in names]


def test_statistics_are_the_same_in_every_language() -> None:
    names = [field.name for field in fields(Statistics)]
    assert keys("Statistics") == names
    swift = (SWIFT / "Statistics.swift").read_text(encoding="utf-8").partition("struct Statistics")[2]
    assert re.findall(r"^  public let (\w+):", swift, re.MULTILINE) == [property_of(name) for name in names]
