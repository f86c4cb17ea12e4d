"""No file is built or read through the links at the top: Git writes them as text files where symbolic links are off
(core.symlinks=false, the default on Windows).

Run: python -m pytest tests/native/test_links.py
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath

import pytest
from pages import ROOT

LINKS = {name: ROOT / "src" / "streamfuse" / name for name in ("export", "runtime")}
READ = re.compile(r"(?:^[^.]+|\.(?:cmake|cpp|h|kts|py|rs|sh|swift|toml|txt|xml|yml))$")  # names of files
NAMED = re.compile(r"\b(?:export|runtime)[/\"']")  # in every path through a link
# What is no path of its own: comments, variables at the beginning of a path, and what make puts a folder before.
NO_PATH = re.compile(
    r"^\s*(?:/?\*|<!--).*$|(?:^|(?<=\s))(?:#(?!include)|//).*$|\$(?:\{\w+\}|\(\w+\)|\w+)/|\$\(addprefix [^,]*,[^)]*\)",
    re.MULTILINE,
)
PATH = re.compile(r"[\w./+*-]*/[\w./+*-]*")


def listed(*flags: str) -> list[str]:
    """What `git ls-files` lists."""
    found = subprocess.run(["git", "ls-files", "-z", *flags], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(
            "git cannot list the files of this folder: run this test in a git clone, not in an unpacked archive"
        )
    return [line for line in found.stdout.split("\0") if line]


def tracked() -> list[Path]:
    """All but this file, whose examples lead through links."""
    return [Path(name) for name in listed() if Path(name).name != Path(__file__).name]


def strings(source: str) -> Iterator[str]:
    """Of a Python module, without its docstrings; parts of a path joined, `ROOT / "a" / "b"` as `/a/b`."""
    tree = ast.parse(source)
    done: set[ast.AST] = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if node in done:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts: list[str] = []
            while isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
                done |= {node.left, node.right}
                parts.append(str(node.right.value))
                node = node.left
            yield "".join(f"/{part}" for part in reversed(parts))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("Path", "joinpath"):
            yield "".join("/" + str(part.value) for part in node.args if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def through_a_link(name: Path, source: str) -> list[str]:
    """Paths in a file that lead through a link, from its folder or from the top."""
    if not NAMED.search(source):
        return []
    text = "\n".join(strings(source)) if name.suffix == ".py" else NO_PATH.sub("", source)
    found = set()
    for path in PATH.findall(text):
        for folder in (name.parent.as_posix(), "."):
            link, _, rest = normpath(f"{folder}/{path}").partition("/")
            if link in LINKS and (not rest or any(LINKS[link].glob(rest))):
                found.add(path)
    return sorted(found)


def test_no_file_is_reached_through_a_link() -> None:
    found, read = {}, set()
    for name in tracked():
        if READ.search(name.name) and not (ROOT / name).is_symlink():
            read.add(name.name)
            if paths := through_a_link(name, (ROOT / name).read_text(encoding="utf-8")):
                found[str(name)] = paths
    assert found == {}
    assert read >= {"CMakeLists.txt", "Cargo.toml", "pom.xml", "Package.swift", "Makefile", "aar", "build.py"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("kernels/CMakeLists.txt", "include_directories(../export/operators)"),
        ("core/CMakeLists.txt", "file(GLOB all ${REPOSITORY}/runtime/*.py)"),
        ("kernels/ops/a.h", '#include "../../runtime/core.py"'),
        ("text/Cargo.toml", 'path = "../runtime/reference"'),
        ("android_demo/app/pom.xml", "<directory>${basedir}/../../export/operators</directory>"),
        ("Package.swift", 'path: "runtime/backends"'),
        ("android_demo/tools/aar", 'cp "$repository/runtime/core.py" .'),
        ("tools/a.py", 'ROOT = Path(__file__).parents[1]\nprint((ROOT / "runtime" / "core.py").read_text())'),
        ("tools/a.py", 'Path("runtime", "core.py")'),
        ("src/streamfuse/cli/a.py", 'open("../../../export/config.py")'),
    ],
)
def test_a_path_through_a_link_is_found(name: str, source: str) -> None:
    assert len(through_a_link(Path(name), source)) >= 1


def test_there_are_no_other_links() -> None:
    assert [line.partition("\t")[2] for line in listed("-s") if line.startswith("120000 ")] == sorted(LINKS)
