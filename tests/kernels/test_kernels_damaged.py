"""Damaged programs end in one sentence, never in a crash: chosen damage, and thousands of copies changed at random.

Run: pytest tests/kernels/test_kernels_damaged.py [--full]
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

MUTATE = Path(__file__).parents[1] / "helpers" / "mutate_program.py"


@pytest.fixture(scope="module")
def program(tiny_graph: Path) -> Path:
    from streamfuse.native.build import build

    build(quiet=True, jobs=2)
    return tiny_graph


@pytest.fixture(scope="module")
def parsed(program: Path) -> Any:
    from executorch.exir._serialize._program import deserialize_pte_binary

    return deserialize_pte_binary(program.read_bytes())


def calls(plan: Any, name: str) -> list[Any]:
    return [
        instruction.instr_args
        for chain in plan.chains
        for instruction in chain.instructions
        if plan.operators[instruction.instr_args.op_index].name == name
    ]


def a_constant(plan: Any) -> int:
    return next(
        i for i, value in enumerate(plan.values) if type(value.val).__name__ == "Tensor" and value.val.data_buffer_idx
    )


def tensors(plan: Any) -> list[Any]:
    return [value.val for value in plan.values if type(value.val).__name__ == "Tensor"]


def _call_nothing(plan: Any) -> None:
    calls(plan, "streamfuse::qkv")[0].op_index = len(plan.operators)


def _name_nothing(plan: Any) -> None:
    calls(plan, "streamfuse::qkv")[0].args[0] = len(plan.values)


def _name_less_than_nothing(plan: Any) -> None:
    calls(plan, "streamfuse::linear")[0].args[3] = -1


def _write_to_a_constant(plan: Any) -> None:
    call, constant = calls(plan, "streamfuse::linear")[0], a_constant(plan)
    call.args[-2:] = [constant, constant]


def _move_a_constant(plan: Any) -> None:
    from executorch.exir.schema import Instruction, MoveCall

    instructions, written = plan.chains[0].instructions, calls(plan, "streamfuse::linear")[0].args[-1]
    instructions.insert(0, Instruction(MoveCall(a_constant(plan), written)))


def _copy_into_a_constant(plan: Any) -> None:
    from executorch.exir.schema import Instruction, KernelCall, Operator

    constant, source = a_constant(plan), calls(plan, "streamfuse::linear")[0].args[0]
    plan.operators.append(Operator("aten::copy_", ""))
    call = KernelCall(len(plan.operators) - 1, [constant, source, plan.inputs[0], constant])
    plan.chains[0].instructions.insert(0, Instruction(call))


def _write_over_an_argument(plan: Any) -> None:
    call = calls(plan, "streamfuse::linear")[0]
    read, written = (plan.values[place].val for place in (call.args[0], call.args[-1]))
    written.allocation_info = dataclasses.replace(read.allocation_info)


def _return_another(plan: Any) -> None:
    call = calls(plan, "streamfuse::linear")[0]
    call.args[-1] = call.args[0]


def _give_a_constant(plan: Any) -> None:
    plan.outputs[0] = a_constant(plan)


def _negative_size(plan: Any) -> None:
    tensors(plan)[0].sizes[0] = -1


def _endless_size(plan: Any) -> None:
    one = next(tensor for tensor in tensors(plan) if len(tensor.sizes) == 2)
    one.sizes[:] = [2**31 - 1] * 2


def _order_twice(plan: Any) -> None:
    one = next(tensor for tensor in tensors(plan) if len(tensor.sizes) == 2)
    one.dim_order[:] = bytes([1, 1]) if isinstance(one.dim_order, bytes) else [1, 1]


def _leave_the_plan(plan: Any) -> None:
    next(tensor for tensor in tensors(plan) if tensor.allocation_info).allocation_info.memory_offset_high = 1


def _lie_at_an_odd_place(plan: Any) -> None:
    one = next(tensor for tensor in tensors(plan) if tensor.allocation_info and tensor.scalar_type.name == "FLOAT")
    one.allocation_info.memory_offset_low += 2


def _no_such_buffer(plan: Any) -> None:
    next(tensor for tensor in tensors(plan) if tensor.allocation_info).allocation_info.memory_id = 9


def _endless_plan(plan: Any) -> None:
    plan.non_const_buffer_sizes[1] = 2**63 - 1


DAMAGE: dict[Callable[[Any], None], str] = {
    _call_nothing: "it calls operator",
    _name_nothing: "argument 0 names value",
    _name_less_than_nothing: "argument 3 names value -1",
    _write_to_a_constant: "it writes to a constant",
    _move_a_constant: "an unsupported type of instruction",
    _copy_into_a_constant: "it returns a constant",
    _write_over_an_argument: "its result overlaps argument 0",
    _return_another: "it returns another tensor than it writes",
    _give_a_constant: "output 0 is a constant",
    _negative_size: "dimension 0 is negative",
    _endless_size: "it is too large",
    _order_twice: "its order of dimensions is invalid",
    _leave_the_plan: "it exceeds its planned buffer",
    _lie_at_an_odd_place: "it is not aligned to its item size",
    _no_such_buffer: "there is no planned buffer 9",
    _endless_plan: "planned buffer 1 has an invalid size",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_what_a_program_may_not_say_is_refused_when_it_is_opened(
    parsed: Any, tmp_path: Path, damage: Callable[[Any], None]
) -> None:
    import copy

    from executorch.exir._serialize._program import serialize_pte_binary

    whole = dataclasses.replace(parsed, program=copy.deepcopy(parsed.program))
    plan = next(plan for plan in whole.program.execution_plan if plan.name == "verify_4")
    damage(plan)
    path = tmp_path / "damaged.pte"
    path.write_bytes(bytes(serialize_pte_binary(whole)))
    with pytest.raises(BackendError, match=f"{path}: method verify_4 is damaged: .*{DAMAGE[damage]}"):
        ExecuTorchProgram(path)


# Argument and name of the integers that operators multiply with the sizes of tensors.
INTEGERS = {
    "qkv": {6: "heads", 7: "kv_heads"},
    "linear": {4: "out_features"},
    "gated_mlp": {5: "intermediate"},
    "head": {4: "vocab_size"},
}


@pytest.mark.parametrize(
    ("operator", "argument"), [(operator, argument) for operator, found in INTEGERS.items() for argument in found]
)
def test_integers_whose_products_would_overflow_are_refused(
    parsed: Any, tmp_path: Path, operator: str, argument: int
) -> None:
    import copy

    from executorch.exir._serialize._program import serialize_pte_binary

    whole = dataclasses.replace(parsed, program=copy.deepcopy(parsed.program))
    plan = next(plan for plan in whole.program.execution_plan if plan.name == "decode")
    for call in calls(plan, f"streamfuse::{operator}"):
        # A multiple of a head dimension of 16 is the old value again after an overflow of 64 bits.
        value = copy.deepcopy(plan.values[call.args[argument]])
        value.val.int_val += 2**60
        plan.values.append(value)
        call.args[argument] = len(plan.values) - 1
    path = tmp_path / "damaged.pte"
    path.write_bytes(bytes(serialize_pte_binary(whole)))
    refused = pytest.raises(
        BackendError, match=f"{operator}.out: {INTEGERS[operator][argument]} must be an integer from"
    )
    with ExecuTorchProgram(path) as program, Session(ExecuTorchBackend(program)) as session, refused:
        session.generate([1, 2, 3], GenerationConfig(2, speculative=False)).finish()


def test_a_method_that_only_an_adapter_has_is_named_if_it_cannot_be_loaded(parsed: Any, tmp_path: Path) -> None:
    import copy

    from executorch.exir._serialize._program import serialize_pte_binary

    whole = dataclasses.replace(parsed, program=copy.deepcopy(parsed.program))
    plan = next(plan for plan in whole.program.execution_plan if plan.name == "verify_4")
    plan.name = "task.verify_4"
    plan.values[a_constant(plan)].val.data_buffer_idx = 1 << 20
    path = tmp_path / "damaged.pte"
    path.write_bytes(bytes(serialize_pte_binary(whole)))
    with ExecuTorchProgram(path) as base, pytest.raises(BackendError, match=r"^method verify_4 cannot be loaded"):
        base.adapter("task")


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.full)])
def test_programs_changed_at_random_run_or_say_why_not(program: Path, tmp_path: Path, count: int) -> None:
    command = [sys.executable, MUTATE, program, tmp_path, "7", "0", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    fates = done.stdout.splitlines()
    last = [line for line in fates if line.isdigit()][-1]
    assert done.returncode == 0, f"copy {last}: {done.stderr[-2000:]}"
    assert len(fates) == 2 * count
    assert fates.count("runs") < count / 2, "most changes are found"


def test_a_program_whose_states_are_a_constant_is_refused(linear_graph: Path, tmp_path: Path) -> None:
    """The operator updates them in place."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    parsed = deserialize_pte_binary(linear_graph.read_bytes())
    plan = next(plan for plan in parsed.program.execution_plan if plan.name == "decode")
    calls(plan, "streamfuse::gated_delta_rule")[0].args[6] = a_constant(plan)
    path = tmp_path / "model.pte"
    path.write_bytes(bytes(serialize_pte_binary(parsed)))
    with pytest.raises(BackendError, match="it writes to a constant"):
        ExecuTorchProgram(path)
