"""The pages of this project and their samples, for the tests that parse or run them (tests/README.md, Samples)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_ENDS, _REDIRECTIONS = frozenset(("|", "&&", ";", "(", ")")), frozenset(("<", ">"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One fenced block. `fragment`: its info string ends with `fragment`, so it is shown and not run."""

    page: Path
    line: int
    language: str
    fragment: bool
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that a reader meets, README first."""
    patterns = (
        "README.md",
        "CONTRIBUTING.md",
        "LOG.md",
        "docs/*.md",
        "src/streamfuse/adapters/*.md",
        "src/streamfuse/research/adapters/*.md",
        "*_demo/README.md",
        "*_demo/streamfuse/*.md",
        "kernels/README.md",
        "tests/README.md",
        "tests/traces/README.md",
    )
    return [page for pattern in patterns for page in sorted(ROOT.glob(pattern))]


def samples(language: str) -> list[Sample]:
    """The fenced blocks of one language, in the order of the pages."""
    return [sample for page in pages() for sample in _of(page) if sample.language == language]


def _of(page: Path) -> list[Sample]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        words = match["info"].split()
        indent = len(match["indent"])
        code = "".join(line[indent:] for line in match["text"].splitlines(keepends=True))
        found.append(
            Sample(
                page, text[: match.start()].count("\n") + 1, words[0] if words else "", "fragment" in words[1:], code
            )
        )
    return found


def commands(text: str) -> list[list[str]]:
    """The simple commands of a shell sample as lists of words, without comments, redirections and VAR=value."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        words = iter([*lexer, ";"])
        for word in words:
            if word in _REDIRECTIONS:
                next(words)
            elif word in _ENDS:
                found += [command] if command else []
                command = []
            elif command or not re.match(r"[A-Z_]+=", word):
                command.append(word)
    return found


def without_samples(page: Path) -> str:
    """The prose of a page."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
