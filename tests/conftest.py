"""Every test is seeded from its own id, so that order and selection change nothing; helpers are importable by name.

Cases marked `full` run with --full only (docs/testing.md). The tiny bundle of the native tests is made once.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from pathlib import Path

# Where other work holds a core, threads that spin wait for one that cannot run: PyTorch's sleep, NumPy has one.
# The libraries read this when they are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

HELPERS = str(Path(__file__).parent)  # fakes.py, oracle.py, make_traces.py
sys.path.append(HELPERS)
# For the processes that tests start too, also where PYTHONSAFEPATH is set (Makefile).
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HELPERS, os.environ.get("PYTHONPATH")]))

TORCH_THREADS = pytest.StashKey[int]()  # how many PyTorch takes when nobody asks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the cases that repeat what another one proves")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not go through it at each export's many objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Toy tensors are computed by one thread: two spend their time handing over. Real models get what there is."""
    if torch := sys.modules.get("torch"):
        own = item.config.stash.setdefault(TORCH_THREADS, torch.get_num_threads())
        torch.set_num_threads(1 if Path(__file__).parent / "unit" in item.path.parents else own)


@pytest.fixture(scope="session")
def tiny_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of native_samples.tiny_bundle, for tests that only read it."""
    from native_samples import tiny_bundle

    return tiny_bundle(tmp_path_factory.mktemp("tiny")) / "model.pte"


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
