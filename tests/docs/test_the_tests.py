"""What every test must have: something that can fail, and nothing from inside what it tests.

Run: python -m pytest tests/docs/test_the_tests.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TREES = {path.relative_to(TESTS): ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Of others, who have no public name for it: a process that ends as a crash would, a parser of programs, the tree of an
# app's commands.
OTHERS = {"os._exit", "executorch.exir._serialize._program", "typer.testing._get_command"}


def functions(tree: ast.Module) -> dict[str, Function]:
    """Those of a file that stand in no class and in no other function."""
    return {node.name: node for node in tree.body if isinstance(node, Function)}


def called(node: ast.AST) -> set[str]:
    """What is called in it by a bare name, and the last words of the rest: `.b` of `a.b(...)`."""
    found = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            found.add(f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""))
    return found


def can_fail(node: Function) -> bool:
    """By itself: an assertion, an expected exception, or a comparison of a library's."""
    if any(isinstance(part, ast.Assert) for part in ast.walk(node)):
        return True
    return any(name == ".raises" or name.startswith(".assert_") for name in called(node))


def helpers_that_can_fail() -> dict[Path, set[str]]:
    """By file, the names of its functions and of those it takes from other files of tests/ that can fail, by
    themselves or by such functions that they call."""
    found, calls, taken = {}, {}, {}
    for path, tree in TREES.items():
        found[path] = {name for name, one in functions(tree).items() if can_fail(one)}
        calls[path] = {name: called(one) for name, one in functions(tree).items()}
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        taken[path] = [(Path(f"{node.module}.py"), {one.name for one in node.names}) for node in imports]
    for _ in range(4):  # calls deep
        for path in TREES:
            for source, names in taken[path]:
                found[path] |= found.get(source, set()) & names
            found[path] |= {name for name, inner in calls[path].items() if inner & found[path]}
    return found


def test_every_test_can_fail() -> None:
    found = helpers_that_can_fail()
    tests = {
        (path, name)
        for path, tree in TREES.items()
        if path.name.startswith("test_")
        for name in functions(tree)
        if name.startswith("test_")
    }
    assert len(tests) > 500
    assert [f"{path} {name}" for path, name in sorted(tests) if name not in found[path]] == []


def private(name: str) -> bool:
    special = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not special and name != "_asdict"  # a named tuple's, and public


def inside_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names of private attributes of others, by a dot, by an import, or by their name as a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if any(map(private, module.split("."))):
                yield node.lineno, module
            yield from ((node.lineno, f"{module}.{one.name}") for one in node.names if private(one.name))
        elif isinstance(node, ast.Call) and called(node) & {"getattr", "setattr", "hasattr", ".setattr"}:
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from ((node.lineno, word) for word in words if private(word.split(".")[-1]))


@pytest.mark.parametrize("path", sorted(TREES), ids=str)
def test_nothing_private_of_others_is_used(path: Path) -> None:
    found = [f"{path}:{line} {name}" for line, name in inside_names(TREES[path]) if name not in OTHERS]
    assert found == []


def test_the_page_lists_every_file_with_slow_tests() -> None:
    page = (TESTS / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Slow tests$(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    marked = {path.name for path, tree in TREES.items() if any(map(is_slow, ast.walk(tree)))}
    assert set(re.findall(r"test_\w+\.py", section)) == marked


def is_slow(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow"
