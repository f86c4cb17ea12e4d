"""GGUF files of Gemma 3, OLMo 2 and Phi-3, and SentencePiece vocabularies, on tiny random models.

Run: python -m pytest tests/model/test_model_gguf_families.py
"""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_samples import GEMMA_SPECIAL, Source, gemma_pieces, gguf_tensors
from tokenizers import Tokenizer

from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import ModelConfig
from streamfuse.model.fields import CheckpointError, CheckpointWarning
from streamfuse.model.gguf import convert
from streamfuse.model.gguf_settings import Metadata, config_of
from streamfuse.model.transformer import rotary_tables
from streamfuse.runtime.text import Tokenizer as RuntimeTokenizer

GEMMA = {"num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
TEXTS = [
    "hello the hell", " leading and  two   spaces", "a\nb\n\nc\n\n\nd", "schön 漢字 🙂", "aaaaaaaaaaa", "ellohellolo",
    "<0x0A>", "x<end_of_turn>y", "", " ", "▁t",
]  # fmt: skip


def gemma(**config: Any) -> Source:
    source = Source("gemma3", **{**GEMMA, **config})
    source.fields |= {
        "gemma3.attention.key_length": 16,
        "gemma3.attention.value_length": 16,
        "gemma3.attention.sliding_window": 8,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    return source


def converted(source: Source, folder: Path, kinds: dict[str, Any] | None = None) -> Path:
    convert(source.write(folder / "m.gguf", kinds), folder / "hf")
    return folder / "hf"


@pytest.mark.parametrize("local", [None, 5000.0])
def test_a_gemma_gguf_gives_the_same_model(local: float | None, tmp_path: Path) -> None:
    settings = {} if local is None else {"rope_local_base_freq": local}
    source = gemma(**settings)
    source.fields |= {} if local is None else {"gemma3.rope.freq_base_swa": local}
    found = load_base(converted(source, tmp_path))
    names = ("layer_windows", "rotaries", "layer_rotaries", "attention_scale", "embedding_scale", "activation")
    for name in names:
        assert getattr(found.config, name) == getattr(source.model.config, name), name
    assert found.config.layer_windows == (8, 8, 8, 8, 8, None, 8)
    assert found.config.tie_word_embeddings
    ids = torch.randint(0, found.config.vocab_size, (1, 24))
    torch.testing.assert_close(found(ids), source.model(ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"gemma3.attention.sliding_window_pattern": 2}, (8, None, 8, None, 8, None, 8)),
        ({"gemma3.attention.sliding_window_pattern": [True, False, False] + [True] * 4}, (8, None, None, 8, 8, 8, 8)),
        ({"gemma3.attention.sliding_window": 0}, (None,) * 7),
    ],
)
def test_the_layers_with_windows_are_those_of_the_file(
    fields: dict[str, Any], windows: tuple[Any, ...], tmp_path: Path
) -> None:
    source = gemma()
    source.fields |= fields
    assert load_base(converted(source, tmp_path)).config.layer_windows == windows


GEMMA_4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32,
    "final_logit_softcapping": 5.0,
}


def gemma4(**config: Any) -> Source:
    """As llama.cpp's converter writes it."""
    source = Source("gemma4", **{**GEMMA_4, **config})
    own: dict[str, Any] = {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.shared_kv_layers": source.model.config.num_layers - source.model.config.num_cached_layers,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [True, False, True, False],
        "embedding_length_per_layer_input": source.model.config.per_layer_size,
        "final_logit_softcapping": 5.0,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base_swa": 10000.0,
    }
    source.fields |= {f"gemma4.{key}": value for key, value in own.items()}
    source.fields |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.unknown_token_id": 3}
    return source


@pytest.mark.parametrize(
    "config", [{}, {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}], ids=["e2b", "dense"]
)
def test_a_gemma4_gguf_gives_the_same_model(config: dict[str, Any], tmp_path: Path) -> None:
    source = gemma4(**config)
    found = load_base(converted(source, tmp_path))
    stated = {field.name for field in dataclasses.fields(ModelConfig)} - {"bos_token_id", "eos_token_ids"}
    for name in stated:
        assert getattr(found.config, name) == getattr(source.model.config, name), name
    expected = source.model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())


