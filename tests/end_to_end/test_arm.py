"""The engine for 64-bit ARM, cross-compiled and run under an emulator: same bits, same tokens as on this machine.

Run: pytest --slow tests/end_to_end/test_arm.py, or `make arm`. Skipped without Debian's cross compiler and qemu.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from native_samples import WIDTHS, output_of
from task_samples import write_task_bundle

from streamfuse.native.arm.build import INSTALL, build_arm, missing_tools, run_command
from streamfuse.native.build import build

if missing_tools():
    pytest.skip(f"not installed: {', '.join(missing_tools())} ({INSTALL})", allow_module_level=True)

pytestmark = pytest.mark.slow
REAL_BUNDLE = Path(__file__).parents[2] / "build" / "demo"
# Processors of the emulator, and the instruction set that the operators choose there.
PROCESSORS = {"max": "neon_i8mm", "neoverse-n1": "neon_dot", "cortex-a53": "neon"}
GRAPHS = [*(("max", width) for width in WIDTHS), ("cortex-a53", WIDTHS[-1])]  # run by default


@pytest.fixture(scope="session")
def arm() -> Path:
    return build_arm(targets=("test_ops", "test_engine", "generate"), quiet=True, jobs=2)


@pytest.fixture(scope="session")
def here() -> Path:
    return build(quiet=True, jobs=2).parent


def emulated(program: Path, *arguments: object, processor: str = "max") -> str:
    # An instruction set that is forced on this machine means nothing there.
    return output_of(run_command(program, *arguments), QEMU_CPU=processor, STREAMFUSE_ISA="")


def digest(output: str) -> str:
    return output.split("digest: ")[1].strip()


@pytest.mark.parametrize("processor", PROCESSORS)
def test_operators_are_right_and_row_invariant(arm: Path, processor: str) -> None:
    output = emulated(arm / "test_ops", 20, processor=processor)
    assert f"instruction set: {PROCESSORS[processor]}," in output


@pytest.mark.parametrize("processor", PROCESSORS)
def test_operators_give_the_bits_of_this_machine(arm: Path, here: Path, processor: str) -> None:
    assert digest(emulated(arm / "test_ops", "--digest", processor=processor)) == digest(
        output_of([here / "test_ops", "--digest"])
    )


@pytest.mark.parametrize(
    ("processor", "width"),
    [
        # Both passes on the newest processor, that which prunes on the oldest; the operators alone run on all three.
        pytest.param(processor, width, marks=[] if (processor, width) in GRAPHS else pytest.mark.full)
        for processor in PROCESSORS
        for width in WIDTHS
    ],
)
def test_whole_graphs_give_the_bits_of_this_machine(
    arm: Path, here: Path, tiny_graph: Path, processor: str, width: int
) -> None:
    output = emulated(arm / "test_engine", tiny_graph, width, processor=processor)
    assert digest(output) == digest(output_of([here / "test_engine", tiny_graph, str(width)]))


@pytest.mark.parametrize("processor", list(PROCESSORS)[:1])
def test_linear_attention_gives_the_bits_of_this_machine(
    arm: Path, here: Path, linear_graph: Path, processor: str
) -> None:
    output = emulated(arm / "test_engine", linear_graph, 4, processor=processor)
    assert digest(output) == digest(output_of([here / "test_engine", linear_graph, "4"]))


@pytest.fixture(scope="session")
def task_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a task adapter in int8, which acts on all rows, and streams of its own."""
    folder = tmp_path_factory.mktemp("tasks") / "bundle"
    write_task_bundle(folder, ["tuned"], adapter_dtype="int8")
    return folder / "model.pte"


@pytest.mark.parametrize(
    "processor",  # full: as above; the operators are tested with adapters in int8 too
    [pytest.param(name, marks=pytest.mark.full) if name == "neoverse-n1" else name for name in PROCESSORS],
)
def test_a_task_adapter_in_int8_gives_the_bits_of_this_machine(
    arm: Path, here: Path, task_graph: Path, processor: str
) -> None:
    base, expected = (
        digest(output_of([here / "test_engine", task_graph, "4", *adapter])) for adapter in ([], ["tuned"])
    )
    assert digest(emulated(arm / "test_engine", task_graph, 4, "tuned", processor=processor)) == expected
    assert expected != base


@pytest.mark.skipif(not (REAL_BUNDLE / "model.pte").is_file(), reason="build/demo is missing; run: make bundle")
@pytest.mark.parametrize(("width", "count"), [(1, 8), pytest.param(8, 4, marks=pytest.mark.full)])
def test_a_real_model_says_the_same_words(arm: Path, here: Path, width: int, count: int) -> None:
    options = ["--tokens", "1,4093,198,1780,253,2573,28,253,1838", "--count", str(count), "--width", str(width)]
    model = str(REAL_BUNDLE / "model.pte")
    words = output_of([here / "generate", model, *options])
    assert len(words.split()) == count
    assert emulated(arm / "generate", model, *options) == words
