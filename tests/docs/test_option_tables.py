"""The tables of flags in the docs are what the declarations of the options give.

Run: python -m pytest tests/docs/test_option_tables.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import option_tables  # noqa: E402 (a program in tools/, not a package)
from streamfuse.export.config import ExportConfig  # noqa: E402
from streamfuse.model.config import StreamConfig  # noqa: E402
from streamfuse.options import declared  # noqa: E402
from streamfuse.serve.options import ServeOptions  # noqa: E402
from streamfuse.train.config import TrainConfig  # noqa: E402


def test_the_tables_of_the_docs_are_those_of_the_declarations() -> None:
    assert option_tables.main(check=True, docs=option_tables.DOCS) == 0


@pytest.mark.parametrize(
    ("command", "configs"),
    [("export", (ExportConfig,)), ("serve", (ServeOptions,)), ("train", (TrainConfig, StreamConfig))],
    ids=["export", "serve", "train"],
)
def test_every_declared_option_has_a_row_with_its_help(command: str, configs: tuple[type, ...]) -> None:
    rows = option_tables.table(command).splitlines()
    for config in configs:
        for name, facts in declared(config).items():
            flag = name.replace("_", "-")
            (row,) = [row for row in rows if row.startswith((f"| `--{flag}`", f"| `--{flag} "))]
            assert facts.help.replace("|", r"\|") in row


def test_a_table_that_differs_is_found_and_written_anew(tmp_path: Path) -> None:
    for page in option_tables.PAGES:
        shutil.copy(ROOT / "docs" / page, tmp_path / page)
    path = tmp_path / "export.md"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("| `--prefill-len` | 64 |", "| `--prefill-len` | 65 |"), encoding="utf-8")
    assert option_tables.main(check=True, docs=tmp_path) == 1
    assert option_tables.main(check=False, docs=tmp_path) == 0
    assert path.read_text(encoding="utf-8") == before


def test_a_page_without_a_place_for_its_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "export.md").write_text("# Export\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"export\.md: no lines '<!-- table: flags of export"):
        option_tables.main(check=False, docs=tmp_path)
