"""pip, which downloads ExecuTorch for other machines. Run: python -m pytest tests/native/test_native_pip.py"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamfuse.native.build import fetch_executorch
from streamfuse.native.command import BuildError


def test_a_build_in_an_environment_without_pip_says_how_to_add_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(BuildError, match=r"has no pip, .* `python -m ensurepip` or `uv pip install pip`$"):
        fetch_executorch("executorch==0", tmp_path)
