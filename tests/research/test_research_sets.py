"""The data sets that `research compare` and `research online` take.

Run: python -m pytest tests/research/test_research_sets.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from streamfuse.research.cli.shared import read_sets


def test_sets_are_named_after_their_folders_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("valid", "test"):
        rows = [{"prompt": f"{split} {number}"} for number in range(4)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [str(folder / "valid.jsonl"), f"test={folder / 'test.jsonl'}"]
    found = read_sets(sources, lambda place: place + 1)
    assert [(name, [one.turns for one in samples]) for name, samples in found] == [
        ("mine", [("valid 0",)]), ("test", [("test 0",), ("test 2",)])
    ]  # fmt: skip
    with pytest.raises(typer.BadParameter, match=r"two data sets are called mine; name them: --data NAME=.*test.jsonl"):
        read_sets([sources[0], str(folder / "test.jsonl")], lambda place: 4)
