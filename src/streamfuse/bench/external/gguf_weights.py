"""The weights of a bundle as a GGUF, for llama.cpp.

A bundle of a GGUF whose base is not tuned has that file's weights. An adapter that tunes the base is merged into them,
and each matrix that it changes is quantized once, on the grid that the exporter uses (`export/grid.py`): the weights of
a bundle that merges it too, and close to those of one that keeps it apart.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamfuse.bench.shared.systems import ExternalSystemError
from streamfuse.bundle import Manifest
from streamfuse.digest import stamp_of
from streamfuse.model.gguf import PERMUTED, ROPE_FACTORS, permute, tensor_name

if TYPE_CHECKING:
    from torch import Tensor

Bytes = npt.NDArray[np.uint8]

_QUERY_KEY = ("attn_q", "attn_k")  # stored for interleaved rotary embedding in some architectures


def gguf_of(checkpoint: Path, manifest: Manifest) -> Path:
    """The GGUF that a checkpoint folder was made of.

    Raises:
        ExternalSystemError: it was made of something else, the file is gone, or the bundle has other weights.
    """
    source_file = checkpoint / "source.json"
    source: dict[str, Any] = json.loads(source_file.read_text(encoding="utf-8")) if source_file.is_file() else {}
    path = checkpoint / str(source.get("path", source.get("file", "")))
    if source.get("kind") != "gguf" or not path.is_file():
        raise ExternalSystemError(f"{checkpoint}: was not made of a GGUF that is still there; name one with --gguf")
    if source["sha256"] not in manifest.model.source:
        raise ExternalSystemError(f"{path}: the bundle was exported from other weights; name their GGUF with --gguf")
    return path


def merged_gguf(source: Path, checkpoint: Path, adapter: Path, folder: Path) -> Path:
    """`source` with an adapter's changes of the base merged, written to `folder` once; `source` where it changes none.

    Raises:
        CheckpointError, ExternalSystemError: as `write_merged_gguf`.
    """
    from streamfuse.model.checkpoint import adapter_digest, read_adapter

    if not read_adapter(adapter)[0].base_rank:
        return source
    out = folder / f"{source.stem}-{stamp_of(source)}-{adapter.stem}-{adapter_digest(adapter)}.gguf"
    if out.is_file():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        temporary = Path(staging) / out.name
        write_merged_gguf(source, checkpoint, adapter, temporary)
        temporary.replace(out)
    return out


def write_merged_gguf(source: Path, checkpoint: Path, adapter: Path, out: Path) -> None:
    """`source` with an adapter's changes of the base merged.

    Args:
        checkpoint: what `source` holds, or only its first layers (a draft model); the file then
            has no more layers either.

    Raises:
        CheckpointError: the checkpoint or the adapter cannot be used.
        ExternalSystemError: a tensor that changes has a type that is not Q4_1, Q8_0 or a float type.
    """
    from streamfuse.model.checkpoint import load_base, load_stream_fused
    from streamfuse.model.families import to_checkpoint

    base = load_base(checkpoint)
    tuned = load_stream_fused(base, adapter).base
    # A GGUF has its matrices as a checkpoint has them, some of them fused.
    before, after = (to_checkpoint(model.state_dict(), base.config) for model in (base, tuned))
    changed = {name: value for name, value in after.items() if not value.equal(before[name])}
    _rewrite(source, out, changed, base.config.num_layers)


def _rewrite(source: Path, out: Path, changed: dict[str, Tensor], num_layers: int) -> None:
    """Copy a GGUF and its metadata; tensors in `changed` (Hugging Face names) keep their types, not their values.

    Layers from `num_layers` on are left out.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop("general.architecture").contents()
    if architecture == "qwen35" and changed:
        raise ExternalSystemError(f"{source}: an adapter cannot be merged into a GGUF with linear attention")
    writer = gguf.GGUFWriter(out, architecture)
    layers = fields[f"{architecture}.block_count"].contents()
    for name, field in fields.items():
        kind, item = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = num_layers if name == f"{architecture}.block_count" else field.contents()
        if isinstance(value, list) and name.startswith(f"{architecture}.") and len(value) == layers:
            value = value[:num_layers]  # of each layer
        writer.add_key_value(name, value, kind, sub_type=item)
    heads = dict(
        zip(
            _QUERY_KEY,
            (fields[f"{architecture}.attention.{key}"].contents() for key in ("head_count", "head_count_kv")),
            strict=True,
        )
    )
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= num_layers:
            continue
        data = tensor.data
        if tensor.name != ROPE_FACTORS and (name := tensor_name(tensor.name, architecture, source)) in changed:
            part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            num_heads = heads.get(part) if architecture in PERMUTED else None
            data = encode(changed[name], tensor.tensor_type.name, num_heads, f"{source}: tensor {tensor.name!r}")
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encode(weight: Tensor, kind: str, num_heads: int | None, place: str) -> npt.NDArray[Any]:
    """A matrix [N, K] in a GGUF's own layout: floats, or the bytes of each row's blocks."""
    import torch

    from streamfuse.export.integers import to_q4_1, to_q8_0

    encoded: npt.NDArray[Any]
    if kind in ("F32", "F16"):
        encoded = weight.float().numpy().astype(np.float32 if kind == "F32" else np.float16)
    elif kind == "Q4_1":
        grid = to_q4_1(weight)
        assert grid.m is not None
        encoded = _q4_1_blocks(grid.q.numpy(), grid.d.numpy(), grid.m.numpy())
    elif kind == "Q8_0":
        q8 = to_q8_0(weight)
        signed: Bytes = q8.q.view(torch.uint8).numpy()
        encoded = _blocks(q8.d.numpy(), signed.reshape(*q8.d.shape, 32))
    else:
        raise ExternalSystemError(f"{place} has the type {kind}; only floats, Q4_1 and Q8_0 can be merged")
    return encoded if num_heads is None else np.ascontiguousarray(permute(encoded, num_heads))


def _q4_1_blocks(q: Bytes, d: npt.NDArray[np.float16], m: npt.NDArray[np.float16]) -> Bytes:
    """ggml-common.h, block_q4_1: d, m, then the first 16 weights in low nibbles and the last 16 in high ones."""
    groups = q.reshape(*d.shape, 32)
    return _blocks(np.stack([d, m], axis=-1), groups[..., :16] | groups[..., 16:] << np.uint8(4))


def _blocks(scales: npt.NDArray[np.float16], weights: Bytes) -> Bytes:
    """Scales [N, groups] or [N, groups, n] before the weights' bytes [N, groups, b], one row of blocks per output."""
    rows, groups = weights.shape[:2]
    head = np.ascontiguousarray(scales).view(np.uint8).reshape(rows, groups, -1)
    blocks: Bytes = np.concatenate([head, weights], axis=-1).reshape(rows, -1)
    return blocks
