"""Every test is seeded from its own id, so that order and selection change nothing; helpers are importable by name."""

from __future__ import annotations

import random
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # fakes.py, oracle.py, make_traces.py


def seed_of(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    seed = seed_of(request)
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of this test's own."""
    return np.random.default_rng(seed_of(request))
