"""What the site does to the pages: tools/site_hooks.py.

Run: python -m pytest tests/docs/test_site.py
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

pytest.importorskip("mkdocs", reason="mkdocs-material is not installed: pip install 'streamfuse[dev]'")
sys.path.insert(0, str(ROOT / "tools"))

import markdown
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import site_hooks


@pytest.fixture
def shown() -> Any:
    config = MkDocsConfig()
    config.load_dict({"site_name": "streamfuse", "nav": [{"Start": [{"Quickstart": "cli.md"}]}]})
    page = Page(None, File("export.md", "docs", "site", use_directory_urls=False), config)
    return lambda markdown: site_hooks.on_page_markdown(markdown, page=page, config=config, files=Files([]))


def test_a_block_that_is_a_fragment_is_still_a_block(shown: Any) -> None:
    page = "Text.\n\n```c fragment\nf();\n```\n\n## Heading\n"
    assert shown(page) == "Text.\n\n```c\nf();\n```\n\n## Heading\n"


def test_links_have_the_titles_of_their_pages_and_lead_to_none_outside_docs(shown: Any) -> None:
    assert shown("See [cli.md](cli.md#what-to-install).") == "See [Quickstart](cli.md#what-to-install)."
    assert shown("[the log](../LOG.md)") == "the log (`LOG.md` in the repository)"
    assert shown("[`core/a.h`](../core/a.h)") == "`core/a.h` in the repository"
    assert shown("[kernels/README.md](../kernels/README.md#arm)") == "`kernels/README.md` in the repository"


class _Lists(HTMLParser):
    """The items of all lists in order: their numbers, None for bullets."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[int | None] = []
        self._next: list[int | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("ol", "ul"):
            self._next.append(int(dict(attrs).get("start") or 1) if tag == "ol" else None)
        if tag == "li":
            number = self._next[-1]
            self.items.append(number)
            self._next[-1] = None if number is None else number + 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("ol", "ul"):
            self._next.pop()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_items_of_lists_have_the_numbers_or_bullets_of_their_page(page: Path) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    text = site_hooks.FRAGMENT.sub(r"\1", page.read_text(encoding="utf-8"))
    lists = _Lists()
    lists.feed(
        markdown.markdown(text, extensions=config.markdown_extensions, extension_configs=config.mdx_configs or {})
    )
    outside = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^ *(?:[*-]|(\d+)\.) ", outside, flags=re.MULTILINE)
    assert lists.items == [int(number) if number else None for number in found]
