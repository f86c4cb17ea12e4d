"""The pip of this Python environment, which downloads packages with the user's settings."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def pip_command(error: type[Exception]) -> list[str]:
    """The beginning of a command line that runs pip. Raises `error`, with a remedy, if there is no pip."""
    if find_spec("pip") is None:  # `uv venv` makes such environments
        raise error(
            f"{sys.executable} has no pip, which downloads packages: add it with `python -m ensurepip` or "
            "`uv pip install pip`"
        )
    return [sys.executable, "-m", "pip"]
