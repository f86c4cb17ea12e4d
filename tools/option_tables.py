"""The tables of flags in docs/export.md, serve.md and training.md, written from the declarations of the options.

python tools/option_tables.py            # writes them anew
python tools/option_tables.py --check    # exit code 1 if one differs from what the declarations give
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from streamfuse.bench.shared.marked_text import update
from streamfuse.cli import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"export.md": "export", "serve.md": "serve", "training.md": "train"}
_BEGIN = "<!-- table: flags of {}, written by tools/option_tables.py -->"
_LEFT_OUT = {"help"}


def table(name: str) -> str:
    """The flags of a command, under the headings of its help, as a table in Markdown."""
    rows: dict[str, list[str]] = {}
    for parameter in get_command(app).commands[name].params:  # type: ignore[attr-defined]
        if parameter.name not in _LEFT_OUT:
            rows.setdefault(parameter.rich_help_panel or "", []).append(_row(parameter))
    lines = ["| flag | default | |", "| --- | --- | --- |"]
    for heading, found in rows.items():
        lines += [f"| **{heading}** | | |"] if heading else []
        lines += found
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    names = [] if parameter.param_type_name == "argument" else [*parameter.opts, *parameter.secondary_opts]
    takes = re.sub(r"^\[(.*)\]$", r"\1", parameter.metavar or "")  # around a choice
    flags = " ".join(filter(None, (", ".join(names), takes)))
    return f"| `{_cell(flags)}` | {_cell(_default(parameter))} | {_cell(parameter.help or '')} |"


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "required"
    if parameter.secondary_opts:
        return str((parameter.opts if parameter.default else parameter.secondary_opts)[0])
    if parameter.default is None or parameter.default is False:
        return ""
    return f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")  # which would end the cell


def main(check: bool, docs: Path) -> int:
    """Write the tables, or compare them; the exit code."""
    code = 0
    for name, command in PAGES.items():
        if update(docs / name, {_BEGIN.format(command): table(command)}, check) and check:
            print(f"{docs / name}: the options differ from their declarations; run python tools/option_tables.py")
            code = 1
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    arguments = parser.parse_args()
    sys.exit(main(arguments.check, arguments.docs))
