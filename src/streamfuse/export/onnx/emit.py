"""Writes methods to .onnx files, with one weights file that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from streamfuse.runtime.backends.onnx_providers import CPU, PROVIDERS

from ..facts import row_facts
from ..graphs import Method, Streams, Verify, example_inputs, input_names
from ..weights import Weights
from .commit import commit_model
from .graph import CONTRIB, Graph, Value, WeightsFile
from .record import Names, record
from .rules import heads_first

WEIGHTS_FILE, COMMIT_FILE = "weights.bin", "commit.onnx"
_DESCRIPTIONS = {
    "input_ids": "token per row; padding rows hold 0",
    "position_ids": "absolute position per row; padding rows hold 0",
    "ancestors": "ancestors[i, j]: row i attends to row j; every row to itself, a padding row to none",
    "cache_length": "number of valid positions in the caches",
    "hidden": "states below the top layers: of all kept nodes as an output, of the last accepted one as an input",
    "next_token": "the token after the node of the hidden state, which its streams are told",
    "logits": "of the next token, per kept row",
    "best": "the most probable next token per kept row, the smaller id of equal ones",
    "kept": "rows that survived the pruner; padding last",
    "stream_ids": "candidates per node and stream, best first",
    "stream_log_probs": "their natural log-probabilities under the stream's own softmax",
}


def write_models(
    weights: Weights,
    methods: Mapping[str, Method],
    folder: Path,
    dtype: str,
    progress: Callable[[str], None],
    provider: str = CPU,
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Write METHOD.onnx for each method, and weights.bin, for an execution provider of ONNX Runtime.

    Returns each method's fields of the manifest, and the bytes of each tensor in weights.bin.

    Raises:
        UnsupportedOperator: a method has an operator that rules.py does not support.
    """
    facts = {}
    with WeightsFile(folder / WEIGHTS_FILE) as file:
        for name, method in methods.items():
            progress(f"{name}: graph")
            model = _model(weights, name, method, Graph(file, provider), dtype)
            onnx.save(model, folder / f"{name}.onnx")
            facts[name] = _facts(method, model)
    if PROVIDERS[provider].device:
        onnx.save(commit_model(weights, _float_type(dtype)), folder / COMMIT_FILE)
    return facts, file.stored


def contrib_operators(folder: Path) -> list[str]:
    """The operators outside the ONNX standard that the graphs in a folder use."""
    graphs = [onnx.load(path, load_external_data=False).graph for path in sorted(folder.glob("*.onnx"))]
    return sorted({f"{CONTRIB}::{n.op_type}" for graph in graphs for n in graph.node if n.domain == CONTRIB})


def _model(weights: Weights, name: str, method: Method, graph: Graph, dtype: str) -> onnx.ModelProto:
    float_type = _float_type(dtype)
    examples = (tensor.to("meta") for tensor in example_inputs(weights, method))
    inputs = dict(zip(input_names(weights, method), examples, strict=True))
    bound = {key: _input(graph, key, tensor, float_type) for key, tensor in inputs.items() if key != "want_logits"}
    values = record(method, inputs, bound, graph, Names(weights, method), float_type)
    outputs = {}
    for output, value in zip(_output_names(weights, method), values, strict=True):
        if value.dtype == TensorProto.INT32:
            value = graph.cast(value, TensorProto.INT64)
        outputs[output] = heads_first(graph, value) if output.startswith("present") else value
    streams = weights.streams_config
    metadata = {
        "streamfuse.method": name,
        "streamfuse.num_layers": weights.config.num_layers,
        "streamfuse.num_msa_layers": streams.num_msa_layers,
        "streamfuse.num_streams": streams.num_streams,
        "streamfuse.top_k": weights.shapes.top_k,
    }
    if weights.ring_window is not None:
        metadata["streamfuse.sliding_window"] = weights.ring_window
    return graph.model(name, outputs, _describe, {key: str(value) for key, value in metadata.items()})


def _float_type(dtype: str) -> int:
    return TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT


def _input(graph: Graph, name: str, tensor: Any, float_type: int) -> Value:
    kind, _, rest = name.partition("_cache_")
    if rest:
        cache_size, kv_heads, dim = tensor.shape
        return graph.input(f"past_key_values.{rest}.{kind}", float_type, 1, kv_heads, cache_size, dim)
    types = {"ancestors": TensorProto.BOOL, "hidden": float_type}
    return graph.input(name, types.get(name, TensorProto.INT64), *tensor.shape)


def _output_names(weights: Weights, method: Method) -> list[str]:
    """In the order of the modules' outputs (graphs.py)."""
    streams = ["stream_ids", "stream_log_probs"]
    if isinstance(method, Streams):
        return streams
    names = [] if method.head is None else ["logits", "best"]
    if isinstance(method, Verify):
        names += ["kept", *(streams if method.carrying else [])]
    names += [f"present.{i}.{kind}" for i in range(weights.config.num_layers) for kind in ("key", "value")]
    return names + (["hidden"] if method.gives_hidden else [])


def _describe(name: str) -> str:
    if name.startswith("past"):
        what = "keys after rotary embedding, values, or half of the channels that a convolution reads"
        return f"cache of {what}; position t is at t modulo its size, and only positions below cache_length are read"
    if name.startswith("present"):
        return "the new rows only; the caller copies the accepted ones into its cache"
    return _DESCRIPTIONS[name]


def _facts(method: Method, model: onnx.ModelProto) -> dict[str, Any]:
    inputs, outputs = ([_tensor(info) for info in infos] for infos in (model.graph.input, model.graph.output))
    return {**row_facts(method), "inputs": inputs, "outputs": outputs}


def _tensor(info: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = info.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return {"name": info.name, "dtype": dtype, "shape": [dim.dim_value for dim in kind.shape.dim]}
