"""Fixtures for tests that open models, whose engines are those of fakes.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import fake_engines

from streamfuse import engines


def made_engines(kind: Callable[..., fakes.ArithmeticBackend] = fakes.ArithmeticBackend) -> Any:
    """A fixture, `made = made_engines(PrintableBackend)`: the engines that are opened in a test, each of them a `kind`.

    Every one must be closed when the test ends. Measured costs are kept in the folder of the test.
    """

    @pytest.fixture
    def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[fakes.ArithmeticBackend]]:
        made, new = fake_engines(kind)
        monkeypatch.setattr(engines, "engines_of", new)
        monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
        yield made
        assert all(engine.closed for engine in made)

    return made
