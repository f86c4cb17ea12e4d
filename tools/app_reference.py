"""The pages of the site that list what an app uses of the Kotlin and the Swift library, read from their sources.

tree-sitter parses both languages, so the site needs neither a JDK nor a Swift toolchain. A page has every public
declaration with its comment: types are sections, their members follow.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter_kotlin
import tree_sitter_swift
from tree_sitter import Language, Node, Parser

ROOT = Path(__file__).parents[1]
KOTLIN = ROOT / "android_demo" / "streamfuse" / "src" / "main" / "kotlin"
SWIFT = ROOT / "ios_demo" / "StreamFuse" / "Sources"


@dataclass(frozen=True, slots=True)
class Syntax:
    """What differs between the languages: names of nodes of their grammars."""

    name: str
    language: Language
    types: frozenset[str]  # declarations with members
    members: frozenset[str]
    properties: frozenset[str]  # whose signature ends before `=`
    bodies: frozenset[str]  # what a signature ends before
    comment: str
    public_inside: frozenset[str]  # without a modifier as public as the type that they are in
    identifiers: frozenset[str]  # what names a declaration


KOTLIN_SYNTAX = Syntax(
    "kotlin",
    Language(tree_sitter_kotlin.language()),
    types=frozenset({"class_declaration", "object_declaration", "companion_object"}),
    members=frozenset({"function_declaration", "property_declaration", "secondary_constructor", "enum_entry"}),
    properties=frozenset({"property_declaration"}),
    bodies=frozenset({"class_body", "enum_class_body", "function_body", "property_delegate", "getter", "setter"}),
    comment="block_comment",
    public_inside=frozenset({"enum_entry"}),
    identifiers=frozenset({"identifier"}),
)
SWIFT_SYNTAX = Syntax(
    "swift",
    Language(tree_sitter_swift.language()),
    types=frozenset({"class_declaration", "protocol_declaration"}),
    members=frozenset({
        "function_declaration", "property_declaration", "init_declaration", "subscript_declaration", "enum_entry",
        "typealias_declaration", "protocol_function_declaration", "protocol_property_declaration",
    }),
    properties=frozenset({"property_declaration"}),
    bodies=frozenset({
        "class_body", "enum_class_body", "protocol_body", "function_body", "computed_property", "willset_didset_block",
    }),
    comment="comment",
    public_inside=frozenset({"enum_entry", "protocol_function_declaration", "protocol_property_declaration"}),
    identifiers=frozenset({"simple_identifier", "type_identifier"}),
)  # fmt: skip


@dataclass(slots=True)
class Declaration:
    """A public declaration. `members`: of a type or an extension, in the order of the sources."""

    name: str
    signature: str
    about: str
    is_type: bool = False
    is_extension: bool = False
    members: list[Declaration] = field(default_factory=list)


def kotlin() -> str:
    """The page of the Kotlin library, as Markdown."""
    guide = "What an app uses of `dev.streamfuse`. [android.md](../android.md) is the guide."
    return _page("Kotlin API", guide, KOTLIN_SYNTAX, sorted(KOTLIN.rglob("*.kt")))


def swift() -> str:
    """The page of the Swift package, as Markdown."""
    guide = "What an app uses of the module `StreamFuse`. [ios.md](../ios.md) is the guide."
    return _page("Swift API", guide, SWIFT_SYNTAX, sorted(SWIFT.rglob("*.swift")))


def _page(title: str, guide: str, syntax: Syntax, files: list[Path]) -> str:
    parts = [f"# {title}", guide]
    for one in declarations(syntax, files):
        parts += [f"## {one.name}", *_entry(syntax, one)]
        named = {one.name}
        for member in one.members:
            if member.name not in named:  # else another form of one above
                parts.append(f"### {one.name}.{member.name}")
                named.add(member.name)
            parts += _entry(syntax, member)
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(syntax: Syntax, one: Declaration) -> list[str]:
    return [f"```{syntax.name}\n{one.signature}\n```", one.about]


def declarations(syntax: Syntax, files: list[Path]) -> list[Declaration]:
    """The public ones of all files, by name. Members of an extension are with those of its type."""
    found: list[Declaration] = []
    for file in files:
        source = file.read_bytes()
        if syntax is KOTLIN_SYNTAX:  # as an identifier the grammar does not know it; the text is taken from `source`
            tree = Parser(syntax.language).parse(re.sub(rb"\bopen\b(?! (?:class|fun|val|var))", b"oPEN", source))
        else:
            tree = Parser(syntax.language).parse(source)
        found += _Reader(syntax, source).inside(tree.root_node, is_public=False, prefix="")
    types: dict[str, Declaration] = {}
    for one in sorted(found, key=lambda one: one.is_extension):
        known = types.setdefault(one.name, one)
        if known is not one and one.is_extension:
            known.members += one.members
        elif known is not one:  # a function with several forms
            known.members.append(one)
    return sorted(
        (one for one in types.values() if one.members or not one.is_extension), key=lambda one: one.name.casefold()
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the declarations of one file."""

    syntax: Syntax
    source: bytes

    def inside(self, parent: Node, is_public: bool, prefix: str) -> Iterator[Declaration]:
        """Those among the children of a node; types in types come as declarations of their own."""
        comments: list[Node] = []
        for node in parent.children:
            if node.type == self.syntax.comment:
                comments.append(node)
                continue
            if node.type in self.syntax.types | self.syntax.members:
                yield from self._of(node, self._about(comments), is_public, prefix)
            comments = []

    def _of(self, node: Node, about: str, is_public: bool, prefix: str) -> Iterator[Declaration]:
        modifiers = next((child.text or b"" for child in node.children if child.type == "modifiers"), b"").decode()
        words = set(re.sub(r"@\w+(?:\([^)]*\))?", "", modifiers).split())
        is_extension = any(child.type == "extension" for child in node.children)
        is_hidden = words & {"private", "internal", "protected", "fileprivate", "package"}
        inherits = node.type in self.syntax.public_inside or "override" in words
        is_shown = not is_hidden and ("public" in words or "open" in words or (is_public and inherits))
        if not is_shown and not is_extension:
            return
        if node.type not in self.syntax.types:
            yield Declaration(prefix + self._name(node), self._signature(node), about)
            return
        name = prefix + self._name(node)
        if node.type == "companion_object":  # its members are used like those of the class
            name = prefix.rstrip(".")
            is_extension = True
        one = Declaration(name, self._signature(node), about, is_type=True, is_extension=is_extension)
        for body in (child for child in node.children if child.type.endswith("_body")):
            for inner in self.inside(body, is_public=not is_extension or "public" in words, prefix=f"{name}."):
                if inner.is_type:
                    yield inner
                else:
                    inner.name = inner.name.removeprefix(f"{name}.")
                    one.members.append(inner)
        yield one

    def _name(self, node: Node) -> str:
        if node.type in ("init_declaration", "secondary_constructor"):
            return "init"
        if node.type == "subscript_declaration":
            return "subscript"
        if node.type == "enum_entry":
            return ", ".join(self._text(child) for child in node.children if child.type in self.syntax.identifiers)
        for child in node.children:
            if child.type in self.syntax.identifiers:
                return self._text(child)
            if child.type in ("variable_declaration", "pattern", "user_type"):
                return re.split(r"[:<\s]", self._text(child).removeprefix("var ").removeprefix("let "))[0]
        return ""

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode()

    def _signature(self, node: Node) -> str:
        """The declaration without annotations, body and what callers do not see."""
        end = node.end_byte
        for child in node.children:
            is_value = child.type == "=" and node.type in self.syntax.properties
            if child.type in self.syntax.bodies or (
                is_value and b":" in self.source[node.start_byte : child.start_byte]
            ):
                end = child.start_byte
                break
        skipped = [(one.start_byte, one.end_byte) for one in _hidden(node) if one.start_byte < end]
        text, at = b"", node.start_byte
        for first, last in sorted(skipped):
            text += self.source[at:first]
            at = max(at, last)
        text += self.source[at:end]
        words = re.sub(r"\bpublic\s+", "", text.decode()).strip().removesuffix(",").strip()
        line, _, rest = re.sub(r"(?<=\S) +", " ", words).partition("\n")
        if fields := [re.sub(r"\bpublic\s+", "", self._text(one)) for one in _properties(node)]:
            return "\n".join([f"{line} {{", *(f"    {one}" for one in fields), "}"])
        return f"{line}\n{textwrap.dedent(rest)}".strip() if rest else line

    def _about(self, comments: list[Node]) -> str:
        """The comment before a declaration, as Markdown."""
        if self.syntax is KOTLIN_SYNTAX:
            return _kdoc(self._text(comments[-1])) if comments and self._text(comments[-1]).startswith("/**") else ""
        lines = [self._text(one) for one in comments]
        return _swift_comment([line[3:].removeprefix(" ") for line in lines if line.startswith("///")])


