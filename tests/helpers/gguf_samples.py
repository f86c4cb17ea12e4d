"""A tiny GGUF as llama.cpp's converter would write it, for tests of the conversion and of pulling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from streamfuse.model.config import ModelConfig
from streamfuse.model.families import to_checkpoint
from streamfuse.model.gguf_settings import ARCHITECTURES
from streamfuse.model.tokenizer_file import merges_of
from streamfuse.model.transformer import Transformer

SPECIAL = ["<|im_start|>", "<|im_end|>"]
SIZES = {"hidden_size": 64, "intermediate_size": 96}  # multiples of the 32 weights of a quantized block
PERMUTED = ("llama", "smollm3", "granite", "mistral3", "minicpm")
CONTROL, NORMAL = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
USER_DEFINED, BYTE = int(gguf.TokenType.USER_DEFINED), int(gguf.TokenType.BYTE)
GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]


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


def gemma_pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types as Gemma has them: turn tokens, runs of spaces and lines, bytes, letters, and pieces
    with scores, some of which can be merged in several ways."""
    runs = ["\n", "\n\n", "  ", "   "]
    letters = ["▁", *(chr(code) for code in range(0x21, 0x7F))]
    pieces = ["he", "ll", "▁t", "lo", "▁the", "hell", "ell", "▁he", "hello", "aa", "aaa", "aaaa", "▁a", "th", "ello"]
    bytes_ = [f"<0x{code:02X}>" for code in range(256)]
    tokens = [*GEMMA_SPECIAL, *runs, *bytes_, *pieces, *letters]
    known = {**dict.fromkeys(runs, USER_DEFINED), **dict.fromkeys(bytes_, BYTE)}
    types = [CONTROL if token in GEMMA_SPECIAL else known.get(token, NORMAL) for token in tokens]
    first = tokens.index(pieces[0])
    scores = [float(first - i) if its == NORMAL else -1000.0 for i, its in enumerate(types)]
    return tokens, scores, types


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """As convert_hf_to_gguf.py of llama.cpp stores q and k of the llama architecture."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


class Source:
    """A tiny model and the GGUF that llama.cpp's converter would make of it."""

    def __init__(self, architecture: str = "llama", tied: bool = True, hf_name: str = "", **config: Any) -> None:
        self.architecture = architecture
        self.tokenizer = byte_level_tokenizer()
        self.pieces = (
            gemma_pieces() if architecture in ("gemma3", "gemma4") else None
        )  # SentencePiece instead of the tokenizer
        hf_name = hf_name or ARCHITECTURES[architecture]
        vocab_size = len(self.pieces[0]) if self.pieces else self.tokenizer.get_vocab_size()
        sizes = {"vocab_size": vocab_size, **SIZES, **config}
        self.model = tiny.base(architectures=[hf_name], tie_word_embeddings=tied, **sizes)
        self.skip: set[str] = set()  # fields to leave out
        self.fields: dict[str, Any] = {}  # strings and floats to add
        self.tensors: dict[str, np.ndarray] = {}  # tensors to add
        self.packed: dict[str, tuple[np.ndarray, Any]] = {}  # bytes of tensors, and their types
        self.rms_eps: float | None = None  # that of the file, if it is not the model's
        self.pre = "smollm"

    def write(self, path: Path, kinds: dict[str, Any] | None = None) -> Path:
        """kinds: GGUF tensor name -> quantization type; float32 where none is given."""
        writer = gguf.GGUFWriter(path, self.architecture)
        config = self.model.config
        for name, add, value in (
            ("embedding_length", writer.add_embedding_length, config.hidden_size),
            ("feed_forward_length", writer.add_feed_forward_length, mlp_sizes_of(config)),
            ("block_count", writer.add_block_count, config.num_layers),
            ("head_count", writer.add_head_count, config.num_heads),
            ("head_count_kv", writer.add_head_count_kv, kv_heads_of(config)),
            ("rms_eps", writer.add_layer_norm_rms_eps, self.rms_eps or config.rms_norm_eps),
            ("freq_base", writer.add_rope_freq_base, config.rotaries[0].theta),
            ("context_length", writer.add_context_length, config.max_position_embeddings),
            ("tokenizer", writer.add_tokenizer_model, self._tokenizer_model()),
            ("pre", writer.add_tokenizer_pre, "default" if self.pieces else self.pre),
            ("bos", writer.add_bos_token_id, 2 if self.pieces else 0),
            ("eos", writer.add_eos_token_id, 1),
            ("template", writer.add_chat_template, "{{ messages }}"),
        ):
            if name not in self.skip:
                add(value)
        self._write_tokens(writer)
        for name, value in self.fields.items():
            adders = {
                str: writer.add_string,
                float: writer.add_float32,
                bool: writer.add_bool,
                int: writer.add_uint32,
                list: writer.add_array,
            }
            adders[type(value)](name, value)
        for name, weight in gguf_tensors(self.model, self.architecture).items():
            kind = (kinds or {}).get(name)
            if name in self.packed:
                writer.add_tensor(name, self.packed[name][0], raw_dtype=self.packed[name][1])
            elif name not in self.skip:
                writer.add_tensor(name, weight if kind is None else gguf.quants.quantize(weight, kind), raw_dtype=kind)
        for name, values in self.tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _tokenizer_model(self) -> str:
        if self.architecture == "gemma4":
            return "gemma4"
        return "llama" if self.pieces else "gpt2"

    def _write_tokens(self, writer: gguf.GGUFWriter) -> None:
        if self.pieces:
            tokens, scores, types = self.pieces
            writer.add_token_list(tokens)
            writer.add_token_scores(scores)
            writer.add_token_types(types)
            if self.architecture == "gemma4":
                scored = zip(tokens, scores, types, strict=True)
                merges = merges_of({token: score for token, score, its in scored if its == NORMAL})
                writer.add_token_merges([" ".join(merge) for merge in merges])
            return
        model = json.loads(self.tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL if token in SPECIAL else NORMAL for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])


