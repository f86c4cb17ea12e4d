"""The page of the site with every command and its flags, written from the declarations of the command line."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from streamfuse.cli import app

_HEADING = re.compile(r"\[bold\](.+?)\[/bold\]\n")  # of a part of a help
_LEFT_OUT = {"help"}


def page() -> str:
    """Markdown: each command with its help, its examples and a table of its flags."""
    parts = [
        "# CLI reference",
        "What `--help-all` prints, for all commands. [First steps](../README.md) is the guide.",
    ]
    for name, command in _commands(get_command(app), "streamfuse"):
        about, *examples = _HEADING.split(command.help or "")
        parts += [f"## {name}", _prose(about)]
        for heading, lines in zip(examples[::2], examples[1::2], strict=True):
            language = "sh" if re.match(r"\s*(?:streamfuse|curl) ", lines) else "text"
            parts += [f"{heading}:", "\n".join([f"```{language}", *filter(str.strip, lines.splitlines()), "```"])]
        parts.append(table(command))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(command: Any) -> str:
    """The flags of a command, under the headings of its help; empty if it has none."""
    rows: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.name not in _LEFT_OUT:
            rows.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(_row(parameter))
    if not rows:
        return ""
    lines = ["| flag | default | |", "| --- | --- | --- |"]
    for heading, found in rows.items():
        lines += [f"| **{heading}** | | |"] if heading else []
        lines += found
    return "\n".join(lines)


def _commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """A command and all below it, with their names as they are typed."""
    children = getattr(command, "commands", {}).items()
    return [(name, command), *(pair for word, child in children for pair in _commands(child, f"{name} {word}"))]


def _prose(text: str) -> str:
    """Help without Rich's marks, and without what Markdown takes for HTML."""
    return re.sub(r"\[/?(?:bold|green|yellow|red)\]", "", text).replace("\\[", "[").replace("<", "&lt;").strip()


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = [] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    metavar = parameter.metavar or (parameter.name.upper() if is_argument else "")
    takes = re.sub(r"^\[(.*)\]$", r"\1", metavar)  # brackets are around a choice
    flags = " ".join(filter(None, (", ".join(names), takes)))
    return f"| `{_cell(flags)}` | {_cell(_default(parameter))} | {_cell(parameter.help or '')} |"


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "required"
    if parameter.secondary_opts:
        return str((parameter.opts if parameter.default else parameter.secondary_opts)[0])
    if getattr(parameter, "is_flag", False):
        return ""
    if parameter.default is None:
        return "none"
    return f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")  # which would end the cell
