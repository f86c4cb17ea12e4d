"""Where words go: answers and tables to standard output, everything about the work to standard error."""

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(line: str, style: str = "dim") -> None:
    """A line about the work; never wrapped, never read as markup."""
    err.print(line, style=style, markup=False, soft_wrap=True)
