"""Every test is seeded from its own name, so that order, selection and folders change nothing.

Tests marked `slow` run with --slow only, cases marked `full` with --full, and those marked `alone` run while no other
test does (tests/README.md). The tiny bundle of the native tests is made once.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

# Where other work holds a core, threads that spin wait for one that cannot run: PyTorch's sleep, NumPy has one.
# The libraries read this when they are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Background jobs of a shell script have SIGINT ignored, and processes that tests start and interrupt would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import typer.testing

TESTS = Path(__file__).parent
HELPERS = [
    str(TESTS / "helpers"),
    str(TESTS.parent / "tools"),
]  # fakes.py, oracle.py; plan_simulation.py, make_traces.py
sys.path += HELPERS
# For the processes that tests start too, also where PYTHONSAFEPATH is set (Makefile).
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*HELPERS, os.environ.get("PYTHONPATH")]))

import tiers  # noqa: E402
from beside import Turns, made_once  # noqa: E402

# CliRunner would build the tree of all commands anew for each command that a test runs: most of its time.
typer.testing._get_command = functools.cache(typer.testing._get_command)

SLOWEST_FILES = 12
TIERS = {
    "slow": "also run what builds, emulates or simulates for long",
    "full": "also run the cases that repeat what another one proves",
}
TORCH_THREADS = pytest.StashKey[int]()  # how many PyTorch takes when nobody asks
TURNS = pytest.StashKey[Turns]()  # only where several processes run tests (`make test`)
TURNS_FOLDER = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    for tier, runs in TIERS.items():
        parser.addoption(f"--{tier}", action="store_true", help=runs)


def pytest_configure(config: pytest.Config) -> None:
    tiers.run_in_full(config.getoption("--full"))
    if given := getattr(config, "workerinput", None):
        config.stash[TURNS] = Turns(Path(given["turns"]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Where the processes of this run take turns, passed to each before it starts (pytest-xdist)."""
    config: pytest.Config = node.config
    if TURNS_FOLDER not in config.stash:
        folder = config.stash[TURNS_FOLDER] = tempfile.mkdtemp(prefix="streamfuse-turns-")
        config.add_cleanup(lambda: shutil.rmtree(folder))
    node.workerinput["turns"] = config.stash[TURNS_FOLDER]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Little of what is imported becomes garbage, which the collector would look for all the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if named := [
        item.nodeid for item in items if " at 0x" in item.nodeid
    ]:  # other in each process, so it shares no tests
        raise pytest.UsageError(f"{named[0]} has an address in its name; give its cases ids")
    others = [tier for tier in TIERS if not config.getoption(f"--{tier}")]
    left_out = {item: any(map(item.get_closest_marker, others)) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if left_out[item]])
    items[:] = [item for item in items if not left_out[item]]
    # Files of long tests first, so that no process is left with one at the end; then those that want all cores.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sociable = {item.path for item in items if not item.get_closest_marker("alone")}
    items.sort(key=lambda item: (item.path not in sociable, item.path not in slow))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    turns = item.config.stash.get(TURNS, None)
    with turns.taken(alone=item.get_closest_marker("alone") is not None) if turns else nullcontext():
        return (yield)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not go through it at each export's many objects."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time went, by file: fixtures count for the test that asked first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("slowest files")
        for file, spent in sorted(seconds.items(), key=lambda one: -one[1])[:SLOWEST_FILES]:
            terminalreporter.write_line(f"{spent:7.1f}s {file}")
        terminalreporter.write_line(f"{sum(seconds.values()):7.1f}s in {len(seconds)} files")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Toy tensors are computed by one thread: two spend their time handing over. Real models get what there is."""
    if torch := sys.modules.get("torch"):
        own = item.config.stash.setdefault(TORCH_THREADS, torch.get_num_threads())
        toy = TESTS / "end_to_end" not in item.path.parents
        beside = TURNS in item.config.stash and not item.get_closest_marker("alone")
        torch.set_num_threads(1 if toy or beside else own)


@pytest.fixture(scope="session")
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if TURNS in request.config.stash else own


@pytest.fixture(scope="session")
def tiny_graph(run_folder: Path) -> Path:
    """The program of native_samples.tiny_bundle, for tests that only read it."""
    from native_samples import tiny_bundle

    return made_once(run_folder / "tiny", tiny_bundle) / "bundle" / "model.pte"


@pytest.fixture(scope="session")
def linear_graph(run_folder: Path) -> Path:
    """A program with linear attention, for tests that only read it."""
    from native_samples import LINEAR_ATTENTION, tiny_bundle

    return made_once(run_folder / "linear", lambda folder: tiny_bundle(folder, LINEAR_ATTENTION)) / "bundle/model.pte"


@pytest.fixture(scope="session")
def chat_bundle(run_folder: Path, tiny_graph: Path) -> Path:
    """A small model with random weights that can chat, for tests that only read it."""
    from native_samples import tiny_chat_bundle

    return made_once(run_folder / "tiny_chat", lambda folder: tiny_chat_bundle(folder, tiny_graph.parent)) / "bundle"


def seed_of(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(request.node.nodeid.rpartition("/")[2].encode())


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
