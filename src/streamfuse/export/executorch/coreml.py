"""Core ML inside a .pte: each method is one function of one ML program, which is stored once.

Core ML takes programs, not operators, so there is nothing to partition: coremltools converts a method as a whole or
names the operator that it does not support. `preprocess_multimethod` combines the functions of all methods into one
package, which stores equal weights once; every delegate is a reference to it.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import torch
from coremltools.converters.mil.mil import Program
from executorch.backends.apple.coreml import executorchcoreml
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.exir import EdgeProgramManager
from executorch.exir._serialize._program import deserialize_pte_binary
from torch import Tensor, nn
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.nn import functional as F

from streamfuse.emulator import CoreMLEmulator
from streamfuse.runtime.backend import STREAMS, Backend

from ..coreml.passes import DELEGATE, quiet
from ..coreml.report import describe
from ..graphs import Method, Streams, Verify
from ..selftest import FLOORS
from ..target import TargetFacts
from . import stock
from .delegate import DelegateTarget, Form
from .lower import edge_program
from .modules import LoweringError, answers_with_shapes, deduplicated, delegate_module
from .target import GRAPH_FILE

_WANT_LOGITS = 4  # its index among the inputs of a method
PACKAGE = "model.mlpackage"  # in the folder that a delegate unpacks
_REFERENCE = b"CMJR"  # prefix of a delegate's JSON, which names the shared program


class Norm(stock.Norm):
    """The layer norm of [x, -x], as in coreml/ops.py; written out, because a delegate's graph can only have PyTorch's
    operators."""

    def rows(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        normed = F.layer_norm(torch.cat([x, -x], 1), (2 * size,), eps=self.epsilon)
        return normed[:, :size] * self.weight


class CoreMLForm(Form):
    NORM = Norm


class _Inner(nn.Module):
    """A method with the dtypes of Core ML: int32 indices, a float ancestor matrix, no want_logits."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        streams = isinstance(self.method, Streams)
        outputs: tuple[Tensor, ...] = self.method(
            *(inputs if streams else (*inputs[:_WANT_LOGITS], None, *inputs[_WANT_LOGITS:]))
        )
        return outputs


class Border(nn.Module):
    """Wraps `inner`, which uses Core ML's dtypes, in the method's signature; int64 outputs where contracts.md has
    them."""

    def __init__(self, inner: Callable[..., tuple[Tensor, ...]], streams: bool) -> None:
        super().__init__()
        self.inner, self.streams = inner, streams

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.streams:
            inputs = (*inputs[:_WANT_LOGITS], *inputs[_WANT_LOGITS + 1 :])
        return tuple(self.inner(*map(_narrowed, inputs)))


def _narrowed(tensor: Tensor) -> Tensor:
    kinds = {torch.int64: torch.int32, torch.bool: torch.float32}
    return tensor.to(kinds.get(tensor.dtype, tensor.dtype))


class CoreMLDelegateTarget(DelegateTarget):
    """The emulator runs the program that a phone loads: the one in the file."""

    PROOF = "emulator"

    def prepare(self) -> None:
        self.floor, self.form = FLOORS[self.config.dtype], CoreMLForm(self.config)

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        """Every method as one delegate; the delegates share their program through a named data store."""
        config, inputs = self.config, self.examples()
        specs = CoreMLBackend.generate_compile_specs(
            compute_unit=ct.ComputeUnit[config.compute_units.upper()],
            minimum_deployment_target=getattr(ct.target, config.minimum_deployment_target),
            compute_precision=ct.precision.FLOAT16 if config.dtype == "float16" else ct.precision.FLOAT32,
            pass_names=list(DELEGATE),
        )
        programs = {}
        for name, method in self.methods.items():
            self.progress(f"{name}: graph")
            programs[name] = _exported(method, inputs[name])
        self.progress("Core ML program")
        try:
            with quiet(), _unwatched():
                results = CoreMLBackend.preprocess_multimethod(
                    {name: [program] for name, program in programs.items()}, {name: [specs] for name in programs}
                )
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise LoweringError(f"coremltools cannot convert a method: {error}") from error
        made: dict[str, nn.Module] = {}
        for name, (result,) in results.items():
            program = answers_with_shapes(programs[name])
            module = delegate_module(program, CoreMLBackend.__name__, result, specs)
            made[name] = Border(module, isinstance(self.methods[name], Streams))
        return edge_program(made, inputs, constants)

    def open(self) -> Backend:
        return self.run_by(_emulated(self.folder / GRAPH_FILE))

    def facts(self) -> TargetFacts:
        found = super().facts()
        with _unpacked(self.folder / GRAPH_FILE) as (root, _):
            return replace(found, report=found.report | describe(root / PACKAGE, channels=False))


