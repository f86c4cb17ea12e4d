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
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import tiny
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError
from streamfuse.model.gguf import convert
from streamfuse.model.transformer import Transformer

Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
SPECIAL = ["<|im_start|>", "<|im_end|>"]
SIZES = {"hidden_size": 64, "intermediate_size": 96}  # multiples of the 32 weights of a quantized block
CONTROL, NORMAL = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
TEXTS = ["Hello there, 12345!", "<|im_start|>user\nschön 漢字\t x<|im_end|>", "  two  spaces\n\n", "I'm 3.5 µm"]


def byte_level_tokenizer() -> Tokenizer:
    """What SmolLM2's tokenizer is, with a vocabulary of bytes and four merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "t")]
    tokens = [*SPECIAL, *letters, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return tokenizer


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """As convert_hf_to_gguf.py of llama.cpp stores q and k of the llama architecture."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


class Source:
    """A tiny model and the GGUF that llama.cpp's converter would make of it."""

    def __init__(self, architecture: str = "llama", tied: bool = True, **config: Any) -> None:
        self.architecture = architecture
        self.tokenizer = byte_level_tokenizer()
        hf_name = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[architecture]
        self.model = tiny.base(
            architectures=[hf_name],
            vocab_size=self.tokenizer.get_vocab_size(),
            tie_word_embeddings=tied,
            **{**SIZES, **config},
        )
        self.skip: set[str] = set()  # fields to leave out
        self.fields: dict[str, Any] = {}  # strings and floats to add
        self.pre = "smollm"

    def write(self, path: Path, kinds: dict[str, Any] | None = None) -> Path:
        """kinds: GGUF tensor name -> quantization type; float32 where none is given."""
        writer = gguf.GGUFWriter(path, self.architecture)
        config = self.model.config
        for name, add, value in (
            ("embedding_length", writer.add_embedding_length, config.hidden_size),
            ("feed_forward_length", writer.add_feed_forward_length, config.intermediate_size),
            ("block_count", writer.add_block_count, config.num_layers),
            ("head_count", writer.add_head_count, config.num_heads),
            ("head_count_kv", writer.add_head_count_kv, config.num_kv_heads),
            ("rms_eps", writer.add_layer_norm_rms_eps, config.rms_norm_eps),
            ("freq_base", writer.add_rope_freq_base, config.rope_theta),
            ("context_length", writer.add_context_length, config.max_position_embeddings),
            ("tokenizer", writer.add_tokenizer_model, "gpt2"),
            ("pre", writer.add_tokenizer_pre, self.pre),
            ("bos", writer.add_bos_token_id, 0),
            ("eos", writer.add_eos_token_id, 1),
            ("template", writer.add_chat_template, "{{ messages }}"),
        ):
            if name not in self.skip:
                add(value)
        self._write_tokens(writer)
        for name, value in self.fields.items():
            {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool}[type(value)](name, value)
        for name, weight in gguf_tensors(self.model, self.architecture).items():
            kind = (kinds or {}).get(name)
            if name not in self.skip:
                writer.add_tensor(name, weight if kind is None else gguf.quants.quantize(weight, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _write_tokens(self, writer: gguf.GGUFWriter) -> None:
        model = json.loads(self.tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL if token in SPECIAL else NORMAL for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])


def gguf_tensors(model: Transformer, architecture: str) -> dict[str, np.ndarray]:
    names = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    heads = {"attn_q": model.config.num_heads, "attn_k": model.config.num_kv_heads}
    out = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        owner, kind = name.rsplit(".", 1)
        weight = value.numpy().copy()
        if owner.startswith("layers."):
            _, layer, part = owner.split(".", 2)
            if architecture == "llama" and names[part] in heads:
                weight = permute(weight, heads[names[part]])
            out[f"blk.{layer}.{names[part]}.{kind}"] = weight
        else:
            out[f"{top[owner]}.{kind}"] = weight
    return out


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


def test_linear_rope_scaling_is_carried_over(tmp_path: Path) -> None:
    source = Source()
    source.fields |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.rope_scaling == {"rope_type": "linear", "factor": 4.0}


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
