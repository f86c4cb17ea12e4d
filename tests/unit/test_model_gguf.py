"""GGUF to a Hugging Face folder, on a tiny file written with the gguf package: weights to the bit, tokenizer, refusals.

Run: python -m pytest tests/unit/test_model_gguf.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from gguf_samples import SPECIAL, Source
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError
from streamfuse.model.gguf import convert

Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
TEXTS = ["Hello there, 12345!", "<|im_start|>user\nschön 漢字\t x<|im_end|>", "  two  spaces\n\n", "I'm 3.5 µm"]


@pytest.mark.parametrize(("architecture", "tied"), [("llama", True), ("llama", False), ("qwen2", True)])
def test_a_float32_gguf_gives_the_same_model(architecture: str, tied: bool, tmp_path: Path) -> None:
    source = Source(architecture, tied)
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = load_base(tmp_path / "hf")
    assert found.config.tie_word_embeddings is tied
    assert found.config.eos_token_ids == (1,)
    expected = source.model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())


def test_quantized_weights_are_the_formats_own_values(tmp_path: Path) -> None:
    source = Source()
    kinds = {
        "blk.0.attn_q.weight": Q4_1,
        "blk.1.attn_k.weight": Q8_0,
        "blk.2.ffn_down.weight": Q4_1,
        "token_embd.weight": Q8_0,
    }
    convert(source.write(tmp_path / "m.gguf", kinds), tmp_path / "hf")
    found = load_file(tmp_path / "hf" / "model.safetensors")
    names = ["layers.0.self_attn.q_proj", "layers.1.self_attn.k_proj", "layers.2.mlp.down_proj", "embed_tokens"]
    for name, kind in zip(names, kinds.values(), strict=True):
        weight = source.model.state_dict()[f"{name}.weight"].numpy()
        # Blocks lie within rows, so that permuting rows and quantizing them commute.
        expected = by_the_book(gguf.quants.quantize(weight, kind), kind)
        assert np.array_equal(found[f"model.{name}.weight"].numpy(), expected), name


def by_the_book(data: np.ndarray, kind: Any) -> np.ndarray:
    """Blocks of 32 weights by ggml's definition: Q4_1 is d * q + m of 4-bit q, Q8_0 is d * q of int8 q."""
    blocks = data.reshape(-1, 20 if kind == Q4_1 else 34)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == Q8_0:
        values = scale * blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    else:
        offset = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
        packed = blocks[:, 4:]
        values = scale * np.concatenate([packed & 15, packed >> 4], 1).astype(np.float32) + offset
    return values.reshape(data.shape[0], -1)


def test_the_tokenizer_is_the_same(tmp_path: Path) -> None:
    source = Source()
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.get_vocab() == source.tokenizer.get_vocab()
    for text in TEXTS:
        ids = source.tokenizer.encode(text).ids
        assert found.encode(text).ids == ids
        assert found.decode(ids, skip_special_tokens=False) == source.tokenizer.decode(ids, skip_special_tokens=False)
    settings = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"], settings["chat_template"]) == (*SPECIAL, "{{ messages }}")


def test_a_begin_token_is_added_where_the_file_asks_for_it(tmp_path: Path) -> None:
    source = Source()
    source.fields["tokenizer.ggml.add_bos_token"] = True
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.encode("hell").ids == [0, *source.tokenizer.encode("hell").ids]
    assert found.encode("hell", add_special_tokens=False).ids == source.tokenizer.encode("hell").ids


@pytest.mark.parametrize(("said", "adds"), [(None, True), (False, False)])
def test_llama_3_begins_with_a_token_where_the_file_says_nothing(said: bool | None, adds: bool, tmp_path: Path) -> None:
    source = Source()
    source.pre = "llama-bpe"
    source.fields |= {} if said is None else {"tokenizer.ggml.add_bos_token": said}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.encode("hell").ids == [0] * adds + found.encode("hell", add_special_tokens=False).ids
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["add_bos_token"] == adds


def test_linear_rope_scaling_is_carried_over(tmp_path: Path) -> None:
    source = Source()
    source.fields |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.rope_scaling == {"rope_type": "linear", "factor": 4.0}


LLAMA_3_2 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama_3_factors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """As convert_hf_to_gguf.py of llama.cpp computes them, in float32."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        factors.append(1 if wavelength < 8192 / 4 else factor if wavelength > 8192 else
                       1 / ((1 - smooth) / factor + smooth))  # fmt: skip
    return np.array(factors, np.float32)


def test_the_factors_of_llama_3_are_a_rope_scaling(tmp_path: Path) -> None:
    source = Source(rope_theta=500000.0, rope_scaling=LLAMA_3_2, num_attention_heads=2, num_key_value_heads=1)
    factors = llama_3_factors(500000.0, 32, 32.0)
    assert len(set(factors)) > 2, "no frequency is on the ramp"
    source.tensors["rope_freqs.weight"] = factors
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = load_base(tmp_path / "hf")
    assert found.config.rope_scaling == LLAMA_3_2
    ids = torch.arange(20)[None]
    assert torch.equal(found(ids), source.model(ids))


def test_factors_that_change_nothing_are_no_scaling(tmp_path: Path) -> None:
    source = Source()
    source.tensors["rope_freqs.weight"] = np.ones(8, np.float32)
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.rope_scaling is None


@pytest.mark.parametrize("factors", [[1, 1, 1, 1, 1, 2, 4, 8], [1, 1, 1, 1], [0] * 8, [np.nan] * 8, [np.inf] * 8])
def test_other_factors_are_refused(factors: list[float], tmp_path: Path) -> None:
    source = Source()
    source.tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    with pytest.raises(
        CheckpointError, match=r"m\.gguf: rope_freqs\.weight has factors that no supported RoPE scaling"
    ):
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("skip", "fields", "words"),
    [
        ({"eos"}, {}, "field 'tokenizer.ggml.eos_token_id' is missing"),
        ({"head_count"}, {}, "field 'llama.attention.head_count' is missing"),
        ({"token_embd.weight"}, {}, "tensor 'token_embd.weight' is missing"),
        (set(), {"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"pre"}, {"tokenizer.ggml.pre": "falcon"}, "tokenizer.ggml.pre 'falcon' is not supported"),
        ({"tokenizer"}, {"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model 'llama' is not supported"),
    ],
)
def test_what_is_not_supported_is_named(skip: set[str], fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = Source()
    source.skip, source.fields = skip, fields
    with pytest.raises(CheckpointError, match=words) as caught:
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert "m.gguf" in str(caught.value)
    assert not (tmp_path / "hf").exists()


def test_other_architectures_and_files_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="architecture 'mamba' is not one of llama, qwen2, qwen3"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(CheckpointError, match="not a readable GGUF file"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
    (tmp_path / "m.gguf").write_bytes(b"nothing of the kind, but long enough")
    with pytest.raises(CheckpointError, match="not a readable GGUF file"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
