"""LoRA adapters in PEFT's format become adapters that tune the base.

Run: python -m pytest tests/model/test_model_peft.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from family_samples import hf_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter
from streamfuse.model.config import CheckpointError
from streamfuse.model.fields import CheckpointWarning
from streamfuse.model.low_rank import PROJECTIONS, projection
from streamfuse.model.peft import convert
from streamfuse.model.transformer import Transformer

BASE = tiny.base()
MODULES = {"self_attn.q_proj": (2, "q_proj"), "self_attn.v_proj": (3, "v_proj"), "mlp.down_proj": (2, "down_proj")}


def write(folder: Path, layers: tuple[int, ...] = (1, 3), **settings: Any) -> dict[tuple[int, str], Tensor]:
    """A PEFT folder; lora_B lora_A of each module, without its scale."""
    folder.mkdir(exist_ok=True)
    tensors, products = {}, {}
    torch.manual_seed(3)
    for layer in layers:
        for module, (rank, name) in MODULES.items():
            matrix = projection(BASE.blocks[layer], name)
            down, up = torch.randn(rank, matrix.in_features), torch.randn(matrix.out_features, rank)
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors |= {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
            products[layer, name] = up @ down
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return products


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        ({}, {"q_proj": 3.0, "v_proj": 2.0, "down_proj": 3.0}),
        ({"use_rslora": True}, {"q_proj": 6 / 2**0.5, "v_proj": 6 / 3**0.5, "down_proj": 6 / 2**0.5}),
        ({"alpha_pattern": {"v_proj": 12, "layers.1.mlp.down_proj": 2}}, {"q_proj": 3.0, "v_proj": 4.0}),
    ],
)
def test_the_tuned_weights_are_those_of_peft(
    tmp_path: Path, settings: dict[str, Any], scales: dict[str, float]
) -> None:
    products = write(tmp_path / "lora", **settings)
    found = convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")
    assert (found.num_streams, found.base_rank, found.base_layers) == (0, 3, 3)
    tuned = load_stream_fused(BASE, tmp_path / "adapter.safetensors").base
    for layer, block in enumerate(tuned.blocks):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            before = projection(BASE.blocks[layer], name).weight
            scale = scales.get(name, 1.0 if layer == 1 else 3.0)  # the pattern of one layer alone
            added = products.get((layer, name), torch.zeros_like(before)) * scale
            torch.testing.assert_close(projection(block, name).weight, before + added, atol=0.05, rtol=2e-3)


@pytest.mark.parametrize("prefix", ["model.language_model", "language_model.model", "model.text_model"])
def test_adapters_of_the_text_part_of_an_image_model_are_read(tmp_path: Path, prefix: str) -> None:
    products = write(tmp_path / "lora")
    path, base = tmp_path / "lora" / "adapter_model.safetensors", "base_model.model."
    tensors = {name.replace(f"{base}model.", f"{base}{prefix}."): value for name, value in load_file(path).items()}
    images = f"{base}model.vision_tower.layers.0.self_attn.q_proj"
    save_file(tensors | {f"{images}.lora_{half}.weight": torch.ones(2, 2) for half in "AB"}, path)
    with pytest.warns(CheckpointWarning, match="tensors outside the text model, such as .*vision_tower"):
        convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")
    tuned = load_stream_fused(BASE, tmp_path / "adapter.safetensors").base
    found = projection(tuned.blocks[1], "q_proj").weight - projection(BASE.blocks[1], "q_proj").weight
    torch.testing.assert_close(found, products[1, "q_proj"] * 3.0, atol=0.05, rtol=2e-3)


def lfm() -> Transformer:
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    return tiny.base(architectures=["Lfm2ForCausalLM"], layer_types=kinds, block_auto_adjust_ff_dim=False)


def write_lfm(folder: Path, modules: dict[tuple[int, str], str], base: Transformer) -> dict[tuple[int, str], Tensor]:
    """Modules of LFM2 by layer and name, and the projections that they are here."""
    folder.mkdir()
    tensors, products = {}, {}
    for (layer, module), name in modules.items():
        matrix = projection(base.blocks[layer], name)
        down, up = torch.randn(2, matrix.in_features), torch.randn(matrix.out_features, 2)
        prefix = f"base_model.model.model.layers.{layer}.{module}"
        tensors |= {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
        products[layer, name] = up @ down
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return products


def test_modules_have_the_names_of_the_family(tmp_path: Path) -> None:
    base = lfm()
    modules = {
        (1, "self_attn.out_proj"): "o_proj", (1, "self_attn.k_proj"): "k_proj", (2, "conv.out_proj"): "o_proj",
        (2, "feed_forward.w1"): "gate_proj", (3, "feed_forward.w2"): "down_proj", (3, "feed_forward.w3"): "up_proj",
    }  # fmt: skip
    products = write_lfm(tmp_path / "lora", modules, base)
    convert(tmp_path / "lora", base.config, tmp_path / "adapter.safetensors")
    tuned = load_stream_fused(base, tmp_path / "adapter.safetensors").base
    for layer, block in enumerate(tuned.blocks):
        for name in PROJECTIONS:
            before = projection(base.blocks[layer], name).weight
            added = products.get((layer, name), torch.zeros_like(before))
            torch.testing.assert_close(projection(block, name).weight, before + added, atol=0.05, rtol=2e-3)


def test_the_gates_of_lfm3_cannot_be_tuned_and_its_projections_can(tmp_path: Path) -> None:
    kinds = ["conv", "sliding_attention", "full_attention", "conv"]
    base = tiny.base(architectures=["Lfm3ForCausalLM"], layer_types=kinds, head_dim=8, sliding_window=4)
    products = write_lfm(tmp_path / "lora", {(1, "self_attn.o_proj"): "o_proj", (3, "conv.out_proj"): "o_proj"}, base)
    convert(tmp_path / "lora", base.config, tmp_path / "adapter.safetensors")
    tuned = load_stream_fused(base, tmp_path / "adapter.safetensors").base
    found = projection(tuned.blocks[1], "o_proj").weight - projection(base.blocks[1], "o_proj").weight
    torch.testing.assert_close(found, products[1, "o_proj"], atol=0.05, rtol=2e-3)
    for i, name in enumerate(("gate_proj", "g_proj")):
        write_lfm(tmp_path / f"gates{i}", {(1, f"self_attn.{name}"): "o_proj"}, base)
        with pytest.raises(
            CheckpointError, match=rf"self_attn\.{name}.*tune q_proj, k_proj, v_proj, o_proj, out_proj, w1"
        ):
            convert(tmp_path / f"gates{i}", base.config, tmp_path / "gates.safetensors")


def test_rows_have_the_order_of_the_model(tmp_path: Path) -> None:
    """ERNIE rotates neighboring numbers of q and k together, here numbers half a head apart."""
    folders = tmp_path / "base", tmp_path / "merged"
    model = hf_model("Ernie4_5", {"head_dim": 16})
    model.save_pretrained(folders[0])
    tensors = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        matrix = getattr(model.model.layers[1].self_attn, name)
        down, up = torch.randn(2, matrix.in_features), torch.randn(matrix.out_features, 2)
        prefix = f"base_model.model.model.layers.1.self_attn.{name}"
        tensors |= {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
        matrix.weight.data += up @ down
    model.save_pretrained(folders[1])
    (folders[0] / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    save_file(tensors, folders[0] / "adapter_model.safetensors")
    base, merged = map(load_base, folders)
    convert(folders[0], base.config, tmp_path / "adapter.safetensors")
    tuned = load_stream_fused(base, tmp_path / "adapter.safetensors").base
    for name in ("q_proj", "k_proj", "v_proj"):
        found, expected = (projection(model.blocks[1], name).weight for model in (tuned, merged))
        torch.testing.assert_close(found, expected, atol=0.05, rtol=2e-3)


@pytest.mark.parametrize(
    ("layer", "module", "words"),
    [
        (
            2,
            "self_attn.q_proj",
            "the base has no model.layers.2.self_attn.q_proj; the adapter was trained on another model",
        ),
        (1, "conv.out_proj", "the base has no model.layers.1.conv.out_proj"),
        (0, "conv.in_proj", "adapters may tune q_proj, k_proj, v_proj, out_proj, w1, w3, w2; merge the adapter"),
    ],
)
def test_modules_that_the_base_lacks_are_refused(layer: int, module: str, words: str, tmp_path: Path) -> None:
    base = lfm()
    write_lfm(tmp_path / "lora", {(layer, module): "o_proj"}, base)
    with pytest.raises(CheckpointError, match=words):
        convert(tmp_path / "lora", base.config, tmp_path / "adapter.safetensors")


def test_its_chat_template_goes_along(tmp_path: Path) -> None:
    write(tmp_path / "lora")
    (tmp_path / "lora" / "chat_template.jinja").write_text("own")
    convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")
    assert read_adapter(tmp_path / "adapter.safetensors")[2]["chat_template"] == "own"


@pytest.mark.parametrize(
    ("word", "id_", "stored"),
    [("<|im_end|>", 7, "7"), ("<eos>", tiny.EOS, None), ("<|im_end|>", 40, None), (None, 7, None)],
)
def test_the_token_that_ends_its_answers_goes_along(
    word: str | None, id_: int, stored: str | None, tmp_path: Path
) -> None:
    """If the base ends answers with another one; a token that the base does not have ends none."""
    write(tmp_path / "lora")
    settings = {"eos_token": word, "added_tokens_decoder": {str(id_): {"content": word or "x"}}}
    (tmp_path / "lora" / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")
    assert read_adapter(tmp_path / "adapter.safetensors")[2].get("eos_token_id") == stored


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"peft_type": "LOHA"}, r"peft_type 'LOHA' is not supported; merge the adapter"),
        ({"use_dora": True}, "use_dora True is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' is not supported"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\] is not supported"),
        ({"lora_alpha": "six"}, "lora_alpha must be a number, not 'six'"),
        (
            {"layers": (4,)},
            "tunes layer 4, and the base has 4 layers, numbered from 0; it was trained on another model",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    layers = settings.pop("layers", (1,))
    if layers == (4,):
        write(tmp_path / "lora")
        file = tmp_path / "lora" / "adapter_model.safetensors"
        name = "base_model.model.model.layers.4.self_attn.q_proj.lora_"
        save_file({f"{name}A.weight": torch.ones(1, 32), f"{name}B.weight": torch.ones(32, 1)}, file)
    else:
        write(tmp_path / "lora", **settings)
    with pytest.raises(CheckpointError, match=problem):
        convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")


def test_pickled_weights_and_a_full_disk_are_named(tmp_path: Path) -> None:
    write(tmp_path / "lora")
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"a\.safetensors: cannot be written \(Is a directory"):
        convert(tmp_path / "lora", BASE.config, tmp_path / "a.safetensors")
    assert not list(tmp_path.glob("*.tmp"))
    (tmp_path / "lora/adapter_model.safetensors").rename(tmp_path / "lora/adapter_model.bin")
    with pytest.raises(
        CheckpointError, match=r"save adapter_model\.bin, which is in PyTorch's pickle format, as safetensors"
    ):
        convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (
            {"base_model.model.lm_head.lora_A.weight": (2, 32)},
            r"'base_model\.model\.lm_head.* is not supported; .*; merge",
        ),
        (
            {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (2, 32)},
            "self_attn.q_proj needs lora_A and lora_B of the same rank",
        ),
        (
            {
                "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (2, 33),
                "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 2),
            },
            "has 33 inputs and 32 outputs, the base's has 32 and 32; it was trained on another model",
        ),
        ({}, "has no tensors"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, tensors: dict[str, Any], problem: str) -> None:
    write(tmp_path / "lora")
    save_file({name: torch.ones(shape) for name, shape in tensors.items()}, tmp_path / "lora/adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        convert(tmp_path / "lora", BASE.config, tmp_path / "adapter.safetensors")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_lora_is_not_overwritten_by_the_adapter_that_is_made_of_it(name: str, tmp_path: Path) -> None:
    base = tiny.write_base(tmp_path / "mine", BASE)
    (base / "tokenizer.json").write_text('{"model": {}}')
    write(tmp_path / "lora")
    before = {path: path.read_bytes() for path in (tmp_path / "lora").iterdir()}
    out = tmp_path / "lora" / name
    arguments = ["adapter", "convert", tmp_path / "lora", "--model", base, "-o", out]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--output {out} would overwrite an input of FOLDER; name another file" in result.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "lora").iterdir()} == before


def test_a_lora_of_another_base_of_the_same_shape_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny.write_base(tmp_path / "mine", BASE)
    (base / "tokenizer.json").write_text('{"model": {}}')
    monkeypatch.chdir(base)
    for trained_on, model, warned in (("me/Mine", base, False), ("me/Mine", ".", False), ("Qwen/Other", base, True)):
        write(tmp_path / "lora", base_model_name_or_path=trained_on)
        arguments = ["adapter", "convert", tmp_path / "lora", "--model", model, "-o", tmp_path / "a.safetensors"]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.stderr
        assert ("was trained on Qwen/Other, and --model is" in result.stderr) == warned
