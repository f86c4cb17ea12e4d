"""The graph that commits in a provider's own memory: it copies accepted rows to their positions in the caches.

The caller binds each cache as both input and output, so that only these rows are written.
"""

from __future__ import annotations

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper
from streamfuse.runtime.backends.onnx_caches import targets_name

from ..weights import Weights
from .graph import OPSET


def commit_model(weights: Weights, float_type: int) -> onnx.ModelProto:
    """A model that copies `rows` of the layers below the top ones and `places` of the top layers, int64 [n], to
    `targets`, int64 [1, Hkv, n, 3]: the index of a row in a cache [1, Hkv, C, D] without the last dimension.

    There is an input `targets.{Hkv}x{C}` for each distinct shape of a cache.
    """
    lower, dim, whole = weights.num_lower_layers, weights.config.head_dim, TensorProto.INT64

    def tensor(name: str, kind: int, *shape: int | str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    heads_of = [weights.config.kv_heads_of(layer) for layer in range(weights.config.num_layers)]
    shapes = list(zip(heads_of, weights.cache_positions, strict=True))
    inputs = [tensor("rows", whole, "n"), tensor("places", whole, "n")]
    inputs += [tensor(targets_name(*shape), whole, 1, shape[0], "n", 3) for shape in dict.fromkeys(shapes)]
    outputs, nodes = list[ValueInfoProto](), list[NodeProto]()
    for layer, (heads, cache_size) in enumerate(shapes):
        which, count = ("rows", "R") if layer < lower else ("places", "K")
        for kind in ("key", "value"):
            past, new, cache = (f"{name}.{layer}.{kind}" for name in ("past_key_values", "present", "cache"))
            inputs += [
                tensor(past, float_type, 1, heads, cache_size, dim), tensor(new, float_type, 1, heads, count, dim)
            ]  # fmt: skip
            outputs.append(tensor(cache, float_type, 1, heads, cache_size, dim))
            nodes += [
                helper.make_node("Gather", [new, which], [f"{new}/taken"], f"{new}/Gather", axis=2),
                helper.make_node(
                    "ScatterND", [past, targets_name(heads, cache_size), f"{new}/taken"], [cache], f"{cache}/ScatterND"
                ),
            ]
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        helper.make_graph(nodes, "commit", inputs, outputs), opset_imports=opset, producer_name="streamfuse"
    )
    model.ir_version = helper.find_min_ir_version_for(opset)
    helper.set_model_props(model, {"streamfuse.method": "commit", "streamfuse.nodes": str(len(nodes))})
    return model