def _exported(method: Method, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """A method with Core ML's dtypes, in a dialect that coremltools reads."""
    narrow = Border(lambda *inner: inner, isinstance(method, Streams))
    program = deduplicated(torch.export.export(_Inner(method).eval(), narrow(*inputs), strict=False))
    # coremltools requires the dialect of `run_decompositions`, which traces the graph a second time. It supports our
    # operators without that, except for the pruner's dtype conversions.
    if isinstance(method, Verify) and method.survivors is not None:
        decomposed: ExportedProgram = program.run_decompositions({})
        return decomposed
    return _with_plain_casts(program)


@contextmanager
def _unwatched() -> Iterator[None]:
    """Skips coremltools' walks over the whole program before and after each pass, which also run for skipped passes."""
    validate = Program.validate
    Program.validate = lambda *_, **__: None
    try:
        yield
    finally:
        Program.validate = validate


def _with_plain_casts(program: ExportedProgram) -> ExportedProgram:
    """The same graph in a dialect that coremltools reads, which supports casts in their functional form only."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif node.target is torch.ops.aten.to.dtype:
            node.target = torch.ops.aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
    program.graph_module.recompile()
    program._verifiers = [Verifier]
    return program


@contextmanager
def _unpacked(pte: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder with the program in a .pte, while the context is open, and the function of each method.

    Raises:
        LoweringError: the file does not contain exactly one program.
    """
    file = deserialize_pte_binary(pte.read_bytes())
    references = {}
    for config in file.program.execution_plan:
        for delegate in config.delegates:
            data = bytes(file.program.backend_delegate_data[delegate.processed.index].data)
            references[config.name] = json.loads(data.removeprefix(_REFERENCE))
    keys = {reference["key"] for reference in references.values()}
    if len(keys) != 1 or file.named_data is None:
        raise LoweringError(f"{pte.name} has {len(keys)} Core ML programs, not one")
    package = bytes(file.named_data.buffers[file.named_data.pte_data[keys.pop()].buffer_index])
    with tempfile.TemporaryDirectory() as folder:
        executorchcoreml.unflatten_directory_contents(package, folder)
        (root,) = Path(folder).iterdir()
        yield root, {name: reference["functionName"] for name, reference in references.items()}


def _emulated(pte: Path) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    """The methods of a .pte, run by the emulator: the program that a phone would load, read from the file."""
    stack = ExitStack()
    root, functions = stack.enter_context(_unpacked(pte))
    names = json.loads((root / "metadata.json").read_text())["methods"]
    emulator = CoreMLEmulator(root / PACKAGE)
    weakref.finalize(emulator, stack.close)  # the emulator reads the weights lazily

    def function(name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = dict(zip(names[name]["inputNames"], (value.numpy() for value in inputs), strict=True))
        found = emulator.predict(arrays, functions[name])
        outputs = (torch.from_numpy(np.ascontiguousarray(found[n])) for n in names[name]["outputNames"])
        return tuple(value.long() if value.dtype == torch.int32 else value for value in outputs)

    return {name: Border(partial(function, name), name == STREAMS) for name in functions}
