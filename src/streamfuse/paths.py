"""How a path is called in files and messages."""

from __future__ import annotations

import os
from pathlib import Path


def own_name(path: str | os.PathLike[str]) -> str:
    """The name of a file or folder, also of one given as `.`; a link has its own. Empty for the root folder."""
    return Path(os.path.abspath(path)).name