def _hidden(node: Node) -> Iterator[Node]:
    """Parts of a declaration that are left out: annotations, constructors that are not public, arguments of a base."""
    for child in node.children:
        if child.type == "modifiers":
            yield from (one for one in child.children if one.type in ("annotation", "attribute"))
        elif child.type == "primary_constructor" and re.match(rb"\s*(?:internal|private)\b", child.text or b""):
            yield child
        elif child.type == "delegation_specifiers":
            yield from _arguments(child)


def _properties(node: Node) -> Iterator[Node]:
    """The public properties that a constructor declares which callers do not see."""
    for constructor in (
        one for one in node.children if one.type == "primary_constructor" and one in set(_hidden(node))
    ):
        for parameters in constructor.children:
            for one in parameters.children:
                if re.match(rb"(?:public )?(?:val|var) ", one.text or b""):
                    yield one


def _arguments(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type == "value_arguments":
            yield child
        else:
            yield from _arguments(child)


_TAG = re.compile(r"^@(\w+) ?", re.MULTILINE)
_TAGS = {"property": "", "param": "", "throws": "throws ", "return": "returns: ", "see": "see "}


def _kdoc(comment: str) -> str:
    """A KDoc comment as Markdown: links as code, tags as a list."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment[3:-2].strip().splitlines()]
    text = re.sub(r"\[([\w.]+)\](?!\()", r"`\1`", "\n".join(lines))
    about, *tags = _TAG.split(text)
    items = []
    for tag, words in zip(tags[::2], tags[1::2], strict=True):
        body = " ".join(words.split())
        if tag in ("property", "param", "throws"):
            name, _, rest = body.partition(" ")
            body = f"`{name}`: {rest}"
        items.append(f"* {_TAGS.get(tag, '')}{body}")
    return "\n\n".join(filter(None, [about.strip(), "\n".join(items)]))


def _swift_comment(lines: list[str]) -> str:
    """A documentation comment as Markdown: lists after an empty line and indented as Markdown wants them."""
    text = ""
    for line in lines:
        is_item = re.match(r"\s*- ", line)
        if is_item and text and not re.search(r"(?:^|\n)\s*- [^\n]*(?:\n\s+[^\n]*)*\n$", text):
            text += "\n"
        text += re.sub(r"^( +)(?=- )", lambda match: match[1] * 2, line) + "\n"
    return text.strip()
