"""A checkpoint folder from anywhere: each wrong field, file and number is one sentence that names it.

Run: python -m pytest tests/model/test_model_config.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from streamfuse.adapters import find
from streamfuse.export import selftest
from streamfuse.model.checkpoint import load_base, own_template, read_adapter, save_adapter
from streamfuse.model.config import CheckpointError, ModelConfig, StreamConfig
from streamfuse.model.fields import CheckpointWarning
from streamfuse.model.pull import check_folder
from streamfuse.runtime.text import TextError
from streamfuse.train.config import DistillConfig, TrainConfig

INFINITY = float("inf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_base(tmp_path / "base", tiny.base())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", -64),
        ("hidden_size", 0),
        ("hidden_size", "abc"),
        ("hidden_size", [1]),
        ("hidden_size", 32.5),
        ("hidden_size", INFINITY),
        ("intermediate_size", 10**30),
        ("vocab_size", -1),
        ("num_hidden_layers", 0),
        ("num_attention_heads", 0),
        ("num_attention_heads", None),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("max_position_embeddings", 0),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", "small"),
        ("rope_theta", -1),
        ("rope_scaling", [1]),
        ("rope_scaling", {"rope_type": [1]}),
        ("rope_scaling", {"rope_type": "linear", "factor": "x"}),
        ("eos_token_id", "x"),
        ("eos_token_id", [99999]),
        ("eos_token_id", -1),
        ("bos_token_id", "x"),
        ("architectures", [[]]),
        ("architectures", {"a": 1}),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**tiny.CONFIG, field: value}))
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'config.json'}: ")
    named = field.removesuffix("s").replace("rope_scaling", "rope")
    assert named in message or value == INFINITY  # infinity is not JSON
    assert "\n" not in message


@pytest.mark.parametrize("value", ["x", [0, 99999], -1])
def test_a_wrong_end_token_is_blamed_on_its_own_file(value: Any, folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match=r"/generation_config\.json: eos_token_id .* is not a token id below 40"):
        ModelConfig.load(folder)


def test_an_end_token_that_another_file_replaces_is_not_read(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**tiny.CONFIG, "eos_token_id": 99999}))
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert ModelConfig.load(folder).eos_token_ids == (3,)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b'{"eos', b"[1]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}'])
def test_a_file_that_is_no_json_object_is_blamed_itself(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"/{name}: (not valid JSON|must be a JSON object)"):
        ModelConfig.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"[]", "must be a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template must be text"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.json", b'{"chat_template": 5}', "chat_template must be text"),
    ],
)
def test_a_chat_template_that_cannot_be_read_is_named(name: str, content: bytes, words: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"/{name}: .*{words}"):
        own_template(folder)


def test_a_template_beside_those_of_the_tokenizer_is_read_last(folder: Path) -> None:
    """Models with a part for images may have theirs in chat_template.json."""
    (folder / "chat_template.json").write_text('{"chat_template": "a"}')
    assert own_template(folder) == "a"
    (folder / "tokenizer_config.json").write_text('{"chat_template": "b"}')
    assert own_template(folder) == "b"


def test_of_several_chat_templates_the_default_one_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert own_template(folder) == "a"


def test_several_chat_templates_with_none_called_default_are_not_dropped_without_a_word(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "b"}, {"name": "rag", "template": "a"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    with pytest.warns(CheckpointWarning, match="chat templates are tool_use, rag, and none is named default"):
        assert own_template(folder) is None
    (folder / "tokenizer_config.json").unlink()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("b")
    with pytest.warns(CheckpointWarning, match="chat templates are tool_use, and none is named default"):
        assert own_template(folder) is None


def test_a_peft_folder_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    lora = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 32)}
    save_file(lora, tmp_path / "adapter_model.safetensors")
    for read in (lambda: find(str(tmp_path)), lambda: ModelConfig.load(tmp_path),
                 lambda: read_adapter(tmp_path / "adapter_model.safetensors")):  # fmt: skip
        with pytest.raises((CheckpointError, FileNotFoundError), match=r"is a PEFT adapter .* merge it .* --model"):
            read()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_peft_folder_with_the_bases_configuration_is_called_what_it_is(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match=f"^{folder} is a PEFT adapter .*`streamfuse adapter convert`"):
        check_folder(folder)


def test_a_folder_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is a folder; name the adapter's file in it"):
        find(str(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), INFINITY])
def test_a_weight_that_is_no_number_is_named(value: float, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight.* NaN or infinite"):
        load_base(folder)


def test_an_adapter_with_nan_is_named(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base())
    with torch.no_grad():
        next(iter(model.extra_parameters())).fill_(float("nan"))
    save_adapter(model, tmp_path / "bad.safetensors")
    with pytest.raises(CheckpointError, match=r"bad\.safetensors: tensor .* NaN or infinite"):
        read_adapter(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("value", [float("nan"), -INFINITY])
@pytest.mark.parametrize("figure", ["snr_db", "top1_agreement"])
def test_the_parity_gate_stops_what_is_no_number(figure: str, value: float) -> None:
    row = {"snr_db": 99.0, "top1_agreement": 1.0, figure: value}
    with pytest.raises(selftest.ParityError, match=figure):
        selftest.check({selftest.WALK: row}, selftest.FLOORS["float32"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"adapter_alpha": NaN}', "NaN is not a JSON number"),
        ('{"num_streams": "3"}', "num_streams"),
        ('{"parent_rank": 1.5}', "parent_rank"),
        ("[1]", "cannot convert dictionary"),
        ("5", "not iterable"),
    ],
)
def test_stream_settings_of_a_wrong_kind_are_refused(text: str, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        StreamConfig.from_json(text)


@pytest.mark.parametrize("name", ["learning_rate", "embedding_learning_rate", "alpha_streams", "epochs"])
@pytest.mark.parametrize("value", [float("nan"), INFINITY, 0.0, -1.0])
def test_training_needs_positive_numbers(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be above 0"):
        TrainConfig(Path("m"), ("d",), Path("o"), Path("a"), **{name: value})


@pytest.mark.parametrize("name", ["limit", "max_steps", "seed"])
def test_training_needs_counts(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        TrainConfig(Path("m"), ("d",), Path("o"), Path("a"), **{name: -1})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"anchors": 0.0}, "^anchors must be above 0 and at most 1"),
        ({"anchors": float("nan")}, "^anchors must be above 0 and at most 1"),
        ({"anchors": 0.5, "soft_targets": 0.1}, "^anchors below 1 go with mode lossless without soft_targets"),
        ({"anchors": 0.5, "mode": "shared", "init_adapter": Path("b")}, "^anchors below 1 go with mode lossless"),
    ],
)
def test_anchors_of_a_run_are_a_part_that_its_loss_allows(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TrainConfig(Path("m"), ("d",), Path("o"), Path("a"), **settings)


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_distilling_needs_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        DistillConfig(**{name: float("nan")})


def test_the_preview_reads_the_tokenizer(tmp_path: Path) -> None:
    from export_samples import config_for, tiny_model, write_checkpoint

    from streamfuse.export.preview import preview

    made = write_checkpoint(tmp_path / "base", tiny_model())
    (made[0] / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(TextError, match=r"tokenizer\.json: not a tokenizer"):
        preview(config_for(made, tmp_path / "out"))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% unknown %}", "the chat template is not valid Jinja"),
        ("{{ raise_exception('tools alone') }}", r"the chat template refuses these messages \(tools alone\)"),
        ("{{ messages[0].content }}{{ raise_exception('one') if messages[1:] }}", r"refuses these messages \(one\)"),
        ("{% for part in messages[0].content %}{{ part.words }}{% endfor %}", "template leaves out the question"),
    ],
)
def test_an_export_tries_the_chat_template_first(template: str, words: str, tmp_path: Path) -> None:
    from export_samples import config_for, tiny_model, write_checkpoint

    from streamfuse.export.pipeline import run_export
    from streamfuse.export.preview import preview

    made = write_checkpoint(tmp_path / "base", tiny_model())
    (made[0] / "chat_template.jinja").write_text(template)
    for export in (preview, run_export):
        with pytest.raises(CheckpointError, match=f"{words}.*; mend its chat template, or take it out"):
            export(config_for(made, tmp_path / "out"))
