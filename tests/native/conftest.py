"""What tests of native/streamfuse.h share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from app_library import AppModel


@pytest.fixture(scope="module")
def model(chat_bundle: Path) -> Iterator[AppModel]:
    """The small model that can chat, opened through the library."""
    with AppModel(chat_bundle) as opened:
        yield opened
