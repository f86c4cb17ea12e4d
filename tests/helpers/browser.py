"""A browser without a window, for pages that programs write."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no browser is installed: apt-get install chromium, or install google-chrome"
)


def browse(page: Path, *flags: str) -> str:
    """What the browser prints after it opened the page."""
    own = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={page.parent}/profile"]
    done = subprocess.run(
        [str(BROWSER), *own, *flags, page.as_uri()], capture_output=True, text=True, timeout=400, check=True
    )
    return done.stdout
