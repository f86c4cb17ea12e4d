"""A folder in place of ExecuTorch's sources, for tests of the builds that compile them."""

from __future__ import annotations

from pathlib import Path

_FILES = [f"third-party/{name}/README" for name in ("flatbuffers", "flatcc", "gflags", "json")]
_FILES += ["CMakeLists.txt", "backends/xnnpack/third-party/FXdiv/README"]


def executorch_checkout(folder: Path, *more: str) -> Path:
    """`folder`/executorch with empty files: what every build looks for, and `more`."""
    checkout = folder / "executorch"
    for name in (*_FILES, *more):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    return checkout
