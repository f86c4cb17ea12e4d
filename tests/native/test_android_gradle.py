"""What the Gradle files name is there and agrees with the Maven build, as far as reading tells: Gradle's plugins for
Android cannot be had where the tests run.

Run: python -m pytest tests/native/test_android_gradle.py
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "android_demo"
GRADLE = sorted(DEMO.rglob("*.gradle.kts"))
_SECTION = re.compile(r"^\[(\w+)\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^([\w-]+) = (.+)$", re.MULTILINE)


def catalog() -> dict[str, dict[str, str]]:
    """Sections of gradle/libs.versions.toml: alias to the rest of its line. Python 3.10 has no reader of TOML."""
    text = (DEMO / "gradle" / "libs.versions.toml").read_text(encoding="utf-8")
    return {name: dict(_ENTRY.findall(body)) for name, body in _SECTION.findall(text)}


def properties() -> dict[str, str]:
    root = ElementTree.parse(DEMO / "pom.xml").getroot()
    space = "{http://maven.apache.org/POM/4.0.0}"
    found = {entry.tag.removeprefix(space): entry.text or "" for entry in root.findall(f"{space}properties/*")}
    return found | {"version": root.findtext(f"{space}version") or ""}


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("commonmark", "commonmark.version"),
        ("coroutines", "coroutines.version"),
        ("junit", "junit4.version"),
        ("kotlin", "kotlin.version"),
        ("streamfuse", "version"),
    ],
)
def test_both_builds_have_the_same_versions(alias: str, name: str) -> None:
    assert catalog()["versions"][alias].strip('"') == properties()[name]


def test_every_alias_is_declared_and_used() -> None:
    declared = {f"libs.{alias.replace('-', '.')}" for alias in catalog()["libraries"]}
    declared |= {
        f"libs.{kind}.{alias.replace('-', '.')}" for kind in ("plugins", "versions") for alias in catalog()[kind]
    }
    text = "\n".join(path.read_text(encoding="utf-8") for path in GRADLE)
    used = {name.removesuffix(".get") for name in re.findall(r"\blibs\.[\w.]+\w", text)}
    used = {re.sub(r"\.get\.toInt$|\.get$", "", name) for name in used}
    references = {f"libs.versions.{name}" for name in re.findall(r'version\.ref = "([\w-]+)"', str(catalog()))}
    assert used <= declared
    assert declared - used - references == set()
    assert references <= declared


def test_every_module_and_folder_that_gradle_names_is_there() -> None:
    settings = (DEMO / "settings.gradle.kts").read_text(encoding="utf-8")
    modules = re.findall(r'"(:[\w:]+)"', settings)
    assert modules
    for module in modules:
        assert (DEMO / module[1:].replace(":", "/") / "build.gradle.kts").is_file()
        assert (DEMO / module[1:].replace(":", "/") / "src" / "main" / "AndroidManifest.xml").is_file()
    assert (DEMO / "tools" / "aar").is_file()


def test_androids_plugin_compiles_kotlin_and_the_store_takes_the_target() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in GRADLE)
    assert 'kotlin("android")' not in text  # AGP 9 refuses it
    assert "org.jetbrains.kotlin.android" not in str(catalog())
    versions = catalog()["versions"]
    assert int(versions["agp"].strip('"').split(".")[0]) >= 9
    assert int(versions["targetSdk"].strip('"')) >= 36
    assert "allWarningsAsErrors" not in text


def test_gradle_runs_the_tests_for_a_device_and_their_names_suit_the_oldest_one() -> None:
    text = (DEMO / "app" / "build.gradle.kts").read_text(encoding="utf-8")
    assert "testInstrumentationRunner" in text
    sources = list((DEMO / "app" / "src" / "androidTest").rglob("*.kt"))
    assert sources
    for source in sources:
        tests = re.findall(r"@Test fun (.+?)\(", source.read_text(encoding="utf-8"))
        assert tests
        assert not [name for name in tests if not name.isidentifier()], "names with spaces need Android 11"


def test_the_wrapper_names_its_distribution_by_its_hash() -> None:
    text = (DEMO / "gradle" / "wrapper" / "gradle-wrapper.properties").read_text(encoding="utf-8")
    assert re.search(r"^distributionSha256Sum=[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.search(
        r"^distributionUrl=https\\://services\.gradle\.org/distributions/gradle-9[\d.]+-bin\.zip$", text, re.MULTILINE
    )
