"""Names of paths in files and messages."""

from __future__ import annotations

import os
from pathlib import Path


def own_name(path: str | os.PathLike[str]) -> str:
    """The name of a file or folder, even if it is given as `.`; of a link, its own name and not its target's. Empty for
    the root folder."""
    return Path(os.path.abspath(path)).name