def test_a_gemma4_gguf_may_have_unused_keys_and_values_and_lack_layer_scalars(tmp_path: Path) -> None:
    source = gemma4()
    for name in ("attn_k", "attn_v", "attn_k_norm"):
        source.tensors[f"blk.3.{name}.weight"] = gguf_tensors(source.model, "gemma4")[f"blk.1.{name}.weight"]
    source.skip |= {f"blk.{layer}.layer_output_scale.weight" for layer in range(4)}
    found = load_base(converted(source, tmp_path))
    assert all(block.layer_scalar == 1 for block in found.blocks)


def test_a_gemma4_gguf_merges_pieces_as_its_list_says(tmp_path: Path) -> None:
    """The list is what Gemma 3's scores give, so texts are split alike."""
    folders = []
    for name, source in (("3", gemma()), ("4", gemma4())):
        (tmp_path / name).mkdir()
        folders.append(converted(source, tmp_path / name))
    ours, theirs = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in reversed(folders))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids, text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention.key_length_swa": 8}, "value_length_swa' must be attention.key_length_swa, not 16"),
        ({"attention.sliding_window_pattern": [True]}, "sliding_window_pattern must have a bool for each of 4 layers"),
        ({"attention.shared_kv_layers": 3}, "feed_forward_length' is .*; it must be one size for all"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "gemma4.rope.scaling.type' is not supported"),
        ({"expert_count": 8}, "expert_count"),
        ({"final_logit_softcapping": "high"}, "final_logit_softcapping"),
    ],
)
def test_a_gemma4_gguf_with_an_impossible_field_is_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = gemma4()
    source.fields |= {f"gemma4.{key}": value for key, value in fields.items()}
    with pytest.raises(CheckpointError, match=words):
        load_base(converted(source, tmp_path))


@pytest.mark.parametrize("factors", [[1.0] * 8, [1.0, 1e30] * 8, [1.0] * 8 + [2.0] * 8])
def test_a_gemma4_gguf_with_missing_or_invalid_rope_freqs_is_refused(factors: list[float], tmp_path: Path) -> None:
    source = gemma4()
    source.skip.add("rope_freqs.weight")
    with pytest.raises(CheckpointError, match=r"tensor 'rope_freqs.weight' is missing"):
        converted(source, tmp_path)
    source.tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    with pytest.raises(
        CheckpointError, match=r"rope_freqs.weight must have 16 numbers, 1 for the pairs that are rotated"
    ):
        converted(source, tmp_path)


def test_rope_scaling_is_that_of_layers_without_a_window(tmp_path: Path) -> None:
    source = gemma(rope_scaling={"rope_type": "linear", "factor": 8.0})
    source.fields |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    found = load_base(converted(source, tmp_path))
    assert found.config.rotaries == source.model.config.rotaries
    assert [rotary.scaling for rotary in found.config.rotaries] == [{"rope_type": "linear", "factor": 8.0}, None]


def test_quantized_gemma_matrices_are_the_formats_own_values(tmp_path: Path) -> None:
    """The types of a Q4_K_M of Gemma 3 270M that have blocks of 32; K-quants are in test_model_gguf.py."""
    kinds = {
        "blk.0.attn_q.weight": gguf.GGMLQuantizationType.Q5_0,
        "token_embd.weight": gguf.GGMLQuantizationType.Q8_0,
    }
    source = gemma()
    found = load_base(converted(source, tmp_path, kinds)).state_dict()
    for name, (own, kind) in zip(("layers.0.self_attn.q_proj", "embed_tokens"), kinds.items(), strict=True):
        del own
        data = gguf.quants.quantize(source.model.state_dict()[f"{name}.weight"].numpy(), kind)
        assert np.array_equal(found[f"{name}.weight"].numpy(), gguf.quants.dequantize(data, kind)), name


