"""The C++ code has no comma operator outside the header of a loop: what it would join are statements of their own.

GCC has no warning for them, and the one of newer Clangs (-Wcomma) leaves out calls of void functions.

Run: pytest tests/native/test_comma_operator.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

FOLDERS = ("core", "kernels", "native", "android_demo/streamfuse/src/main/cpp", "ios_demo/StreamFuse/Sources", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".h"))

# Comments and the preprocessor's lines; texts, in which commas are no operators; lists of template arguments.
UNREAD = re.compile(
    r"""//[^\n]*|/\*.*?\*/|^[ ]*\#(?:\\\n|[^\n])*|(?P<text>R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
ARGUMENTS = re.compile(r"<[^<>;(){}]*>")
# How expressions begin: in declarations a name follows a type.
EXPRESSION = re.compile(
    r"\s*(?:(?:(?:if|for|while|switch)\s*(?:constexpr\s*)?\(\)|else|do|case [\w:]+:|default:)\s*)*"
    r"(?:(?:return|throw)\b|\(\)|\+\+|--|[\w.:()\[\]*>-]+?(?:\)\s*,|\s*(?:[-+*/%|&^]?=|<<|\+\+|--)))"
)


def comma_operators(source: str) -> Iterator[str]:
    """Statements with one, without what stands in their brackets."""
    code = UNREAD.sub(lambda found: "0" if found["text"] else " ", source)
    for _ in range(4):  # lists in lists
        code = ARGUMENTS.sub("", code)
    open_ = ["{"]  # for each open bracket, that bracket and the statement in it so far
    for letter in code:
        if letter in "({[":
            open_.append(letter)
        elif letter in ")}]":
            bracket = open_.pop()[0]
            if letter != "}":
                open_[-1] += bracket + letter
            elif open_[-1][0] == "{":
                open_[-1] = "{"
        elif letter == ";" and open_[-1][0] == "{":
            statement = open_[-1][1:]
            if "," in statement and EXPRESSION.match(statement):
                yield " ".join(statement.split())
            open_[-1] = "{"
        else:
            open_[-1] += letter


def test_comma_operators_are_told_from_other_commas() -> None:
    found = """
        return keep(x), true;
        if (a) b(), c();
        x = {1, 2}; y[0] = 1, y[1] = 2;
        case kMove: return need(a, b), need(c, d);
        each(items, [](auto& item) { return item.stop(), 0; });
        out << f<A, B>(x), first = true;  // , and so on
    """
    others = """
        for (int i = 0, j = 1; i < j; ++i, --j) f(i, j);
        int a = 1, b[] = {2, 3}; struct { int x; } left, right;
        std::map<int, std::vector<int>> names(a, b), more; [[maybe_unused]] int c = -1, d = -1;
        return f<A, B>(a, "a, b; return c, d;");  // return a, b;
        x = a < b ? Pair{1, 2} : f(3, 4);
    """
    assert len(list(comma_operators(found))) == 6
    assert list(comma_operators(others)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_no_comma_operator(path: Path) -> None:
    assert list(comma_operators(path.read_text(encoding="utf-8"))) == []
