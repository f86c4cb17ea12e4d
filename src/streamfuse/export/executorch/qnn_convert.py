"""The conversion operator between float16 and 16-bit integers, which PyTorch does not have.

A tensor in a graph for Qualcomm's processor is float16, or has an integer encoding: a quantize and dequantize, in
float32, after the node that computes it. `convert` is inserted between the two kinds. In PyTorch it changes the dtype;
for Qualcomm's compiler it is Quantize or Dequantize, depending on the encodings of its input and output.
"""

from __future__ import annotations

from typing import Any

import executorch.backends.qualcomm.python.PyQnnManagerAdaptor as Adaptor
import torch
from executorch.backends.qualcomm.builders.node_visitor import NodeVisitor
from executorch.backends.qualcomm.builders.node_visitor_manager import register_node_visitor
from executorch.backends.qualcomm.builders.qnn_constants import (
    QNN_OP_PACKAGE_NAME_QTI_AISW,
    OpDequantize,
    OpQuantize,
)
from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ATTRS
from torch import Tensor


@torch.library.custom_op("streamfuse::qnn_convert", mutates_args=())
def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as float32, which has an encoding, or as float16, which has none."""
    return x.to(dtype, copy=True)


@convert.register_fake
def _(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


@register_node_visitor
class ConvertVisitor(NodeVisitor):  # type: ignore[misc]
    target = ("streamfuse.qnn_convert.default",)

    def define_node(self, node: torch.fx.Node, nodes_to_wrappers: dict[Any, Any]) -> object:
        source = self.get_node(node.args[0])
        kind = OpDequantize if source.meta.get(QCOM_QUANT_ATTRS) else OpQuantize
        wrappers = [
            self.define_tensor(
                n, node, self.get_tensor(n, node), Adaptor.Qnn_TensorType_t.QNN_TENSOR_TYPE_NATIVE, nodes_to_wrappers
            )
            for n in (source, node)
        ]
        operation = Adaptor.PyQnnOpWrapper(node.name, QNN_OP_PACKAGE_NAME_QTI_AISW, kind.op_name)
        operation.AddInputTensors(wrappers[:1])
        operation.AddOutputTensors(wrappers[1:])
        return operation
