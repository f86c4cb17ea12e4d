"""Random models of a given shape: they load, and a plan for them can be previewed without weights.

Run: python -m pytest tests/model/test_model_random.py
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import tiny
import torch
from bundle_samples import byte_tokenizer
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.export.config import ExportConfig
from streamfuse.export.preview import preview
from streamfuse.export.resolve import resolve
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.model.config import ARCHITECTURES, ModelConfig
from streamfuse.model.random_model import ADAPTER, SHAPES, main, write_random_model
from streamfuse.runtime.text import Tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_a_random_model_loads_with_its_streams(tied: bool, tokenizer: Path, tmp_path: Path) -> None:
    shape = {**tiny.CONFIG, "vocab_size": 258, "tie_word_embeddings": tied}
    write_random_model(tmp_path / "model", shape, tokenizer)
    model = load_stream_fused(load_base(tmp_path / "model"), tmp_path / "model" / ADAPTER)
    logits = model.base(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3, 258)
    assert 0.1 < float(logits.std()) < 10
    assert (model.base.lm_head.weight is model.base.embed_tokens.weight) == tied


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.75}),
        ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 16}),
        ("Qwen2ForCausalLM", {}),
    ],
)
def test_a_random_model_has_the_tensors_of_its_family(family: str, own: dict[str, object], tmp_path: Path) -> None:
    shape = {**tiny.CONFIG, "architectures": [family], "model_type": ARCHITECTURES[family], "vocab_size": 256, **own}
    write_random_model(tmp_path, shape)
    base = load_base(tmp_path)
    assert {name: float(weight.mean()) for name, weight in base.named_parameters() if name.endswith("norm.weight")} == {
        name: 1.0 for name, _ in base.named_parameters() if name.endswith("norm.weight")
    }
    biases = [weight for name, weight in base.named_parameters() if name.endswith("bias")]
    assert all(0 < float(bias.abs().max()) < 1 for bias in biases)
    assert bool(biases) == (family == "Qwen2ForCausalLM")


def test_a_shape_has_the_same_weights_each_time(tmp_path: Path) -> None:
    states = []
    for name in ("one", "two"):
        torch.rand(1)  # what was drawn before changes nothing
        write_random_model(tmp_path / name, {**tiny.CONFIG, "vocab_size": 258})
        states.append(load_stream_fused(load_base(tmp_path / name), tmp_path / name / ADAPTER).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_without_a_tokenizer_a_token_is_a_byte(tmp_path: Path) -> None:
    write_random_model(tmp_path, {**tiny.CONFIG, "vocab_size": 256}, weights=False)
    text = Tokenizer(tmp_path / "tokenizer.json", None)
    ids = text.encode("Größe, 大")
    assert len(ids) == len("Größe, 大".encode())
    assert max(ids) < 256
    assert text.decode(ids) == "Größe, 大"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135m", 0.135),
        ("smollm2-360m", 0.362),
        ("llama-3.2-1b", 1.236),
        ("llama-3.2-3b", 3.213),
        ("llama-3.1-8b", 8.030),
    ],
)
def test_the_shapes_have_their_sizes_without_weights(
    name: str, billions: float, tokenizer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / name
    write_random_model(folder, SHAPES[name], tokenizer, weights=False)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000_000  # the adapter is most of it
    found = preview(resolve(ExportConfig(folder, folder / ADAPTER, tmp_path / "bundle")))
    config = ModelConfig.load(folder)
    base = sum(found.parts[part].parameters for part in ("embedding", "attention", "mlp", "head"))
    tied = config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
    assert round((base - tied) / 1e9, 3) == billions
    assert found.calls["decode"] == 4 * config.num_layers + 4
    in_int8 = config.head_dim * 34 // 32 + config.head_dim * 17 // 16 + 4
    assert found.cache_bytes == 1024 * config.num_layers * config.num_kv_heads * in_int8


def test_the_printed_command_previews_an_export_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {**tiny.CONFIG, "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96}
    Path("shape.json").write_text(json.dumps(shape))
    monkeypatch.setattr(sys, "argv", ["random_model", "model", "--shape", "shape.json", "--no-weights"])
    main()
    _, *command = [*shlex.split(capsys.readouterr().out), "--max-context-len", "128"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert "the export itself" in done.stdout
    done = CliRunner().invoke(app, [word for word in command if word != "--dry-run"])
    assert done.exit_code == 1
    assert "no model.safetensors in it" in done.stderr