def test_an_olmo_gguf_gives_the_same_model(tmp_path: Path) -> None:
    source = Source("olmo2", tied=False)
    source.pre = "dbrx"
    found = load_base(converted(source, tmp_path))
    expected = source.model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
YARN_FACTOR = 1.25  # OLMo 3's files have one
YARN_FIELDS = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 32.0}
HEADS = {"head_dim": 16, "hidden_size": 64}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]


@dataclasses.dataclass
class File:
    """An architecture: the model's settings, and fields of the file below the architecture's name."""

    settings: dict[str, Any]
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    pre: str = "smollm"
    eps: float = 1e-5
    hf_name: str = ""


FILES = {
    "mistral3": File(
        {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}, **HEADS},
        {
            **{f"rope.scaling.{key}": value for key, value in YARN_FIELDS.items()},
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
        "tekken",
    ),
    "mistral3 without scaling": File({"rope_parameters": {"rope_type": "default"}, **HEADS}, {}, "tekken"),
    "olmo2 with windows": File(
        {
            "rope_scaling": {**YARN, "attention_factor": YARN_FACTOR},
            "rope_theta": 500000.0,
            "sliding_window": 7,
            "layer_types": WINDOWS,
        },
        {
            **{f"rope.scaling.{key}": value for key, value in YARN_FIELDS.items()},
            "rope.scaling.yarn_attn_factor": YARN_FACTOR,
            "attention.sliding_window": 7,
            "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in WINDOWS],
        },
        "dbrx",
        hf_name="Olmo3ForCausalLM",
    ),
    "exaone4": File({"sliding_window": None, **HEADS}, {}, "exaone4"),
    "exaone4 with windows": File({"sliding_window": 9, **HEADS}, {"attention.sliding_window": 9}, "exaone4"),
    "ernie4_5": File({**HEADS}, {"rope.dimension_sections": [0, 0, 0, 0]}),
    "minicpm": File(
        {"scale_emb": 6.0, "scale_depth": 1.6, "dim_model_base": 16, "rms_norm_eps": 1e-5},
        {"embedding_scale": 6.0, "residual_scale": 0.8, "logit_scale": 4.0},
    ),
    "minicpm without scales": File(
        {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-5}
    ),
    "hunyuan-dense": File(
        {"rope_scaling": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}, **HEADS},
        {
            "rope.freq_base": 10000.0 * 1000.0 ** (16 / 14),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "rope.scaling.original_context_length": 262144,
        },
        "hunyuan",
    ),
    "qwen2vl": File({"attention_bias": True, **HEADS}, {"rope.dimension_sections": [2, 3, 3, 0]}, "qwen2"),
    "qwen35": File(
        {
            "num_hidden_layers": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            **HEADS,
        },
        {
            "rope.dimension_count": 4,
            "rope.dimension_sections": [1, 1, 0, 0],
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 6,
            "ssm.inner_size": 48,
            "full_attention_interval": 4,
        },
        "qwen35",
    ),
    "qwen3vl": File({**HEADS}, {"rope.dimension_sections": [2, 3, 3, 0], "n_deepstack_layers": 3}, "qwen2"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_gguf_of_a_family_gives_the_same_model(name: str, tmp_path: Path) -> None:
    made, architecture = FILES[name], name.partition(" ")[0]
    source = Source(architecture, tied=False, hf_name=made.hf_name, **{"rms_norm_eps": made.eps, **made.settings})
    source.pre, source.rms_eps, config = made.pre, made.eps, source.model.config
    lengths = {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    source.fields |= {f"{architecture}.{key}": value for key, value in {**lengths, **made.fields}.items()}
    found = load_base(converted(source, tmp_path))
    expected = source.model.state_dict()
    marks = {"bos_token_id": config.bos_token_id, "eos_token_ids": config.eos_token_ids}
    ours, wanted = (
        dataclasses.replace(one, rotaries=tuple(dataclasses.replace(r, theta=0.0, scaling=None) for r in one.rotaries))
        for one in (dataclasses.replace(found.config, **marks), config)
    )
    assert ours == wanted
    for tables, others in zip(rotary_tables(found.config, 64), rotary_tables(config, 64), strict=True):
        torch.testing.assert_close(tables, others, atol=1e-5, rtol=0)  # a file has its numbers in float32
    assert found.state_dict().keys() == expected.keys()
    for tensor, value in found.state_dict().items():
        torch.testing.assert_close(value, expected[tensor], atol=1e-6, rtol=1e-6)


def qwen35(folder: Path, name: str = "", value: Any = None, tensor: str = "", cut: int = 0) -> Path:
    """A converted file, with another value of a field, or a tensor that lacks rows."""
    made = FILES["qwen35"]
    source = Source("qwen35", tied=False, **made.settings)
    source.pre = made.pre
    source.fields |= {f"qwen35.{key}": value for key, value in {"attention.key_length": 16, **made.fields}.items()}
    source.fields |= {f"qwen35.{name}": value} if name else {}
    if tensor:
        weight = gguf_tensors(source.model, "qwen35")[tensor]
        source.skip.add(tensor)
        source.tensors[tensor] = weight[: len(weight) - cut] if cut else -weight
    return converted(source, folder)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ssm.group_count", 4, "time_step_rank 6 must be a multiple of group_count 4"),
        ("ssm.group_count", "2", "ssm.group_count must be an integer"),
        ("ssm.inner_size", 50, "inner_size 50 of time_step_rank"),
        ("ssm.state_size", 7, "has the shape .*, not .*copy or download the file again"),
        ("ssm.time_step_rank", 0, "ssm.time_step_rank must be an integer from 1"),
        ("full_attention_interval", "4", "full_attention_interval must be an integer"),
        ("rope.dimension_count", "4", "rope.dimension_count must be an integer"),
        ("attention.key_length", 0, "attention.key_length must be an integer from 1"),
        ("nextn_predict_layers", 4, "nextn_predict_layers must be below block_count"),
        ("attention.recurrent_layers", [True], "recurrent_layers must have a bool for each of 4 layers"),
    ],
)
def test_a_qwen35_gguf_with_an_impossible_field_is_refused(name: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_base(qwen35(tmp_path, name, value))


@pytest.mark.parametrize(
    ("tensor", "cut", "words"),
    [
        ("blk.0.ssm_a", 0, "'blk.0.ssm_a' must have negative numbers only"),
        ("blk.0.ssm_a", 1, "'blk.0.ssm_a' has the shape .5., not .6."),
        ("blk.0.attn_qkv.weight", 8, "'blk.0.attn_qkv.weight' has the shape .72, 64., not .80, 64."),
    ],
)
def test_a_damaged_tensor_of_linear_attention_is_named(tensor: str, cut: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        qwen35(tmp_path, tensor=tensor, cut=cut)


def test_the_layers_of_a_qwen35_gguf_that_predict_one_more_token_are_left_out(tmp_path: Path) -> None:
    found = load_base(qwen35(tmp_path, "nextn_predict_layers", 1))
    assert found.config.layer_recurrences == (True, True, True)  # the file has four layers, the last one with attention


@pytest.mark.parametrize(("layers", "windows"), [(64, [4096, 4096, 4096, None]), (30, [None] * 4)])
def test_an_exaone4_gguf_without_a_window_has_llama_cpps_default(layers: int, windows: list[int | None]) -> None:
    values = {"general.architecture": "exaone4", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": 0}
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "block_count": layers, "attention.head_count": 4}
    longest = {"context_length": 131072, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e6}
    metadata = {**values, **{f"exaone4.{key}": value for key, value in {**sizes, **longest}.items()}}
    found = ModelConfig.from_hf({**config_of(Metadata(metadata, Path("m.gguf"))), "vocab_size": 1})
    assert list(found.layer_windows[:4]) == windows


def test_the_factors_of_longrope_are_tensors_of_a_minicpm_file(tmp_path: Path) -> None:
    short = [1.0 + i / 4 for i in range(4)]
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": short, "attention_factor": 1.0}
    own = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-5}
    source = Source("minicpm", tied=True, rope_scaling=scaling, head_dim=8, **own)
    source.rms_eps = 1e-5
    source.fields |= {"minicpm.rope.scaling.type": "longrope", "minicpm.attention.key_length": 8}
    for name, values in (("short", short), ("long", [2.0] * 4)):
        source.tensors[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    found = load_base(converted(source, tmp_path))
    ids = torch.randint(0, found.config.vocab_size, (1, 24))
    torch.testing.assert_close(found(ids), source.model(ids), atol=1e-4, rtol=1e-4)
    source.tensors.clear()
    with pytest.raises(CheckpointError, match=r"'rope_factors_short.weight' is missing"):
        converted(source, tmp_path)


def test_eos_that_is_an_ordinary_token_is_replaced_by_eot(tmp_path: Path) -> None:
    source = Source("hunyuan-dense", **HEADS)
    source.pre = "hunyuan"
    source.skip = {"eos"}
    source.fields |= {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.eot_token_id": 1}
    with pytest.warns(CheckpointWarning, match=r"eos_token_id is .*, an ordinary token"):
        folder = converted(source, tmp_path)
    assert load_base(folder).config.eos_token_ids == (1,)
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("tekken", "HelloWorld don't 1234", ["Hello", "World", " don", "'t", " ", "1", "2", "3", "4"]),
        ("qwen35", "Hello\u0301World's 12", ["Hello\u00cc\u0123World", "'s", " ", "1", "2"]),  # U+0301 in bytes
        ("exaone4", "HelloWorld don't 1234", ["HelloWorld", " don", "'t", " 1234"]),
        ("hunyuan-dense", "Hello.World 12345", ["Hello", ".World", " ", "123", "45"]),
        ("hunyuan", "Hello.World 12", ["Hello", ".World", " ", "1", "2"]),
        ("minicpm5", "HelloWorld don't 12345", ["HelloWorld", " don", "'t", " ", "123", "45"]),
    ],
)
def test_text_is_split_as_the_file_says(pre: str, text: str, words: list[str], tmp_path: Path) -> None:
    source = Source("llama")
    source.pre = pre
    tokenizer = Tokenizer.from_file(str(converted(source, tmp_path) / "tokenizer.json"))
    assert tokenizer.pre_tokenizer is not None
    found = [word.replace("Ġ", " ") for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert found == words


@pytest.mark.parametrize("tied", [True, False])
def test_an_lfm2_gguf_gives_the_same_model(tied: bool, tmp_path: Path) -> None:
    kinds = ["conv", "full_attention", "conv", "conv"]
    source = Source("lfm2", tied=tied, layer_types=kinds, conv_L_cache=4, block_auto_adjust_ff_dim=False, norm_eps=1e-6)
    source.pre = "lfm2"
    source.fields |= {"lfm2.shortconv.l_cache": 4, "lfm2.vocab_size": source.model.config.vocab_size}
    found = load_base(converted(source, tmp_path))
    expected, config = source.model.state_dict(), source.model.config
    marks = {"bos_token_id": config.bos_token_id, "eos_token_ids": config.eos_token_ids}
    assert dataclasses.replace(found.config, **marks) == config
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())


def by_score(text: str) -> list[int]:
    """SentencePiece's BPE: of all neighbours that make a piece, those with the highest score are merged, the first of
    equals; what is no piece then becomes bytes."""
    tokens, scores, types = gemma_pieces()
    usable = {token: score for token, score, its in zip(tokens, scores, types, strict=True) if its == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(usable[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in usable]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    byte = [[f"<0x{code:02X}>" for code in part.encode()] if part not in usable else [part] for part in parts]
    return [tokens.index(token) for part in byte for token in part]


def fragments(text: str, own: list[str]) -> list[str]:
    """A text between the tokens that are matched before pieces are."""
    for i in range(len(text)):
        for token in sorted(own, key=len, reverse=True):
            if text.startswith(token, i):
                return [*([text[:i]] if i else []), token, *fragments(text[i + len(token) :], own)]
    return [text] if text else []


@pytest.mark.parametrize("prefix", [False, True])
def test_pieces_are_merged_by_score(prefix: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    source = gemma()
    source.fields["tokenizer.ggml.add_space_prefix"] = prefix
    found = Tokenizer.from_file(str(converted(source, tmp_path) / "tokenizer.json"))
    own = [*GEMMA_SPECIAL, "\n", "\n\n", "  ", "   "]
    random = ["".join(rng.choice(list("helotha  \n"), 30)) for _ in range(200)]
    for text in (*TEXTS, *random):
        expected: list[int] = [2]
        for part in fragments(text, own):
            expected += [found.token_to_id(part)] if part in own else by_score((" " if prefix else "") + part)
        ids = found.encode(text).ids
        assert ids == expected, text
        if not prefix and "▁" not in text:
            assert found.decode(ids[1:], skip_special_tokens=False) == text


def test_turns_are_control_tokens_and_end_answers(tmp_path: Path) -> None:
    source = gemma()
    source.skip = {"template"}
    source.fields["tokenizer.chat_template"] = TURNS
    folder = converted(source, tmp_path)
    config = load_base(folder).config
    assert config.eos_token_ids == (1, 5)
    assert json.loads((folder / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"
    text = RuntimeTokenizer(folder / "tokenizer.json", TURNS, config.bos_token_id, config.eos_token_ids)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(words: str) -> list[int]:
        return plain.encode(words, add_special_tokens=False).ids

    asked = text.encode_chat([{"role": "user", "content": "hello <end_of_turn>"}])
    assert asked[:2] == [2, 4]  # <bos>, once, and <start_of_turn>
    assert asked.count(5) == 1  # what a user writes is no control token
    assert asked[-len(ids("<start_of_turn>model\n")) :] == ids("<start_of_turn>model\n")


def test_a_token_for_the_end_of_turns_that_the_file_names_is_taken(tmp_path: Path) -> None:
    source = gemma()
    source.fields["tokenizer.ggml.eot_token_id"] = 4
    assert load_base(converted(source, tmp_path)).config.eos_token_ids == (1, 4)


@pytest.mark.parametrize("factors", [False, True])
def test_a_phi_gguf_gives_the_same_model(factors: bool, tmp_path: Path) -> None:
    short = [1.0 + i / 4 for i in range(4)]
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": short, "attention_factor": 1.19024}
    own = {"rope_scaling": scaling, "original_max_position_embeddings": 64} if factors else {}
    source = Source("phi3", tied=False, partial_rotary_factor=0.5, sliding_window=24, **own)
    source.pre = "gpt-4o"
    source.fields |= {"phi3.rope.dimension_count": 8, "phi3.attention.sliding_window": 24}
    if factors:
        source.fields |= {"phi3.rope.scaling.original_context_length": 64, "phi3.rope.scaling.attn_factor": 1.19024}
        for name, values in (("short", short), ("long", [2.0] * 4)):
            source.tensors[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    found = load_base(converted(source, tmp_path))
    for name in ("layer_windows", "rotaries", "max_position_embeddings"):
        assert getattr(found.config, name) == getattr(source.model.config, name), name
    ids = torch.randint(0, found.config.vocab_size, (1, 40))
    torch.testing.assert_close(found(ids), source.model(ids), atol=1e-4, rtol=1e-4)


def test_the_tokens_of_a_phi_take_the_spaces_after_them(tmp_path: Path) -> None:
    source = Source("phi3", tied=False)
    source.pieces = gemma_pieces()
    source.model = Source("phi3", tied=False, vocab_size=len(source.pieces[0])).model
    folder = converted(source, tmp_path)
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert found.encode("<end_of_turn> he").ids == found.encode("<end_of_turn>he").ids
    assert found.encode("<unk> he").ids != found.encode("<unk>he").ids
