"""Converts graphs to one multifunction package, with coremltools.

A graph is traced in the package's own float type, with placeholders for the large weights, so the conversion copies and
casts nothing. Afterwards the stored weights replace the placeholders, and constants that are equal in several functions
are stored in the weights file once.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import torch
from coremltools.converters.mil.converter import mil_convert
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Operation, Program
from coremltools.converters.mil.mil.passes.helper import block_context_manager
from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY
from coremltools.converters.mil.mil.scope import ScopeInfo, ScopeSource
from coremltools.proto import Model_pb2
from torch._export.verifier import Verifier

from .graphs import Graph
from .passes import PACKAGE, quiet
from .stored import Stored

# coremltools requires every operation to have a scope.
_NO_SOURCE = [ScopeInfo(ScopeSource.EXIR_STACK_TRACE, [None]), ScopeInfo(ScopeSource.EXIR_DEBUG_HANDLE, [None])]


def to_program(graph: Graph, minimum_deployment_target: str) -> Program:
    """One graph as a program with the function `main` and its stored weights."""
    exported = torch.export.export(graph.eval(), graph.examples())
    # coremltools requires the dialect of `run_decompositions`, which traces a graph a second time, two fifths of the
    # whole conversion; only the dtype conversions of the pruner and of windows need it.
    if graph.changes_rows or graph.has_windows:
        exported = exported.run_decompositions({})
    else:
        exported._verifiers = [Verifier]
    inputs = [ct.TensorType(item["name"], item["shape"], np.dtype(item["dtype"]).type) for item in graph.inputs]
    outputs = [ct.TensorType(item["name"], dtype=np.dtype(item["dtype"]).type) for item in graph.outputs]
    with quiet():
        program = ct.convert(
            exported,
            convert_to="milinternal",
            inputs=inputs,
            outputs=outputs,
            minimum_deployment_target=getattr(ct.target, minimum_deployment_target),
            compute_precision=ct.precision.FLOAT32,  # leave the types as they are
            pass_pipeline=ct.PassPipeline.EMPTY,
        )
    weights = {}
    for name, path in exported.graph_signature.inputs_to_parameters.items():
        owner, _, attribute = path.rpartition(".")
        stored = getattr(graph.get_submodule(owner), "stored", None)
        if attribute == "weight" and stored is not None:
            weights[name] = stored
    put_weights(program.functions["main"], weights)
    for name in PACKAGE:
        PASS_REGISTRY[name](program)
    return program


@block_context_manager  # type: ignore[untyped-decorator]
def put_weights(block: Any, weights: dict[str, Stored]) -> None:
    """Replace constants by name; two that have the same stored weight become one."""
    found = [op for op in block.operations if op.op_type == "const" and op.name in weights]
    first, made = block.operations[0], {}
    for op in found:
        stored = weights[op.name]
        if id(stored) not in made:
            with mb.scope(*_NO_SOURCE):
                made[id(stored)] = _constant(stored, op, first)
        block.replace_uses_of_var_after_op(
            anchor_op=op, old_var=op.outputs[0], new_var=made[id(stored)], no_check_var_types=True
        )
    block.remove_ops(found)


def _constant(stored: Stored, placeholder: Operation, before: Operation) -> Any:
    """The stored weight in the placeholder's shape: a constant, or the operation that decodes one."""
    shape = placeholder.outputs[0].shape
    name = f"{placeholder.name}_stored"
    if stored.scale is None:
        return mb.const(val=stored.data.reshape(shape), name=name, before_op=before)
    blocks = *stored.scale.shape, *shape[2:]
    return mb.constexpr_blockwise_shift_scale(
        data=stored.data.reshape(shape),
        scale=stored.scale.reshape(blocks),
        offset=None if stored.offset is None else stored.offset.reshape(blocks),
        name=name,
        before_op=before,
    )


def merge(programs: dict[str, Program], default: str) -> Program:
    """One program with a function for each; equal constants of several functions share their bytes."""
    merged, known = Program(), dict[int, tuple[Any, str]]()
    for name, program in programs.items():
        merged.add_function(name, program.functions["main"])
        for op in program.functions["main"].operations:
            if op.op_type == "const" and isinstance(op.val.val, np.ndarray):
                op.weight_id = _content(op.val.val, known)
    merged.default_function_name = default
    merged.export_as_multifunction = True
    merged.skip_all_passes = True
    return merged


def _content(value: Any, known: dict[int, tuple[Any, str]]) -> str:
    """A key that is equal for equal arrays; `known` caches the keys of arrays that functions share."""
    if id(value) not in known:
        digest = hashlib.sha1(np.ascontiguousarray(value).tobytes()).hexdigest()
        known[id(value)] = value, f"{digest} {value.dtype.name} {value.shape}"
    return known[id(value)][1]


def save(
    merged: Program, path: Path, minimum_deployment_target: str, descriptions: dict[str, str], metadata: dict[str, str]
) -> None:
    """Write the package.

    Args:
        descriptions: of inputs and outputs, by their names or prefixes of these.
        metadata: author, license, version and short_description; all other keys are user-defined metadata.
    """
    version = getattr(ct.target, minimum_deployment_target)
    with quiet():
        model = mil_convert(
            merged,
            convert_from="milinternal",
            convert_to="mlprogram",
            specification_version=version,
            compute_units=ct.ComputeUnit.CPU_ONLY,  # for the model object, which is not run
            skip_model_load=True,
            main_pipeline=ct.PassPipeline.EMPTY,  # the passes have run; each validates the whole program
        )
        spec = model.get_spec()
        for function in spec.description.functions:
            for feature in (*function.input, *function.output):
                feature.shortDescription = _description(feature.name, descriptions)
        known = spec.description.metadata
        fields = {"author": "author", "license": "license", "version": "versionString"}
        for key, value in metadata.items():
            if key in fields or key == "short_description":
                setattr(known, fields.get(key, "shortDescription"), value)
            else:
                known.userDefined[key] = value
        ct.models.MLModel(spec, weights_dir=model.weights_dir, skip_model_load=True).save(str(path))
    _make_reproducible(path)


def _make_reproducible(package: Path) -> None:
    """Write again what coremltools writes differently each time: maps in any order, and random identifiers of files."""
    model, manifest = package / "Data/com.apple.CoreML/model.mlmodel", package / "Manifest.json"
    model.write_bytes(Model_pb2.Model.FromString(model.read_bytes()).SerializeToString(deterministic=True))
    found = json.loads(manifest.read_text(encoding="utf-8"))
    items = found["itemInfoEntries"]
    named = {old: str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])) for old, item in items.items()}
    found["itemInfoEntries"] = dict(sorted((named[old], item) for old, item in items.items()))
    found["rootModelIdentifier"] = named[found["rootModelIdentifier"]]
    # In coremltools' own format, because it writes the manifest again whenever it opens a package.
    manifest.write_text(json.dumps(found, indent=4) + "\n", encoding="utf-8")


def _description(name: str, descriptions: dict[str, str]) -> str:
    return next(text for begin, text in descriptions.items() if name == begin or name.startswith(f"{begin}_"))
