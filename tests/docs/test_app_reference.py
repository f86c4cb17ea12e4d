"""The site's pages of the Kotlin and the Swift library have every public name, with its signature and its comment.

Run: python -m pytest tests/docs/test_app_reference.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pages import ROOT

pytest.importorskip("tree_sitter_kotlin", reason="tree-sitter is not installed: pip install 'streamfuse[dev]'")
pytest.importorskip("tree_sitter_swift", reason="tree-sitter is not installed: pip install 'streamfuse[dev]'")
sys.path.insert(0, str(ROOT / "tools"))

import app_reference

_KINDS = {
    "kotlin": r"class|object|interface|fun(?: <[^>]*>)?|val|var",
    "swift": r"struct|class|enum|actor|protocol|func|let|var|typealias",
}
_PUBLIC = r"^ *public (?:[a-z]+ )*?(?:{}) (?:\w+\.)?`?(\w+)"


def names(page: str) -> set[str]:
    """The last words of the headings of types and members, and the fields of classes that cannot be constructed."""
    headings = re.findall(r"^##+ (.+)$", page, re.MULTILINE)
    fields = re.findall(r"\b(?:val|var) (\w+)", page)
    return {word for heading in headings for word in re.findall(r"\w+", heading)} | set(fields)


@pytest.mark.parametrize(
    ("language", "folder", "suffix"), [("kotlin", "KOTLIN", "kt"), ("swift", "SWIFT", "swift")], ids=["kotlin", "swift"]
)
def test_every_public_name_of_the_library_is_on_its_page(language: str, folder: str, suffix: str) -> None:
    public = {
        name
        for file in getattr(app_reference, folder).rglob(f"*.{suffix}")
        for name in re.findall(_PUBLIC.format(_KINDS[language]), file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(public) > 60
    assert public - names(getattr(app_reference, language)()) == set()


@pytest.mark.parametrize("language", ["kotlin", "swift"])
def test_what_is_not_public_is_left_out(language: str) -> None:
    page = getattr(app_reference, language)()
    assert not re.search(r"^(?:internal|private|fileprivate|package) ", page, re.MULTILINE)
    assert "NativeSession" not in names(page)


def declared(syntax: str, tmp_path: Path, source: str) -> dict[str, app_reference.Declaration]:
    file = tmp_path / "source"
    file.write_text(source, encoding="utf-8")
    return {one.name: one for one in app_reference.declarations(getattr(app_reference, syntax), [file])}


def test_a_kotlin_class_has_its_comment_its_public_members_and_its_types(tmp_path: Path) -> None:
    found = declared(
        "KOTLIN_SYNTAX",
        tmp_path,
        """
/**
 * A store of [Thing]s.
 *
 * @property size how many
 *   it has.
 */
@Serializable
public class Store internal constructor(public val size: Int, private val open: Int) : Base(size), Closeable {
    /** Adds one. */
    @JvmStatic
    public suspend fun add(thing: Thing = Thing()): Boolean = open(thing)
    internal fun hidden() = open
    override fun close() {}
    /** A kind. */
    public enum class Kind { /** The first. */ FIRST, SECOND }
    public companion object { /** How many at most. */ public val most: Int = 3 }
}
""",
    )
    assert found.keys() == {"Store", "Store.Kind"}
    store = found["Store"]
    assert store.signature == "class Store : Base, Closeable {\n    val size: Int\n}"
    assert store.about == "A store of `Thing`s.\n\n* `size`: how many it has."
    assert [one.signature for one in store.members] == [
        "suspend fun add(thing: Thing = Thing()): Boolean", "override fun close()", "val most: Int",
    ]  # fmt: skip
    assert [(one.name, one.about) for one in found["Store.Kind"].members] == [("FIRST", "The first."), ("SECOND", "")]


def test_a_swift_type_has_its_comment_and_the_members_of_its_extensions(tmp_path: Path) -> None:
    found = declared(
        "SWIFT_SYNTAX",
        tmp_path,
        """
extension Store {
  /// Adds one.
  /// - Parameters:
  ///   - thing: what is added.
  public func add(_ thing: Thing = .one) throws -> Bool { true }
  func hidden() {}
}

/// A store.
@MainActor public final class Store: Sendable {
  public let size: Int = 3
  public var most = 4
  public init(size: Int) { self.size = size }
  private var open: Int { 1 }
}

public protocol Source {
  /// The bytes.
  var bytes: Int { get }
}

public enum Kind: String { case object, other }
extension Unknown { func hidden() {} }
""",
    )
    assert found.keys() == {"Store", "Source", "Kind"}
    assert found["Store"].signature == "final class Store: Sendable"
    assert [one.signature for one in found["Store"].members] == [
        "let size: Int", "var most = 4", "init(size: Int)", "func add(_ thing: Thing = .one) throws -> Bool",
    ]  # fmt: skip
    assert found["Store"].members[-1].about == "Adds one.\n\n- Parameters:\n    - thing: what is added."
    assert [(one.name, one.about) for one in found["Source"].members] == [("bytes", "The bytes.")]
    assert [one.name for one in found["Kind"].members] == ["object, other"]
