"""The Swift package as an app takes it: a small package in an empty folder depends on the repository by its path, loads
the demo bundle and prints an answer. Linux's libstreamfuse stands for Apple's framework.

Run: pytest --slow tests/end_to_end/test_swift_package.py. Skipped without Swift 6 or what `make ios` builds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import peer
import pytest

from streamfuse.native.build import default_build_dir

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "build" / "demo"
SWIFT = ROOT / "ios_demo" / "tools" / "swift"
LIBRARIES = default_build_dir().with_name("mobile")
# A build of the app compiles the same modules of the package with the same options, so `make ios` has done most of it.
SCRATCH = ROOT / "build" / "ios" / "swift"
MODULES = ["-Xswiftc", "-index-ignore-system-modules", "-Xswiftc", "-index-ignore-clang-modules"]  # as in the Makefile
QUESTION = "Why is the sky blue?"
TOKENS = 12
MANIFEST = """// swift-tools-version: 6.0
import PackageDescription

let package = Package(
  name: "Host",
  platforms: [.iOS(.v18), .macOS(.v15)],
  dependencies: [.package(name: "StreamFuse", path: "{repository}")],
  targets: [.executableTarget(name: "Host", dependencies: [.product(name: "StreamFuse", package: "StreamFuse")])]
)
"""
MAIN = """import Foundation
import StreamFuse

let model = try await StreamFuse.load(from: URL(filePath: CommandLine.arguments[1]))
for try await piece in model.chat().stream(to: CommandLine.arguments[2], {{ $0.maxNewTokens = {tokens} }}) {{
  print(piece.text, terminator: "")
}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("swift") and not (ROOT / "build" / "swift-root").is_dir(),
        reason="no Swift here; run: make ios",
    ),
    pytest.mark.skipif(
        not (LIBRARIES / "libstreamfuse.so").is_file(), reason="build/mobile is missing; run: make native-mobile"
    ),
    pytest.mark.skipif(not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"),
]


@pytest.fixture
def host() -> Iterator[Path]:
    """A package in a folder of its own, which the Swift of build/swift-root sees: it has the repository only."""
    SCRATCH.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="host-", dir=SCRATCH.parent) as name:
        folder = Path(name)
        (folder / "Package.swift").write_text(MANIFEST.format(repository=ROOT))
        (folder / "Sources" / "Host").mkdir(parents=True)
        (folder / "Sources" / "Host" / "main.swift").write_text(MAIN.format(tokens=TOKENS))
        yield folder


def test_a_package_that_depends_on_the_repository_prints_pythons_answer(host: Path) -> None:
    options = ["--package-path", str(host), "--scratch-path", str(SCRATCH), *MODULES]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFUSE_")}
    done = subprocess.run(
        [str(SWIFT), "run", *options, "Host", str(BUNDLE), QUESTION],
        cwd=ROOT,
        env=environment | {"STREAMFUSE_LIBRARIES": str(LIBRARIES)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (turn,) = peer.answer({"bundle": str(BUNDLE), "turns": [QUESTION], "config": {"max_new_tokens": TOKENS}})["turns"]
    assert len(turn["tokens"]) == TOKENS
    assert done.stdout == turn["text"]
