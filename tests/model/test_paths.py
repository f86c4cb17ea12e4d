"""Names of paths.

Run: python -m pytest tests/model/test_paths.py
"""

from pathlib import Path

import pytest

from streamfuse.paths import own_name


def test_a_name_is_the_folders_own_however_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    assert [own_name(path) for path in (".", "..", "./", folder)] == ["inner", "model", "inner", "inner"]
    assert own_name(tmp_path / "link") == "link", "a file of a cache of models is a link to its hash"
    assert own_name("/") == ""
