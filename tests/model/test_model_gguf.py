"""GGUF to a Hugging Face folder, on a tiny file written with the gguf package: weights to the bit, tokenizer, refusals.

Run: python -m pytest tests/model/test_model_gguf.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_samples import SPECIAL, Source
from safetensors.torch import load_file
from tokenizers import Tokenizer

from streamfuse.model.checkpoint import load_base, own_template
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.fields import CheckpointWarning
from streamfuse.model.gguf import convert
from streamfuse.model.pull import resolve_model

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


def scales_of(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight 6-bit scales and eight 6-bit minima in twelve bytes, as ggml's get_scale_min_k4 reads them."""
    found = np.zeros((2, len(packed), 8), np.int32)
    for j in range(8):
        for part in range(2):
            at = j + 4 * part
            low = packed[:, at] & 63 if j < 4 else (packed[:, j + 4] >> 4 * part & 15) | (packed[:, at - 4] >> 6) << 4
            found[part, :, j] = low
    return found[0], found[1]


def k_quants_by_the_book(blocks: np.ndarray, kind: Any) -> np.ndarray:
    """Blocks of 256 weights: w = d s q - dmin m in eight groups of 32 (Q4_K, Q5_K), w = d s q in 16 of 16 (Q6_K)."""
    half = blocks.view(np.uint8)
    if kind == gguf.GGMLQuantizationType.Q6_K:
        low, high, scales = half[:, :128], half[:, 128:192], half[:, 192:208].copy().view(np.int8)
        d = half[:, 208:210].copy().view(np.float16).astype(np.float32)
        q = np.zeros((len(half), 256), np.int32)
        for n in range(2):
            for quarter in range(4):
                nibble = low[:, 64 * n + 32 * (quarter % 2) :][:, :32] >> 4 * (quarter // 2) & 15
                bits = high[:, 32 * n :][:, :32] >> 2 * quarter & 3
                q[:, 128 * n + 32 * quarter :][:, :32] = (nibble.astype(np.int32) | bits.astype(np.int32) << 4) - 32
        return (d * scales.astype(np.float32)).repeat(16, 1) * q
    d, least = (half[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    scales, minima = scales_of(half[:, 4:16])
    nibbles = half[:, 16 + 32 * (kind == gguf.GGMLQuantizationType.Q5_K) :]
    q = np.zeros((len(half), 256), np.int32)
    for group in range(8):
        four = nibbles[:, 32 * (group // 2) :][:, :32] >> 4 * (group % 2) & 15
        fifth = half[:, 16:48] >> group & 1 if kind == gguf.GGMLQuantizationType.Q5_K else np.zeros_like(four)
        q[:, 32 * group :][:, :32] = four.astype(np.int32) | fifth.astype(np.int32) << 4
    return (d * scales).repeat(32, 1) * q - (least * minima).repeat(32, 1)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_the_formats_own_values(name: str, tmp_path: Path) -> None:
    source, kind = Source(hidden_size=256, intermediate_size=256), gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(1).integers(0, 256, (256, size), dtype=np.uint8)
    for at in (208,) if name == "Q6_K" else (0, 2):  # finite float16 scales
        blocks[:, at : at + 2] = np.full((256, 1), 0.01, np.float16).view(np.uint8)
    source.packed["blk.0.ffn_down.weight"] = (blocks, kind)
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = load_file(tmp_path / "hf" / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].numpy()
    np.testing.assert_allclose(found, k_quants_by_the_book(blocks, kind).reshape(256, 256), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("architecture", ["smollm3", "granite"])
def test_other_architectures_give_the_same_model(architecture: str, tmp_path: Path) -> None:
    scales = {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention.scale": 0.2}
    names = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    granite = dict(zip(names, scales.values(), strict=True)) if architecture == "granite" else {}
    source = Source(architecture, num_hidden_layers=4, **granite)
    if granite:
        source.fields |= {f"granite.{name}": value for name, value in scales.items()}
    config = source.model.config
    source.rms_eps = 1e-5
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = load_base(tmp_path / "hf")
    for name in ("rotaries", "layer_rotaries", "embedding_scale", "attention_scale", "logits_scale", "rms_norm_eps"):
        assert getattr(found.config, name) == getattr(config, name), name
    ids = torch.randint(0, config.vocab_size, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(found(ids) * config.logits_scale, source.model(ids), atol=1e-4, rtol=1e-4)


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


def test_a_models_special_tokens_are_known_without_its_large_tokenizer(tmp_path: Path) -> None:
    convert(Source().write(tmp_path / "m.gguf"), tmp_path / "hf")
    whole = ModelConfig.load(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    (tmp_path / "hf" / "generation_config.json").unlink()
    marks = {"bos_token_id": None, "eos_token_id": None}
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, **marks}))
    found = ModelConfig.load(tmp_path / "hf")
    assert (found.bos_token_id, found.eos_token_ids) == (whole.bos_token_id, whole.eos_token_ids) == (0, (1,))


def test_a_begin_token_is_added_where_the_file_asks_for_it(tmp_path: Path) -> None:
    source = Source()
    source.fields["tokenizer.ggml.add_bos_token"] = True
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.encode("hell").ids == [0, *source.tokenizer.encode("hell").ids]
    assert found.encode("hell", add_special_tokens=False).ids == source.tokenizer.encode("hell").ids


@pytest.mark.parametrize(
    ("pre", "stated", "adds"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("falcon3", None, True), ("smaug-bpe", None, False),
     ("deepseek-r1-qwen", None, False)],
)  # fmt: skip
def test_llama_3_begins_with_a_token_where_the_file_says_nothing(
    pre: str, stated: bool | None, adds: bool, tmp_path: Path
) -> None:
    source = Source()
    source.pre = pre
    source.fields |= {} if stated is None else {"tokenizer.ggml.add_bos_token": stated}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.encode("hell").ids == [0] * adds + found.encode("hell", add_special_tokens=False).ids


@pytest.mark.parametrize("begins", [False, True])
def test_an_end_token_is_added_where_the_file_asks_for_it(begins: bool, tmp_path: Path) -> None:
    source = Source()
    source.fields |= {"tokenizer.ggml.add_bos_token": begins, "tokenizer.ggml.add_eos_token": True}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert found.encode("hell").ids == [0] * begins + source.tokenizer.encode("hell").ids + [1]


@pytest.mark.parametrize(
    ("stated", "ends"),
    [
        ({"eot": 5, "eom": 7}, (1, 5, 7)),
        ({"eom": 7}, (1, 7)),
        ({"eot": 1, "eom": 1}, (1,)),
        ({"eot": 1_000_000}, (1,)),  # no token of the model
    ],
)
def test_the_ends_of_turns_and_messages_end_an_answer(
    stated: dict[str, int], ends: tuple[int, ...], tmp_path: Path
) -> None:
    source = Source()
    source.fields |= {f"tokenizer.ggml.{name}_token_id": token for name, token in stated.items()}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert ModelConfig.load(tmp_path / "hf").eos_token_ids == ends
    settings = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == SPECIAL[1]  # what templates write


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "attention_factor": 0.1 * np.log(4.0) + 1,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "truncate": True,
}


@pytest.mark.parametrize(
    ("stated", "scaling"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, LINEAR),
        ({"scaling.factor": 4.0}, LINEAR),
        ({"scale_linear": 4.0}, LINEAR),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, LINEAR),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.type": "linear"}, None),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64,
             "scaling.yarn_beta_fast": 16.0, "scaling.yarn_ext_factor": 1.0, "scaling.attn_factor": 1.0},
            YARN,
        ),
        ({"scaling.type": "yarn"}, None),
        ({"dimension_count": 16, "scaling.finetuned": True}, None),
    ],
)  # fmt: skip
def test_rope_scaling_is_what_llama_cpp_takes_it_for(
    stated: dict[str, Any], scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    source = Source()
    source.fields |= {f"llama.rope.{name}": value for name, value in stated.items()}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found = load_base(tmp_path / "hf").config.rotaries[0].scaling
    assert found == pytest.approx(scaling) if scaling else found is None


def test_fields_that_change_nothing_are_taken(tmp_path: Path) -> None:
    source = Source()
    source.fields |= {"llama.attention.scale": 0.25, "llama.attention.causal": True, "llama.expert_count": 0}
    source.fields |= {"llama.logit_scale": 1.0, "llama.attention.value_length": 16, "llama.vocab_size": 262}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.head_dim == 16


@pytest.mark.parametrize("lost", [set(), {"attn_output.bias"}, {"attn_k.bias", "attn_output.bias"}])
def test_a_llama_with_biases_gives_the_same_model(lost: set[str], tmp_path: Path) -> None:
    source = Source(attention_bias=True)
    with torch.no_grad():
        for name, value in source.model.named_parameters():
            if any(f"{part}.bias" in lost for part in ("attn_output",)) and name.endswith("o_proj.bias"):
                value.zero_()
            if "attn_k.bias" in lost and name.endswith("k_proj.bias"):
                value.zero_()
    source.skip = {f"blk.{layer}.{name}" for layer in range(4) for name in lost}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    found, expected = load_base(tmp_path / "hf").state_dict(), source.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_a_bias_of_the_mlp_is_refused_by_name(tmp_path: Path) -> None:
    source = Source()
    source.tensors["blk.0.ffn_up.bias"] = np.ones(96, np.float32)
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'blk.0.ffn_up.bias' is a bias of the MLP"):
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")


def test_named_chat_templates_without_a_default_are_said(tmp_path: Path) -> None:
    source = Source()
    source.skip = {"template"}
    source.fields |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    with pytest.warns(CheckpointWarning, match="chat templates are tool_use, and none is named default"):
        assert own_template(tmp_path / "hf") is None


def split(path: Path, folder: Path, count: int) -> list[Path]:
    """The parts of a GGUF as llama-gguf-split names and fills them: metadata in the first, tensors in turn."""
    reader = gguf.GGUFReader(path)
    parts = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        for name, field in reader.fields.items():
            if i == 0 and not name.startswith("GGUF.") and name != "general.architecture":
                kind, of = field.types[0], field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(name, field.contents(), kind, of)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        for tensor in reader.tensors[i::count]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


@pytest.mark.parametrize("named", [0, 2])
def test_a_split_gguf_is_taken_whole(named: int, tmp_path: Path) -> None:
    source = Source()
    parts = split(source.write(tmp_path / "m.gguf"), tmp_path, 3)
    folder = resolve_model(parts[named], cache_dir=tmp_path / "cache")
    found, expected = load_base(folder).state_dict(), source.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert json.loads((folder / "source.json").read_text())["file"] == parts[0].name
    parts[1].touch()
    assert resolve_model(parts[named], cache_dir=tmp_path / "cache") != folder  # another part may be another model


def test_a_split_gguf_in_the_hugging_face_cache_is_taken_by_its_names(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    parts = split(Source().write(tmp_path / "m.gguf"), snapshot, 2)
    for i, part in enumerate(parts):
        part.rename(blobs / f"{i:064x}")
        part.symlink_to(Path("../../blobs") / f"{i:064x}")
    folder = resolve_model(parts[1], cache_dir=tmp_path / "cache")
    assert folder.name.startswith("m-00001-of-00002--")
    source = json.loads((folder / "source.json").read_text())
    assert source["file"] == parts[0].name
    assert (folder / source["path"]).samefile(parts[0])


def test_a_link_to_a_part_of_a_split_gguf_leads_to_all_parts(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    parts = split(Source().write(tmp_path / "m.gguf"), tmp_path / "store", 2)
    for name in ("my.gguf", parts[0].name):
        (tmp_path / name).symlink_to(parts[0])
        folder = resolve_model(tmp_path / name, cache_dir=tmp_path / "cache")
        assert folder.name.startswith("m-00001-of-00002--")


def test_a_model_in_a_linked_cache_leads_to_its_gguf(tmp_path: Path) -> None:
    path = Source().write(tmp_path / "m.gguf")
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "cache").symlink_to(tmp_path / "far" / "away")
    folder = resolve_model(path, cache_dir=tmp_path / "cache")
    assert (folder / json.loads((folder / "source.json").read_text())["path"]).samefile(path)


def test_a_split_gguf_with_a_part_missing_or_renamed_is_refused(tmp_path: Path) -> None:
    parts = split(Source().write(tmp_path / "m.gguf"), tmp_path, 3)
    renamed = parts[0].rename(tmp_path / "first.gguf")
    with pytest.raises(CheckpointError, match=r"one of 3 parts of a split GGUF, and m-00001-of-00003.gguf is not in"):
        convert(parts[2], tmp_path / "hf")
    with pytest.raises(
        CheckpointError,
        match=r"one of 3 parts of a split GGUF \(split.count\), but 1 was found; .* named NAME-00001-of-00003",
    ):
        convert(renamed, tmp_path / "hf")


def test_a_big_endian_gguf_is_named_so(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"a big-endian GGUF, .*gguf-convert-endian m.gguf little"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")


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
    assert found.config.rotaries[0].scaling == LLAMA_3_2
    ids = torch.arange(20)[None]
    assert torch.equal(found(ids), source.model(ids))


def test_factors_that_change_nothing_are_no_scaling(tmp_path: Path) -> None:
    source = Source()
    source.tensors["rope_freqs.weight"] = np.ones(8, np.float32)
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.rotaries[0].scaling is None


@pytest.mark.parametrize("factors", [[1, 1, 1, 1, 1, 2, 4, 8], [1, 1, 1, 1], [0] * 8, [np.nan] * 8, [np.inf] * 8])
def test_other_factors_are_refused(factors: list[float], tmp_path: Path) -> None:
    source = Source()
    source.tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    with pytest.raises(
        CheckpointError, match=r"m\.gguf: rope_freqs\.weight has factors of an unsupported RoPE scaling"
    ):
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("skip", "fields", "words"),
    [
        ({"eos"}, {}, "field 'tokenizer.ggml.eos_token_id' is missing"),
        ({"head_count"}, {}, "field 'llama.attention.head_count' is missing"),
        ({"token_embd.weight"}, {}, "tensor 'token_embd.weight' is missing"),
        (set(), {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "scaling 'longrope' is not"),
        (set(), {"general.type": "adapter"}, "general.type 'adapter' is not a language model"),
        (set(), {"llama.attention.scale": 0.5}, "field 'llama.attention.scale' is 0.5, which is not supported"),
        (set(), {"llama.attention.causal": False}, "field 'llama.attention.causal' is False"),
        (set(), {"llama.attention.sliding_window": 64.0}, "field 'llama.attention.sliding_window' is 64.0"),
        (set(), {"llama.expert_count": 8.0}, "field 'llama.expert_count' is 8.0"),
        (set(), {"llama.logit_scale": 8.0}, "field 'llama.logit_scale' is 8.0"),
        (set(), {"llama.rope.dimension_count": 8.0}, "field 'llama.rope.dimension_count' is 8.0"),
        (set(), {"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier' is 0.1"),
        (set(), {"llama.final_logit_softcapping": 30.0}, "field 'llama.final_logit_softcapping' is 30.0"),
        ({"pre"}, {"tokenizer.ggml.pre": "falcon"}, "tokenizer.ggml.pre 'falcon' is not supported"),
        ({"tokenizer"}, {"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model 't5' is not supported"),
        ({"tokenizer"}, {"tokenizer.ggml.model": "llama"}, "field 'tokenizer.ggml.scores' is missing"),
        (set(), {"llama.rope.dimension_count": [8, 8]}, r"field 'llama.rope.dimension_count' is \[8, 8\]"),
        (
            set(),
            {"llama.attention.value_length": [8, 16]},
            "llama.attention.value_length' differs from layer to",
        ),
        ({"eos"}, {"tokenizer.ggml.eos_token_id": 999}, "field 'tokenizer.ggml.eos_token_id' is 999, and the file has"),
        ({"bos"}, {"tokenizer.ggml.bos_token_id": 999}, "field 'tokenizer.ggml.bos_token_id' is 999, and the file has"),
    ],
)
def test_what_is_not_supported_is_named(skip: set[str], fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = Source()
    source.skip, source.fields = skip, fields
    with pytest.raises(CheckpointError, match=words) as caught:
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert "m.gguf" in str(caught.value)
    assert not (tmp_path / "hf").exists()


def test_numbers_that_are_stored_for_each_layer_are_read(tmp_path: Path) -> None:
    source = Source()
    width, layers = source.model.config.head_dim, source.model.config.num_layers
    source.fields = {f"llama.{name}": [width] * layers for name in ("attention.value_length", "rope.dimension_count")}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    assert load_base(tmp_path / "hf").config.head_dim == width


def test_an_unknown_token_that_a_gguf_does_not_have_is_named(tmp_path: Path) -> None:
    source = Source("gemma3", head_dim=32)
    source.fields = {"tokenizer.ggml.unknown_token_id": 9999}
    with pytest.raises(CheckpointError, match=r"field 'tokenizer\.ggml\.unknown_token_id' is 9999"):
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")


def test_a_granite_without_rotary_embedding_is_named(tmp_path: Path) -> None:
    source = Source("granite")
    source.fields = {"granite.rope.scaling.finetuned": False}
    with pytest.raises(CheckpointError, match=r"field 'granite\.rope\.scaling\.finetuned' is False"):
        convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")


def test_a_gguf_that_ends_early_is_to_be_downloaded_again(tmp_path: Path) -> None:
    whole = Source().write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "m.gguf"
    for share in (0.0005, 0.01, 0.1, 0.5, 0.99):
        cut.write_bytes(whole[: max(8, int(len(whole) * share))])
        with pytest.raises(
            CheckpointError, match=r"incomplete or damaged \(\d+ bytes; .*\); copy or download it again"
        ):
            convert(cut, tmp_path / "hf")


def test_other_architectures_and_files_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError,
        match=r"architecture 'mamba' is not supported; supported are llama, .*, qwen35; .* add a model family",
    ):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes([1]) + bytes(40))
    with pytest.raises(CheckpointError, match=r"version 1 of GGUF is not supported .* convert the model again"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
    (tmp_path / "m.gguf").write_bytes(b"nothing of the kind, but long enough")
    with pytest.raises(CheckpointError, match="not a GGUF file: it does not begin with the letters GGUF"):
        convert(tmp_path / "m.gguf", tmp_path / "hf")
