"""What `mkdocs build` needs beside the pages: references made of the sources, and links that leave docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import app_reference
import command_reference

ROOT = Path(__file__).parents[1]
HEADERS = {
    "native/streamfuse.h": "What an app or another language binds: models and sessions. [core.md](../core.md)",
    "core/streamfuse_core.h": "The core under it, for an engine of your own. [core.md](../core.md#the-core)",
    "text/streamfuse_bundle.h": "Bundle, tokenizer and chat template. [bundle.md](../bundle.md)",
}
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)#\s]+)(?:#[^)]*)?\)")
FRAGMENT = re.compile(r"^( *```\w+) fragment$", re.MULTILINE)
NAMED = re.compile(r"\[([a-z-]+\.md)\]\(([^)#\s]+)((?:#[^)]*)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the references, which exist on the site only."""
    pages = {
        "api/cli.md": command_reference.page(),
        "api/python.md": _python(),
        "api/kotlin.md": app_reference.kotlin(),
        "api/swift.md": app_reference.swift(),
        "api/c.md": _c(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A link named after its file gets the page's title, and a link to a file outside docs/ becomes the file's name,
    because the site does not have it."""
    markdown = FRAGMENT.sub(r"\1", markdown)  # a second word after the language would not begin a block
    titles = {path: title for title, path in _entries(config.nav or [])}
    markdown = NAMED.sub(lambda link: f"[{titles.get(link[1], link[1])}]({link[2]}{link[3]})", markdown)
    if page.file.generated_by is not None:
        return markdown
    return OUTSIDE.sub(_in_the_repository, markdown)


def _in_the_repository(link: re.Match[str]) -> str:
    is_its_name = link[1].strip("`") == link[2]
    return f"`{link[2]}` in the repository" if is_its_name else f"{link[1]} (`{link[2]}` in the repository)"


def _entries(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """(title, path) of every entry that has a title."""
    for entry in nav:
        for title, inside in entry.items() if isinstance(entry, dict) else ():
            if isinstance(inside, str):
                yield title, inside
            else:
                yield from _entries(inside)


def _python() -> str:
    """Each public name under the module that documents it."""
    import streamfuse
    from streamfuse import api

    top = [name for name in streamfuse.__all__ if not name.startswith("_")]
    others = [name for name in api.__all__ if name not in top]
    parts = ["# Python API", "What an app uses. [python.md](../python.md) is the guide."]
    parts += [f"::: streamfuse.{name}" for name in top] + [f"::: streamfuse.api.{name}" for name in others]
    return "\n\n".join(parts) + "\n"


def _c() -> str:
    parts = ["# C API", "The headers are the reference: they say what every function takes, returns and refuses."]
    for header, words in HEADERS.items():
        text = (ROOT / header).read_text(encoding="utf-8")
        parts += [f"## {Path(header).name}", words, f"```c\n{text.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"