def mlp_sizes_of(config: ModelConfig) -> int | list[int]:
    """Of each layer if they differ."""
    sizes = list(config.layer_mlp_sizes)
    return sizes if len(set(sizes)) > 1 else sizes[0]


def kv_heads_of(config: ModelConfig) -> int | list[int]:
    """Of each layer if some are convolutions, which have none."""
    if not any(config.layer_convolutions):
        return config.num_kv_heads
    return [0 if convolves else config.num_kv_heads for convolves in config.layer_convolutions]


def qwen35_tensors(model: Transformer) -> dict[str, np.ndarray]:
    """As convert_hf_to_gguf.py stores them: A, not its logarithm; norms with their offset; value heads in tiles."""
    sizes = model.config.delta
    assert sizes is not None
    names = {
        "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
        "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
        "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
        "linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
        "linear_attn.in_proj_a.weight": "ssm_alpha.weight", "linear_attn.in_proj_b.weight": "ssm_beta.weight",
        "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.norm.weight": "ssm_norm.weight",
        "linear_attn.out_proj.weight": "ssm_out.weight", "linear_attn.A_log": "ssm_a",
        "linear_attn.dt_bias": "ssm_dt.bias", "mlp.gate_proj.weight": "ffn_gate.weight",
        "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    }  # fmt: skip
    top = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    tiled = np.arange(sizes.value_heads).reshape(sizes.key_heads, -1).T.flatten()
    rows = (tiled[:, None] * sizes.value_dim + np.arange(sizes.value_dim)).flatten()
    joined = np.concatenate([np.arange(2 * sizes.keys), 2 * sizes.keys + rows])
    order = {"in_proj_qkv": joined, "conv1d": joined, "in_proj_z": rows, "norm": slice(None)}
    out = {}
    for name, tensor in to_checkpoint(model.state_dict(), model.config).items():
        own, value = name.removeprefix("model."), tensor.numpy()
        if own.endswith("norm.weight") and not own.endswith("linear_attn.norm.weight"):
            value = value + 1
        if not own.startswith("layers."):
            out[top.get(own, "output.weight")] = value
            continue
        _, layer, part = own.split(".", 2)
        if part.startswith("linear_attn.out_proj"):
            value = value[:, rows]
        elif part.startswith("linear_attn."):
            value = value[order.get(part.split(".")[1], tiled)]
            value = -np.exp(value) if part.endswith("A_log") else value.squeeze()
        out[f"blk.{layer}.{names[part]}"] = np.ascontiguousarray(value)
    return out


def gguf_tensors(model: Transformer, architecture: str) -> dict[str, np.ndarray]:
    names = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        "attention_output_norm": "post_attention_norm", "mlp_output_norm": "post_ffw_norm",
    }  # fmt: skip
    top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    heads = {"attn_q": model.config.num_heads, "attn_k": model.config.num_kv_heads}
    out = {}
    state = model.state_dict()
    if architecture == "phi3":
        names |= {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    if architecture in ("phi3", "ernie4_5", "minicpm"):  # a GGUF has their matrices as a checkpoint has them
        state = {name.removeprefix("model."): value for name, value in to_checkpoint(state, model.config).items()}
    if architecture == "lfm2":
        names = {
            "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
            "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
            "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
        }  # fmt: skip
        top["embedding_norm"] = "token_embd_norm"
        stored = to_checkpoint(state, model.config).items()
        state = {name.removeprefix("model."): value.squeeze(1) if value.ndim == 3 else value for name, value in stored}
    if architecture == "qwen35":
        return qwen35_tensors(model)
    if architecture == "gemma4":
        names |= {
            "per_layer_gate": "inp_gate", "per_layer_proj": "proj", "per_layer_output_norm": "post_norm",
            "layer_scalar": "layer_output_scale",
        }  # fmt: skip
        top |= {
            "per_layer_embedding": "per_layer_token_embd", "per_layer_projection": "per_layer_model_proj",
            "per_layer_norm": "per_layer_proj_norm",
        }  # fmt: skip
        scalars = [name for name in state if name.endswith("layer_scalar")]
        state = {**state, **{f"{name}.weight": state[name] for name in scalars}}
        state = {name: value for name, value in state.items() if name not in scalars}
        half, rotated = (size // 2 for size in (model.config.rotary_dims[0], model.config.rotaries[0].size))
        out["rope_freqs.weight"] = np.array([1.0] * rotated + [1e30] * (half - rotated), np.float32)
    for name, value in state.items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        owner, kind = name.rsplit(".", 1)
        weight = value.numpy().copy()
        if owner.startswith("layers."):
            _, layer, part = owner.split(".", 2)
            if architecture in PERMUTED and names[part] in heads:
                weight = permute(weight, heads[names[part]])
            out[f"blk.{layer}.{names[part]}.{kind}"] = weight
        else:
            out[f"{top[owner]}.{kind}"] = weight
    return out
