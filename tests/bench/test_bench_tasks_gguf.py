"""The GGUF that llama.cpp gets of a tuned model: untouched bytes where nothing changed, the exporter's grid elsewhere.

Run: python -m pytest tests/bench/test_bench_tasks_gguf.py
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gguf
import gguf_samples
import numpy as np
import pytest
import tiny
import torch
from bundle_samples import edit_manifest, write_bundle

from streamfuse.bench.external.child import Child
from streamfuse.bench.external.gguf_weights import encode, gguf_of, merged_gguf, write_merged_gguf
from streamfuse.bench.external.llama_cpp import QUANTIZATIONS, kinds_of, quantized
from streamfuse.bench.shared.systems import ExternalSystemError
from streamfuse.bundle import open_bundle
from streamfuse.export.integers import to_q4_1, to_q8_0
from streamfuse.model.checkpoint import load_base, load_stream_fused, save_adapter
from streamfuse.model.families import to_checkpoint
from streamfuse.model.gguf import convert, permute, tensor_name
from streamfuse.research.first_layers import write_first_layers

Q4_1, Q8_0, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32"))
SIZES = {"hidden_size": 64, "intermediate_size": 96}
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
HEADS = {"attn_q": 4, "attn_k": 2}


class Source:
    """A checkpoint folder, the GGUF that it says it was made of, and an adapter that tunes its top layers."""

    def __init__(self, folder: Path, **streams: Any) -> None:
        torch.manual_seed(0)
        model = tiny.base(**SIZES)
        self.gguf = folder / "tiny.gguf"
        writer = gguf.GGUFWriter(self.gguf, "llama")
        writer.add_name("tiny")
        writer.add_block_count(4)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        state = dict(model.state_dict())
        for name, hf_name in {
            "token_embd": "embed_tokens", "output_norm": "norm",
            **{f"blk.{i}.{ours}": f"layers.{i}.{theirs}" for i in range(4) for ours, theirs in LAYER.items()},
        }.items():  # fmt: skip
            kind = F32 if "norm" in name else Q8_0 if name == "token_embd" else Q4_1
            data = gguf.quants.quantize(state[f"{hf_name}.weight"].numpy(), kind)
            with torch.no_grad():  # the checkpoint holds what the file holds
                state[f"{hf_name}.weight"].copy_(torch.from_numpy(gguf.quants.dequantize(data, kind)))
            part = name.split(".")[-1]
            writer.add_tensor(f"{name}.weight", permute(data, HEADS[part]) if part in HEADS else data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        self.checkpoint = tiny.write_base(folder / "checkpoint", model, **SIZES)
        self.sha256 = hashlib.sha256(self.gguf.read_bytes()).hexdigest()
        facts = {"kind": "gguf", "path": "../tiny.gguf", "sha256": self.sha256}
        (self.checkpoint / "source.json").write_text(json.dumps(facts))
        self.adapter = folder / "tuned.safetensors"
        save_adapter(tiny.fused(model, **streams), self.adapter)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path, base_rank=2, base_layers=2)


def test_changed_matrices_lie_on_the_exporters_grid_and_the_rest_is_untouched(source: Source, tmp_path: Path) -> None:
    out = merged_gguf(source.gguf, source.checkpoint, source.adapter, tmp_path / "llama.cpp")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source.gguf).tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    merged = load_stream_fused(load_base(source.checkpoint), source.adapter).base.state_dict()
    assert list(after) == list(before)
    changed = 0
    for name, tensor in after.items():
        assert tensor.tensor_type == before[name].tensor_type
        if name.startswith(("blk.2.", "blk.3.")) and "norm" not in name:
            changed += 1
            weight = merged[tensor_name(name, "llama", out).removeprefix("model.")]
            expected = to_q4_1(weight).dequantized().numpy()
            part = name.split(".")[2]
            found = gguf.quants.dequantize(tensor.data, Q4_1)
            np.testing.assert_array_equal(found, permute(expected, HEADS[part]) if part in HEADS else expected)
        else:
            np.testing.assert_array_equal(tensor.data, before[name].data)
    assert changed == 14


def test_fused_matrices_are_merged_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = gguf_samples.Source("phi3")
    file, checkpoint, adapter = made.write(tmp_path / "phi.gguf"), tmp_path / "hf", tmp_path / "tuned.safetensors"
    convert(file, checkpoint)
    base = load_base(checkpoint)
    save_adapter(tiny.fused(base, base_rank=2, base_layers=1), adapter)
    out = tmp_path / "merged.gguf"
    write_merged_gguf(file, checkpoint, adapter, out)
    expected = to_checkpoint(load_stream_fused(base, adapter).base.state_dict(), base.config)
    before = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
    changed = set()
    for tensor in gguf.GGUFReader(out).tensors:
        np.testing.assert_array_equal(tensor.data, expected[tensor_name(tensor.name, "phi3", out)].numpy())
        changed |= set() if np.array_equal(tensor.data, before[tensor.name]) else {tensor.name}
    assert changed == {f"blk.3.{part}.weight" for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}


def test_metadata_is_carried_over(source: Source, tmp_path: Path) -> None:
    out = merged_gguf(source.gguf, source.checkpoint, source.adapter, tmp_path / "llama.cpp")
    before, after = (gguf.GGUFReader(path).fields for path in (source.gguf, out))
    assert {name: field.contents() for name, field in after.items() if not name.startswith("GGUF.")} == {
        name: field.contents() for name, field in before.items() if not name.startswith("GGUF.")
    }


def test_a_draft_model_is_the_first_layers_with_its_adapter_merged(source: Source, tmp_path: Path) -> None:
    small = tmp_path / "small"
    write_first_layers(source.checkpoint, 2, small)
    adapter = tmp_path / "draft.safetensors"
    save_adapter(tiny.fused(load_base(small), base_rank=2, base_layers=1), adapter)
    out = tmp_path / "draft.gguf"
    write_merged_gguf(source.gguf, small, adapter, out)
    reader = gguf.GGUFReader(out)
    assert reader.fields["llama.block_count"].contents() == 2
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source.gguf).tensors}
    after = {tensor.name: tensor for tensor in reader.tensors}
    assert list(after) == [name for name in before if not name.startswith(("blk.2.", "blk.3."))]
    merged = load_stream_fused(load_base(small), adapter).base.state_dict()
    for name, tensor in after.items():
        if name.startswith("blk.1.ffn_") and "norm" not in name:
            expected = to_q4_1(merged[tensor_name(name, "llama", out).removeprefix("model.")]).dequantized().numpy()
            np.testing.assert_array_equal(gguf.quants.dequantize(tensor.data, Q4_1), expected)
            assert not np.array_equal(tensor.data, before[name].data)
        elif not name.startswith("blk.1."):
            np.testing.assert_array_equal(tensor.data, before[name].data)


def test_a_q8_0_matrix_is_written_in_its_own_blocks() -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    found = gguf.quants.dequantize(encode(weight, "Q8_0", None, "here"), Q8_0)
    np.testing.assert_array_equal(found, to_q8_0(weight).dequantized().numpy())
    with pytest.raises(ExternalSystemError, match="Q2_K"):
        encode(weight, "Q2_K", None, "here")


def test_the_merged_gguf_is_written_once_per_adapter_content(source: Source, tmp_path: Path) -> None:
    out = merged_gguf(source.gguf, source.checkpoint, source.adapter, tmp_path / "llama.cpp")
    written, weights = out.stat().st_mtime_ns, out.read_bytes()
    assert merged_gguf(source.gguf, source.checkpoint, source.adapter, tmp_path / "llama.cpp") == out
    assert out.stat().st_mtime_ns == written
    other = tmp_path / "other" / source.adapter.name
    other.parent.mkdir()
    torch.manual_seed(1)
    save_adapter(tiny.fused(load_base(source.checkpoint), base_rank=2, base_layers=2), other)
    older = source.gguf.stat().st_mtime - 10
    os.utime(other, (older, older))
    assert merged_gguf(source.gguf, source.checkpoint, other, tmp_path / "llama.cpp").read_bytes() != weights
    assert out.read_bytes() == weights


class Quantizer(Child):
    """Quantizes to the bytes that it reads."""

    def run(self, function: str, /, **arguments: Any) -> None:
        Path(arguments["out"]).write_bytes(Path(arguments["source"]).read_bytes())


def test_another_gguf_of_the_same_name_is_quantized_for_itself(source: Source, tmp_path: Path) -> None:
    other = tmp_path / "other" / source.gguf.name
    other.parent.mkdir()
    other.write_bytes(source.gguf.read_bytes()[:-1] + b"\1")
    older = source.gguf.stat().st_mtime - 10
    os.utime(other, (older, older))
    for one in (source.gguf, other, source.gguf):
        found = quantized(Quantizer("fake"), one, "Q8_0", tmp_path / "llama.cpp")
        assert found.read_bytes() == one.read_bytes()
    assert len(list((tmp_path / "llama.cpp").iterdir())) == 2, "each is made once"


def test_a_lossless_adapter_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    source = Source(tmp_path)
    assert merged_gguf(source.gguf, source.checkpoint, source.adapter, tmp_path / "llama.cpp") == source.gguf


def test_the_bundles_own_gguf_is_found_by_its_hash(source: Source, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "demo")
    with pytest.raises(ExternalSystemError, match="--gguf"):
        gguf_of(source.checkpoint, open_bundle(bundle).manifest)
    edit_manifest(bundle, lambda m: m["model"].update(source=f"gguf: tiny.gguf sha256 {source.sha256}"))
    assert gguf_of(source.checkpoint, open_bundle(bundle).manifest).samefile(source.gguf)
    source.gguf.unlink()
    with pytest.raises(ExternalSystemError, match="--gguf"):
        gguf_of(source.checkpoint, open_bundle(bundle).manifest)


def test_a_file_that_has_the_quantization_already_is_taken_as_it_is(source: Source, tmp_path: Path) -> None:
    assert quantized(Child("unused"), source.gguf, "Q4_1", tmp_path / "llama.cpp") == source.gguf


def test_a_damaged_gguf_is_named_as_by_pull(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes([3]) + bytes(5))
    with pytest.raises(
        ExternalSystemError, match=r"incomplete or damaged \(\d+ bytes; .*\); copy or download it again"
    ):
        kinds_of(tmp_path / "m.gguf")


# 999: a type of a llama.cpp that is newer than gguf-py
@pytest.mark.parametrize("kind", ["MOSTLY_Q4_K_M", "MOSTLY_Q4_0", "MOSTLY_F16", "ALL_F32", "GUESSED", 999])
def test_a_file_of_another_type_of_integers_runs_as_it_is_too(kind: str | int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_file_type(int(gguf.LlamaFileType[kind]) if isinstance(kind, str) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = kinds_of(tmp_path / "model.gguf")
    assert found == (("Q4_K_M", *QUANTIZATIONS) if kind == "MOSTLY_Q4_K_M" else QUANTIZATIONS)
    if kind == "MOSTLY_Q4_K_M":
        assert quantized(Child("unused"), tmp_path / "model.gguf", "Q4_K_M", tmp_path) == tmp_path / "model.gguf"
