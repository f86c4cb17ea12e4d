"""Where words go: answers and tables to standard output, everything about the work to standard error."""

from rich.console import Console

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)
