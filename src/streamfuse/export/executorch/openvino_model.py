"""Compiles a method to an OpenVINO model, which the delegate loads."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
from torch.export import ExportedProgram

from streamfuse.extras import silence_openvino
from streamfuse.options import OptionError

from .modules import LoweringError

silence_openvino()

import openvino as ov  # noqa: E402
from openvino.frontend import FrontEndManager  # noqa: E402
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder  # noqa: E402
from openvino.properties import hint  # noqa: E402

RELEASE = "2025.4"  # the only supported release of compiled models; kernels/engine/openvino.cpp has the same
_MASK = bytes((0x30, 0x60, 0x70, 0x02, 0x04, 0x08, 0x3F, 0x6F, 0x72, 0x74, 0x78, 0x7F))  # XOR mask of compiled graphs
_FLOATS = ("f16", "bf16")  # lower precisions that a CPU may choose instead of float32


def release() -> str:
    """For example 2025.4.1."""
    version: str = ov.__version__
    return version.partition("-")[0]


def check_device(device: str) -> None:
    """OptionError if another release of OpenVINO is installed, or it finds no such device on this machine."""
    if not release().startswith(f"{RELEASE}."):
        raise OptionError(
            f"--backend openvino needs OpenVINO {RELEASE}, but {release()} is installed: "
            "pip install 'streamfuse[openvino]'"
        )
    found = ov.Core().available_devices
    if device not in {name.partition(".")[0] for name in found}:
        raise OptionError(
            f"--device {device.lower()} was not found: OpenVINO compiles on the exporting machine, which has "
            f"{', '.join(name.lower() for name in found) or 'no OpenVINO device'}"
        )


def compiled(name: str, program: ExportedProgram, device: str) -> bytes:
    """The program as the device's plug-in loads it. On a CPU it computes in float32.

    Raises:
        LoweringError: OpenVINO does not support an operator, or its file format is unexpected.
    """
    try:
        model = _converted(program)
        if device == "CPU":
            return _in_float32(name, model)
        made = ov.Core().compile_model(model, device, {hint.inference_precision: ov.Type.f16})
        blob: bytes = made.export_model().getvalue()
    except RuntimeError as error:
        raise LoweringError(f"{name}: OpenVINO cannot convert it: {error}") from error
    return blob


def _converted(program: ExportedProgram) -> ov.Model:
    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchFXPythonDecoder(program.module())  # kept in a variable, because the frontend does not keep it alive
    model = frontend.convert(frontend.load(decoder))
    places = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    kinds = {"torch.float32": ov.Type.f32, "torch.int32": ov.Type.i32}
    for place, node in zip(model.inputs, places, strict=True):
        value = node.meta["val"]
        place.get_node().set_element_type(kinds[str(value.dtype)])
        place.get_node().set_partial_shape(ov.PartialShape(list(value.shape)))
    model.validate_nodes_and_infer_types()
    for node in model.get_ops():
        if isinstance(node, ov.op.Constant) and node.get_element_type() == ov.Type.u8:
            _replace_by_nibbles(node)
    # Do not quantize activations for integer weights. Unlike the precision, this is stored in a compiled model.
    model.set_rt_info("0", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    return model


def _replace_by_nibbles(node: ov.op.Constant) -> None:
    """Replace a constant of integers from 0 to 15 by a 4-bit constant."""
    values = node.data
    flat = values.reshape(-1, 2)
    tensor = ov.Tensor(flat[:, 0] | flat[:, 1] << 4, values.shape, ov.Type.u4)
    node.output(0).replace(ov.op.Constant(tensor, shared_memory=False).output(0))


def _in_float32(name: str, model: ov.Model) -> bytes:
    """Compile for a CPU, to compute in float32 on every CPU.

    The plug-in does not store the precision in a compiled model and chooses it again when it loads one: bfloat16 if the
    CPU supports it, except for operators that are marked as precise. So all operators are marked, in the hook with
    which OpenVINO encrypts the compiled graph: marks set before compilation are lost when operators are fused.
    """
    core = ov.Core()
    options = {hint.inference_precision: ov.Type.f32, "CACHE_ENCRYPTION_CALLBACKS": [_encrypted, _masked]}
    blob: bytes = core.compile_model(model, "CPU", options).export_model().getvalue()
    try:
        operators = core.import_model(blob, "CPU").get_runtime_model().get_ops()  # as the delegate loads it
    except RuntimeError as error:
        raise LoweringError(f"{name}: OpenVINO {release()} does not load its own compiled model: {error}") from error
    narrow = [node for node in operators if node.get_rt_info()["runtimePrecision"].astype(str) in _FLOATS]
    if narrow:
        raise LoweringError(
            f"{name}: OpenVINO {release()} would not compute {narrow[0].get_friendly_name()} in float32"
        )
    return blob


def _encrypted(graph: bytes) -> bytes:
    """A graph with its operators marked, under the mask that the plug-in expects by default."""
    root = ElementTree.fromstring(graph)
    for layer in root.findall("layers/layer"):
        info = layer.find("rt_info")
        if info is None:
            info = ElementTree.Element("rt_info")
            layer.insert(0 if layer.find("data") is None else 1, info)
        if info.find("attribute[@name='precise']") is None:
            ElementTree.SubElement(info, "attribute", name="precise", version="0")
    return _masked(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _masked(graph: bytes) -> bytes:
    """Apply the mask, or remove it."""
    values = np.frombuffer(graph, np.uint8)
    return (values ^ np.resize(np.frombuffer(_MASK, np.uint8), len(values))).tobytes()
