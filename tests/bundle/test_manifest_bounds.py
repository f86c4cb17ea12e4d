"""A manifest that is wrong in many places costs memory by its size, and one short sentence.

Run: python -m pytest tests/bundle/test_manifest_bounds.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import edit_manifest, write_bundle

HELPERS = Path(__file__).parents[1] / "helpers"
ROOM_BYTES = 512 << 20  # of address space, for 16 MiB at most
OPEN = f"""
import resource, sys
from pathlib import Path
from streamfuse.bundle import BundleError, open_bundle
from streamfuse.runtime.text_library import text_library
text_library()
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + {ROOM_BYTES},) * 2)
try:
    open_bundle(sys.argv[1])
except BundleError as error:
    print(error)
"""

Edit = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Edit, str]] = {
    "a long name with many wrong metrics": (
        lambda data: data["parity"].update({"x" * 1_000_000: {"metrics": dict.fromkeys(map(str, range(10_000)))}}),
        "a name is longer than 255 characters",
    ),
    "many wrong metrics": (
        lambda data: data["parity"]["decode"]["metrics"].update(dict.fromkeys(map(str, range(90_000)))),
        "parity.decode.metrics.0: Input should be a valid number (and 89999 more)",
    ),
    "many long names": (
        lambda data: data["files"].update({f"{'x' * 240}{n}": None for n in range(50_000)}),
        "(and 49999 more)",
    ),
    "many files with a wrong hash": (
        lambda data: data["files"].update({str(n): {"sha256": "x", "bytes": 0} for n in range(30_000)}),
        "(and 29999 more)",
    ),
    "a version of many characters": (lambda data: data.update(format_version="x" * 15_000_000), "must be an integer"),
    "many values": (lambda data: data.update(extra=[[]] * 4_000_000), "more than 100000 values"),
}


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="limits are compared with what Linux counts")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_bounded_memory(name: str, tmp_path: Path) -> None:
    edit, words = WRONG[name]
    bundle = write_bundle(tmp_path / "demo")
    edit_manifest(bundle, edit)
    assert (bundle / "manifest.json").stat().st_size < 16 << 20
    paths = os.pathsep.join([str(HELPERS), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(bundle)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    assert words in done.stdout, json.dumps(done.stdout[:500])
    assert len(done.stdout) < 1000
