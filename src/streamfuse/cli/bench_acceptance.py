"""`streamfuse bench acceptance`: how many tokens a pass brings, and how good the text is."""

from __future__ import annotations

from typing import Annotated

import typer


def register(bench: typer.Typer) -> None:
    bench.command("acceptance")(acceptance)


def acceptance(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder that `streamfuse export` wrote.")],
) -> None:
    """Call-reduction ratio, acceptance per depth and rank, and quality, over a JSON-lines file."""
    raise typer.BadParameter("not built yet")
