"""Options of an export: what is refused and how, and what `streamfuse export --dry-run` shows without writing anything.

Run: python -m pytest tests/export/test_export_config.py
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from bundle_samples import byte_tokenizer
from export_samples import TEXT, config_for, decode_rows, tiny_model, verify_rows, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.cli.shared.declared import read_config
from streamfuse.export import facts
from streamfuse.export.adapter import resolve_for_adapter
from streamfuse.export.capabilities import BACKENDS, own_options
from streamfuse.export.config import ExportConfig, ExportOptions
from streamfuse.export.cost import export_cost
from streamfuse.export.draft import draft_arrays
from streamfuse.export.graphs import build_methods
from streamfuse.export.pipeline import check_finite, run_export
from streamfuse.export.preview import preview, with_streams
from streamfuse.export.resolve import resolve
from streamfuse.export.selftest import WALK, Floor, ParityError, PassResult, Script, check
from streamfuse.export.sizes import schemes
from streamfuse.export.weights import Weights
from streamfuse.model.checkpoint import load_base, load_config, load_stream_fused, read_adapter, replace_ngrams
from streamfuse.model.config import CheckpointError
from streamfuse.model.fields import CheckpointWarning
from streamfuse.model.ngrams import bytes_of
from streamfuse.model.pull import check_folder
from streamfuse.options import OptionError, choices_of, types_of
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.train.formats import Example
from streamfuse.train.ngram_counts import count_ngrams

Checkpoint = tuple[Path, Path]
FITTING = ("--max-context-len", "128", "--prefill-len", "8", "--top-k", "5")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    torch.manual_seed(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint", tiny_model())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_context_len": 31}, "--max-context-len must be from 32 to 131072, not 31"),
        ({"prefill_len": 0}, "--prefill-len must be from 1 to 128, not 0"),
        ({"prefill_len": 65, "max_context_len": 64}, "--prefill-len must be from 1 to 64, not 65"),
        ({"prune_keep": 65}, "--prune-keep must be from 1 to 64, not 65"),
        ({"top_k": 0}, "--top-k must be from 1 to 64, not 0"),
        ({"ngram_table_mb": 25}, "--ngram-table-mb must be from 0 to 24, not 25"),
        ({"ngram_table_mb": -1}, "--ngram-table-mb must be from 0 to 24, not -1"),
        ({"group_size": 48}, "--group-size must be 32 with --backend kernels, not 48"),
        ({"widths": (8, 4)}, "--widths must be ascending and distinct, not 8,4"),
        ({"widths": (4, 4)}, "--widths must be ascending and distinct, not 4,4"),
        ({"widths": (0, 4)}, "--widths must be from 1 to 64, not 0"),
        ({"widths": (1,)}, "--widths must name a width above 1 too; 1 is a plain pass that carries its streams"),
        ({"widths": (32,), "max_context_len": 32}, "--widths must be from 1 to 16, not 32"),
        ({"default_width": 8}, "--default-width must be one of --widths 4,12, not 8"),
        ({"prune_keep": {8: 4}}, "--prune-keep names the width 8, which is not one of --widths 4,12"),
        ({"prune_keep": {12: 13}}, "--prune-keep must be from 1 to 12, not 13"),
        (
            {"prune_threshold": 0.1, "prune_keep": 12},
            "--prune-threshold needs a width that is pruned; give --prune-keep fewer nodes than --widths",
        ),
        ({"prune_threshold": 1.0}, "--prune-threshold must be from 0 to below 1, not 1"),
        (
            {"prune_threshold": 0.1, "backend": "xnnpack"},
            "--prune-threshold goes with --backend kernels, not with --backend xnnpack",
        ),
        ({"stream_nodes": 0}, "--stream-nodes must be from 1 to 64, not 0"),
        ({"stream_nodes": "some"}, "--stream-nodes must be a number, numbers by width, or all, not some"),
        ({"group_size": 64}, "--group-size must be 32 with --backend kernels, not 64"),
        ({"target": "tflite"}, "--target must be one of executorch, coreml, onnx, not tflite"),
        (
            {"backend": "mps"},
            "--backend must be one of kernels, xnnpack, coreml, vulkan, qnn, openvino with --target executorch, not "
            "mps",
        ),
        ({"target": "onnx", "backend": "vulkan"}, "--backend must be onnxruntime with --target onnx, not vulkan"),
        (
            {"quantize": "none"},
            "--quantize must be one of q4_1, q8_0 with --backend kernels, not none",
        ),
        (
            {"quantize": "8da8w", "backend": "xnnpack"},
            "--quantize must be one of 8da4w, none with --backend xnnpack, not 8da8w",
        ),
        (
            {"quantize": "8da4w", "target": "coreml"},
            "--quantize must be one of int4, int8, none with --target coreml, not 8da4w",
        ),
        ({"dtype": "float16"}, "--dtype must be float32 with --backend kernels, not float16"),
        ({"layout": "ane"}, "--layout goes with --target coreml, not with --backend kernels"),
        (
            {"compute_units": "gpu", "target": "coreml"},
            "--compute-units must be one of all, cpu_and_ne, cpu_and_gpu, cpu_only, not gpu",
        ),
        (
            {"minimum_deployment_target": "iOS9", "backend": "coreml"},
            "--minimum-deployment-target must be one of iOS18, iOS26, macOS15, macOS26, not iOS9",
        ),
        (
            {"scheme": {"head": "q4_1"}, "backend": "xnnpack"},
            "--scheme does not go with --backend xnnpack, whose graphs have one scheme per part",
        ),
        (
            {"scheme": {"mlp": "int4:48"}, "target": "onnx"},
            "--scheme mlp=int4:48: 48 is not a group size (32, 64, 128, 256), channel, symmetric or affine",
        ),
        (
            {"scheme": {"mlp": "q4_1"}, "target": "coreml"},
            "--scheme must be PART=SCHEME with a part of embedding, attention, mlp, head, streams and a scheme of "
            "int4, int8 or float, then :GROUP or :channel, then :symmetric or :affine, for example mlp=int4:32:affine, "
            "not mlp=q4_1",
        ),
        (
            {"scheme": {"norm": "q4_1"}},
            "--scheme must be PART=GRID with a part of attention, mlp, head, streams and a grid of q4_1, q8_0 "
            "with --backend kernels, not norm=q4_1",
        ),
    ],
)
def test_a_value_out_of_range_is_named_with_its_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        config_for((Path(), Path()), Path("bundle"), **changes)
    assert error.value.flags == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_streams": 4}, "--num-streams must be from 1 to 3, not 4"),
        ({"max_context_len": 160}, "--max-context-len must be from 32 to 128 for this model, not 160"),
        (
            {"group_size": 64, "backend": "xnnpack"},
            "--group-size must divide this model's sizes 64, 96 (one of 32), not 64",
        ),
    ],
)
def test_a_value_that_the_model_cannot_serve_is_named(
    checkpoint: Checkpoint, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as error:
        preview(config_for(checkpoint, tmp_path / "bundle", **changes))
    assert error.value.flags == message


def test_pruning_needs_a_pruner(tmp_path: Path) -> None:
    bare = write_checkpoint(tmp_path / "bare", tiny_model({"pruner_rank": 0}))
    with pytest.raises(OptionError, match="at least 12 for this adapter, which has no pruner"):
        preview(config_for(bare, tmp_path / "bundle"))
    for schedule, carrying in (("deferred", 0), ("fused", 12), ("both", 12)):
        usual = {"prune_keep": "auto", "stream_nodes": "auto", "schedule": schedule}
        unpruned = resolve_for_adapter(config_for(bare, tmp_path / "bundle", **usual))
        preview(unpruned)
        assert unpruned.shapes.verify[-1] == (12, 12, carrying)
    with pytest.raises(OptionError, match="stream_nodes must be as many as are kept for this adapter"):
        preview(config_for(bare, tmp_path / "bundle", prune_keep=12))
    config = config_for(bare, tmp_path / "bundle", prune_keep=12, stream_nodes="all")
    pruned = write_checkpoint(tmp_path / "pruned", tiny_model({"pruner_rank": 2}))
    without, with_pruner = (preview(replace(config, model=one[0], adapter=one[1])) for one in (bare, pruned))
    of_pruner = 2 * 64 * 2 + 2  # a low-rank map of the hidden size, slope and offset
    assert with_pruner.parts["streams"].parameters - without.parts["streams"].parameters == of_pruner


def test_head_rows_of_drafted_tokens_are_stored_only_if_a_pruner_reads_them(tmp_path: Path) -> None:
    changes = {"tie_word_embeddings": False}
    own = write_checkpoint(tmp_path / "own", tiny_model({"pruner_rank": 2}, **changes), **changes)
    pruning, keeping = (
        config_for(own, tmp_path / "bundle", backend="xnnpack", **options)
        for options in ({"prune_keep": 6}, {"prune_keep": 12, "stream_nodes": "all"})
    )
    rows = load_config(own[0]).vocab_size * 64
    found = [preview(config).parts["streams"].parameters for config in (pruning, keeping)]
    assert found[0] - found[1] == rows
    model = load_stream_fused(load_base(own[0]), own[1])
    used = [Weights(model, config.shapes).candidates for config in (pruning, keeping)]
    assert [table is None for table in used] == [False, True]


def test_vulkan_has_no_zero_points(checkpoint: Checkpoint, tmp_path: Path) -> None:
    usual, named = (
        config_for(checkpoint, tmp_path / "bundle", backend="vulkan", quantize="int4", scheme=scheme)
        for scheme in ({}, {"mlp": "int4:32:symmetric"})
    )
    assert schemes(usual)["mlp"] == {"scheme": "int4:32:symmetric", "bits": 4, "group_size": 32, "symmetric": True}
    assert preview(usual).parts["mlp"] == preview(named).parts["mlp"]
    assert schemes(config_for(checkpoint, tmp_path / "bundle", backend="vulkan"))["mlp"]["symmetric"] is None


def test_a_softmax_pruner_has_no_slope_and_goes_with_the_kernels(tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path / "own", tiny_model({"pruner_score": "softmax"}))
    usual = write_checkpoint(tmp_path / "usual", tiny_model())
    parameters = [preview(config_for(one, tmp_path / "bundle")).parts["streams"].parameters for one in (own, usual)]
    assert parameters[1] - parameters[0] == 2
    with pytest.raises(OptionError, match="softmax over the vocabulary, which goes with backend kernels"):
        preview(config_for(own, tmp_path / "bundle", backend="xnnpack"))
    for schedule, flags in (("deferred", ""), ("fused", " stream_nodes all"), ("both", " stream_nodes all")):
        with pytest.raises(OptionError, match=f"; prune_keep 12{flags} leaves the pruner out"):
            preview(config_for(own, tmp_path / "bundle", backend="xnnpack", schedule=schedule))
    preview(config_for(own, tmp_path / "bundle", backend="xnnpack", prune_keep=12, stream_nodes="all"))


def test_narrow_heads_need_stock_operators(tmp_path: Path) -> None:
    changes = {"num_attention_heads": 8, "num_key_value_heads": 4}
    own = write_checkpoint(tmp_path / "narrow", tiny_model(**changes), **changes)
    with pytest.raises(OptionError, match=r"backend kernels needs heads of a multiple of 16.*; use backend xnnpack"):
        preview(config_for(own, tmp_path / "bundle"))
    preview(config_for(own, tmp_path / "bundle", backend="xnnpack"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(4, 4, 4), (12, 6, 3)]),
        ({"prune_keep": {4: 2}, "stream_nodes": "all"}, [(4, 2, 2), (12, 12, 12)]),
        ({"prune_keep": 3, "stream_nodes": 8}, [(4, 3, 3), (12, 3, 3)]),
        ({"schedule": "deferred"}, [(4, 4, 0), (12, 6, 0)]),
        ({"schedule": "both", "stream_nodes": 1}, [(4, 4, 1), (12, 6, 1)]),
    ],
)
def test_a_plan_says_nodes_survivors_and_carriers_of_each_width(
    changes: dict[str, Any], expected: list[tuple[int, int, int]]
) -> None:
    config = config_for((Path(), Path()), Path("bundle"), **changes)
    assert config.shapes.verify == expected
    assert config.shapes.deferred == ("schedule" in changes)


def test_python_reads_keywords_where_the_command_line_reads_flags() -> None:
    with pytest.raises(OptionError) as error:
        config_for((Path(), Path()), Path("bundle"), default_width=8)
    assert str(error.value) == "default_width must be one of widths 4,12, not 8"
    with pytest.raises(OptionError, match=r"^scheme does not go with backend xnnpack"):
        config_for((Path(), Path()), Path("bundle"), backend="xnnpack", scheme={"head": "q4_1"})


def test_a_plan_follows_from_its_values_and_not_from_the_disk(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder, adapter = checkpoint
    nowhere = resolve(ExportConfig(folder, tmp_path / "no.safetensors", tmp_path / "bundle"))
    assert resolve(ExportConfig(folder, adapter, tmp_path / "bundle")).widths == nowhere.widths == (4, 8, 16)
    loaded = resolve_for_adapter(ExportConfig(folder, adapter, tmp_path / "bundle"))
    assert loaded.widths == (1, 4, 8, 16)
    assert loaded == resolve(ExportConfig(folder, adapter, tmp_path / "bundle"), read_adapter(adapter)[0])
    with pytest.raises(CheckpointError, match=r"no\.safetensors: no such adapter file"):
        resolve_for_adapter(ExportConfig(folder, tmp_path / "no.safetensors", tmp_path / "bundle"))


@pytest.mark.parametrize(("widths", "chosen"), [((4,), 4), ((4, 8, 16), 8), ((4, 6), 6), ((16, 32), 16), ((1, 16), 16)])
def test_the_default_width_follows_the_widths(widths: tuple[int, ...], chosen: int) -> None:
    assert resolve(ExportConfig(Path(), Path(), Path("bundle"), widths=widths)).default_width == chosen


def test_options_of_core_ml_are_chosen_where_they_mean_something() -> None:
    for where, units in (({"target": "coreml"}, "cpu_and_ne"), ({"backend": "coreml"}, "cpu_and_ne"), ({}, "auto")):
        config = resolve(ExportConfig(Path(), Path(), Path("bundle"), **where))
        assert config.compute_units == units
        assert replace(config, model=Path("other")) == replace(config, model=Path("other"), compute_units=units)


@pytest.mark.parametrize("backend", ["kernels", "xnnpack"])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight"])
def test_a_weight_that_cannot_be_quantized_is_named(name: str, backend: str, tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path / "own", tiny_model())
    weights = load_file(own[0] / "model.safetensors")
    weights[name][3, 3] = -1e30
    save_file(weights, own[0] / "model.safetensors", metadata={"format": "pt"})
    tensor = name.removeprefix("model.")
    words = rf"own( with .* merged)?: tensor '{tensor}' has a weight of magnitude 1e\+30, and the largest .* 65504"
    with pytest.raises(CheckpointError, match=words):
        run_export(config_for(own, tmp_path / "bundle", backend=backend))
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("changes", "name", "weight", "words"),
    [
        ({"target": "onnx", "dtype": "float16"}, "norm.weight", 1e5, "has a weight of magnitude 1e\\+05, .* 65504"),
        ({}, "layers.1.input_layernorm.weight", 1e30, "NaN or infinite in float32 already; .* of magnitude 1e\\+30; "),
    ],
)
def test_a_weight_of_a_norm_that_overflows_is_named(
    changes: dict[str, str], name: str, weight: float, words: str, tmp_path: Path
) -> None:
    own = write_checkpoint(tmp_path / "own", tiny_model())
    weights = load_file(own[0] / "model.safetensors")
    weights[f"model.{name}"][3] = weight
    save_file(weights, own[0] / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=words) as error:
        run_export(config_for(own, tmp_path / "bundle", **changes))
    assert f"tensor '{name}'" in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("weight", [math.nan, -math.inf])
def test_a_weight_that_is_not_finite_is_named_wherever_it_is(checkpoint: Checkpoint, weight: float) -> None:
    """As a GGUF may have them: safetensors files with such weights are refused when they are read."""
    config = config_for(checkpoint, Path("bundle"))
    undefined = PassResult("decode", {0: np.full(4, np.nan, np.float32)})
    model = tiny_model()
    for name in ("base.embed_tokens.weight", "base.layers.1.input_layernorm.weight", "base.norm.weight"):
        flat = dict(model.named_parameters())[name].detach().view(-1)
        finite = flat[3].item()
        flat[3] = weight
        with pytest.raises(CheckpointError, match=f"has a weight of magnitude {abs(weight)}; ") as error:
            check_finite(config, model, [undefined])
        assert f"tensor '{name.removeprefix('base.')}'" in str(error.value)
        flat[3] = finite


def test_sizes_that_no_block_of_onnx_runtime_divides_are_named_before_anything_is_loaded(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_model())
    config = json.loads((checkpoint[0] / "config.json").read_text())
    (checkpoint[0] / "config.json").write_text(json.dumps({**config, "intermediate_size": 72}))
    weights = load_file(checkpoint[0] / "model.safetensors")
    for name in [name for name in weights if ".mlp." in name]:
        cut = weights[name][:, :72] if "down_proj" in name else weights[name][:72]
        weights[name] = cut.contiguous()
    save_file(weights, checkpoint[0] / "model.safetensors", metadata={"format": "pt"})
    for changes, words in (
        ({"quantize": "int8"}, "the group size of mlp must divide this model's sizes 64, 72 .*: use --quantize none"),
        ({"quantize": "int4"}, "--group-size must divide this model's sizes 64, 72 .*: use --quantize none"),
    ):
        config = ExportConfig(checkpoint[0], None, tmp_path / "bundle", target="onnx", max_context_len=128, **changes)
        with pytest.raises(OptionError) as refused:
            preview(resolve(config))
        assert re.search(words, refused.value.flags)


def test_added_tokens_without_a_row_of_the_embedding_are_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint[0], tmp_path / "padded")
    rows = load_config(folder).vocab_size
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([f"<{i}>" for i in range(rows + 2 - tokenizer.get_vocab_size())])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = config_for((folder, checkpoint[1]), tmp_path / "bundle")
    words = rf"tokenizer.json: added token {rows}, '<\d+>' and 1 more: the embedding has {rows} rows, so prompts with"
    with pytest.warns(CheckpointWarning) as caught:
        preview(config)
    assert re.search(words, str(caught[0].message))
    check_folder(folder)


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def without_adapter(folder: Path) -> None:
    (folder / "tiny.safetensors").unlink()


def with_more_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    (folder / "model.safetensors").unlink()  # which has the layers of before; a plan needs none


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_tokenizer, "tokenizer.json: no such file"),
        (without_adapter, "no such adapter file"),
        (with_more_layers, "trained on a base with num_layers 3, this one has 5"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    own = write_checkpoint(tmp_path / "own", tiny_model())
    damage(own[0])
    with pytest.raises(CheckpointError, match=re.escape(message)):
        preview(config_for(own, tmp_path / "bundle"))


def export_command(checkpoint: Checkpoint, *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    model, adapter = checkpoint
    result = CliRunner().invoke(app, ["export", "--model", str(model), "--adapter", str(adapter), *FITTING, *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_dry_run_prints_sizes_and_writes_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    code, stdout, stderr = export_command(checkpoint, "-o", str(folder), "--dry-run")
    assert (code, stderr) == (0, "")
    assert "cache" in stdout
    assert "calls of operators per pass\n  prefill                    12\n" in stdout
    assert "  caches                     0.0 MB for 128 tokens\n" in stdout
    assert "layout" not in stdout
    assert "tiny: 3 streams in the top 2 layers" in stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_with_stock_operators_counts_delegates(checkpoint: Checkpoint, tmp_path: Path) -> None:
    _, stdout, _ = export_command(checkpoint, "-o", str(tmp_path / "bundle"), "--dry-run", "--backend", "xnnpack")
    counts = {"prefill": 5, "decode": 7, "verify_4": 7, "verify_8": 7, "verify_16": 7, "streams": 5}
    lines = "".join(f"  {name:26} {count}\n" for name, count in counts.items())
    assert f"calls of delegates per pass\n{lines}" in stdout


# (flags, layers of all methods, weights, from a GGUF) and the figures of export_report.json: CPU seconds, GB.
SMOL = (158, 134_515_008, True)
MEASURED = [
    ({}, *SMOL, 34, 1.9),
    ({}, 88, 1_235_814_400, False, 287, 7.5),
    ({"backend": "xnnpack"}, *SMOL, 127, 2.8),
    ({"backend": "coreml", "quantize": "int8"}, *SMOL, 111, 3.8),
    ({"backend": "vulkan", "quantize": "int8"}, *SMOL, 198, 4.2),
    ({"backend": "openvino", "widths": (8,)}, 102, *SMOL[1:], 85, 3.6),
    ({"target": "coreml"}, *SMOL, 45, 2.7),
    ({"target": "coreml", "layout": "ane"}, *SMOL, 69, 2.8),
    ({"target": "onnx"}, *SMOL, 12, 2.0),
    ({"target": "onnx", "quantize": "int8"}, *SMOL, 15, 2.6),
]


@pytest.mark.parametrize(("changes", "layers", "weights", "on_grid", "seconds", "gigabytes"), MEASURED)
def test_a_dry_run_expects_what_exports_took_within_a_factor_of_two(
    changes: dict[str, Any], layers: int, weights: int, on_grid: bool, seconds: float, gigabytes: float
) -> None:
    config = resolve(ExportConfig(model=Path("model"), adapter=Path("adapter"), output_dir=Path("bundle"), **changes))
    cost = export_cost(config, layers, weights, on_grid)
    assert cost is not None
    assert 0.5 < cost.cpu_seconds / seconds < 2
    assert 0.5 < cost.peak_bytes / 1e9 / gigabytes < 2


def test_a_dry_run_as_json_is_the_plan_and_the_preview(checkpoint: Checkpoint, tmp_path: Path) -> None:
    code, stdout, _ = export_command(
        checkpoint,
        "-o",
        str(tmp_path / "bundle"),
        "--dry-run",
        "--json",
        "--num-streams",
        "2",
        "--prune-keep",
        "8:4,16:8",
        "--schedule",
        "both",
        "--stream-nodes",
        "all",
        "--scheme",
        "head=q4_1",
    )
    assert code == 0
    found = json.loads(stdout)
    assert (found["quantize"], found["num_streams"], found["widths"]) == ("q4_1", 2, [4, 8, 16])
    assert found["weight_bytes"] == sum(part["bytes"] for part in found["parts"].values())
    assert found["prune_keep"] == {"8": 4, "16": 8}
    assert found["parts"]["embedding"] == {"parameters": 258 * 64, "bytes": 258 * 2 * 34}
    assert found["parts"]["head"] == {"parameters": 258 * 64 + 64, "bytes": 258 * 2 * 20 + 64 * 4}
    assert found["cache_bytes"] == 128 * 3 * 2 * (34 + 17 + 4)  # int8 in groups of 32 and tiles of 16, and scales
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["8da4w", "8da8w"])
def test_the_integers_of_another_backend_are_refused(word: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"^quantize must be one of q4_1, q8_0 with backend kernels, not {word}$"):
        config_for(checkpoint, tmp_path / "bundle", quantize=word)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--quantize", "4bit"],
            "--quantize must be one of q4_1, q8_0 with --backend kernels, not 4bit",
        ),
        (
            ["--backend", "mps"],
            "--backend must be one of kernels, xnnpack, coreml, vulkan, qnn, openvino with --target executorch, not "
            "mps",
        ),
        (
            ["--compute-units", "all"],
            "--compute-units goes with --backend coreml or --target coreml, not with --backend k",
        ),
        (
            ["--minimum-deployment-target", "iOS26", "--target", "onnx"],
            "--minimum-deployment-target goes with --backend coreml or --target coreml, not with --target onnx",
        ),
        (["--stream-nodes", "4"], "--stream-nodes goes with --schedule fused or both"),
        (["--target", "coreml", "--layout", "ane", "--schedule", "both"], "--layout ane needs --schedule deferred"),
        (["--backend", "vulkan", "--scheme", "mlp=int8:32"], "--scheme mlp=int8 must be int8:channel with --backend v"),
        (
            ["--backend", "vulkan", "--scheme", "mlp=int4:32:affine"],
            "--scheme mlp=int4:32:affine must be symmetric with --backend vulkan",
        ),
        (
            ["--target", "coreml", "--quantize", "int8", "--group-size", "64"],
            "--group-size 64 has no effect: with --backend mlprogram --quantize int8 no part has weights in groups",
        ),
        (
            ["--backend", "openvino", "--scheme", "embedding=int4"],
            "--scheme embedding must be float or symmetric int8 with --backend openvino, not int4:32:affine",
        ),
        (["--backend", "maybe"], "--backend must be one of kernels, xnnpack, coreml, vulkan"),
        (["--schedule", "late"], "--schedule must be one of fused, deferred, both, not late"),
        (["--prune-keep", "8:x"], "--prune-keep must be a number, or like 8:4,16:8, not 8:x"),
        (["--stream-nodes", "x"], "--stream-nodes must be a number, or like 8:4,16:8, not x"),
        (["--scheme", "head"], "--scheme must be PART=SCHEME, for example head=q4_1 or mlp=int4:64, not head"),
        (["--widths", "4,x"], "--widths must be numbers with commas between"),
        (["--num-streams", "7"], "--num-streams must be from 1 to 3, not 7"),
        (["--backend", "xnnpack", "--group-size", "128"], "--group-size must divide this model's sizes"),
        (["--top-k", "65"], "--top-k must be from 1 to 64, not 65"),
        (["--max-context-len", "4096"], "--max-context-len must be from 32 to 128 for this model, not 4096"),
        (
            ["--adapter", "no-such-adapter"],
            "--adapter no-such-adapter: no such file, and not an adapter that ships (chat-lossless, ",
        ),
    ],
)
def test_a_wrong_flag_is_one_line(checkpoint: Checkpoint, tmp_path: Path, flags: list[str], words: str) -> None:
    code, stdout, stderr = export_command(checkpoint, "-o", str(tmp_path / "bundle"), *flags)
    assert (code, stdout) == (2, "")
    assert words in stderr
    assert stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_for_another_target_says_its_schemes_and_no_calls(checkpoint: Checkpoint, tmp_path: Path) -> None:
    flags = ("--target", "coreml", "--scheme", "mlp=int8:32", "--dry-run")
    code, stdout, _ = export_command(checkpoint, "-o", str(tmp_path / "bundle"), *flags)
    assert code == 0
    assert "MB, int4:32:affine\n  mlp " in stdout
    assert "MB, int8:32:symmetric\n  head " in stdout
    assert "  layout                     plain\n" in stdout
    assert "calls of" not in stdout


@pytest.mark.parametrize(("backend", "warned"), [("vulkan", True), ("xnnpack", False)])
def test_a_plan_for_vulkan_says_that_only_a_build_of_the_android_library_runs_it(
    checkpoint: Checkpoint, tmp_path: Path, backend: str, warned: bool
) -> None:
    flags = ("-o", str(tmp_path / "bundle"), "--dry-run", "--json", "--backend", backend)
    code, stdout, stderr = export_command(checkpoint, *flags)
    assert code == 0
    assert json.loads(stdout)
    assert ("android_demo/tools/aar --vulkan" in stderr) is warned


def test_sizes_follow_the_scales_and_offsets_of_the_target(checkpoint: Checkpoint, tmp_path: Path) -> None:
    weights = 258 * 64
    for changes, expected in (
        ({"target": "onnx"}, weights * (1 + 4 / 32)),  # its products know no channels, so groups of 32
        ({"target": "coreml"}, weights * (1 + 2 / 32)),  # a float16 scale per 32 weights, as in a GGUF
        ({"target": "coreml", "scheme": {"embedding": "int8:channel"}}, weights + 258 * 2),  # one per row
        ({"target": "coreml", "scheme": {"embedding": "int4:32"}}, weights * (4 / 8 + (2 + 2) / 32)),  # float offsets
        ({"target": "coreml", "scheme": {"embedding": "int4:64"}}, weights * (4 / 8 + (2 + 0.5) / 64)),
        ({"target": "onnx", "scheme": {"embedding": "float"}}, weights * 4),
    ):
        found = preview(config_for(checkpoint, tmp_path / "bundle", group_size=32, **changes))
        assert found.parts["embedding"].bytes == round(expected), changes


def test_each_of_openvinos_methods_counts_its_weights(checkpoint: Checkpoint, tmp_path: Path) -> None:
    settings = {"schedule": "deferred", "prune_keep": 4, "default_width": 4}
    found = {}
    for backend in ("openvino", "vulkan"):
        for widths in ((4,), (4, 8)):
            config = config_for(checkpoint, tmp_path / "bundle", backend=backend, widths=widths, **settings)
            found[backend, len(widths)] = preview(config)
    one, two = found["openvino", 1], found["openvino", 2]
    method = sum(one.parts[part].bytes for part in ("attention", "mlp", "head"))
    assert two.files["model.pte"] - one.files["model.pte"] == method
    assert two.run_bytes - one.run_bytes == method
    assert one.files["model.pte"] > 3 * method  # prefill, decode, verify_4, and two layers of `streams`
    assert found["vulkan", 1].files["model.pte"] == found["vulkan", 2].files["model.pte"]


def test_qnn_s_methods_have_weights_of_their_own_unless_they_share_them(checkpoint: Checkpoint, tmp_path: Path) -> None:
    settings = {"schedule": "deferred", "prune_keep": 4, "default_width": 4, "widths": (4,), "backend": "qnn"}
    alone, shared = (
        preview(config_for(checkpoint, tmp_path / "bundle", weight_sharing=sharing, **settings))
        for sharing in ("off", "on")
    )
    size = {name: part.bytes for name, part in shared.parts.items()}
    assert shared.files["model.pte"] == sum(size.values())
    more = 2 * size["embedding"] + size["head"] + 2 * (size["attention"] + size["mlp"])
    assert alone.files["model.pte"] - shared.files["model.pte"] >= more  # and the layers of `streams`


def write_config(folder: Path, text: str) -> str:
    (folder / "plan.yaml").write_text(text, encoding="utf-8")
    return str(folder / "plan.yaml")


def test_a_config_file_gives_the_flags_that_the_command_line_leaves_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    text = "widths: [4, 12]\ndefault-width: 4\nprune_keep: {12: 6}\nscheme: {head: q4_1}\ntop_k: 3\ndry_run: true\n"
    config = write_config(tmp_path, f"{text}output_dir: {tmp_path / 'bundle'}\n")
    code, stdout, stderr = export_command(checkpoint, "--config", config, "--json")
    assert (code, stderr) == (0, "")
    found = json.loads(stdout)
    assert (found["widths"], found["default_width"], found["prune_keep"]) == ([4, 12], 4, {"12": 6})
    assert found["scheme"] == {"head": "q4_1"}
    assert found["top_k"] == 5  # from the command line


def test_a_plan_read_from_its_own_report_is_the_same_plan(checkpoint: Checkpoint, tmp_path: Path) -> None:
    plan = config_for(checkpoint, tmp_path / "bundle", target="onnx", scheme={"mlp": "int8"}, stream_nodes="all")
    config = write_config(tmp_path, json.dumps(plan.to_dict()))  # JSON is YAML
    result = CliRunner().invoke(app, ["export", "-o", str(plan.output_dir), "--config", config, "--dry-run", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert {name: found[name] for name in plan.to_dict()} == json.loads(json.dumps(plan.to_dict()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("width: 8", "plan.yaml: width is not a flag of `streamfuse export`"),
        ("- 8", "plan.yaml must hold keys and values"),
        ("widths: [4", "plan.yaml cannot be read (while parsing a flow sequence"),
        ("top_k: many", "Invalid value for '--top-k'"),
        ("top_k: [1]", "plan.yaml: top_k has a value that no flag takes, [1]"),
        ("dry_run: [1]", "dry_run has a value that no flag takes"),
        ("scheme: 5", "--scheme must be PART=SCHEME"),
        ("scheme: {head: {a: 1}}", "scheme has a value that no flag takes"),
        ("prune_keep: {8: [1]}", "prune_keep has a value that no flag takes"),
        ("model: 2020-01-01", "model has a value that no flag takes"),
        ("merge_adapter: no, never", "--merge-adapter must be one of"),
        ("top_k: " + "9" * 5000, "plan.yaml cannot be read"),
        ("a: " + "[" * 5000, "plan.yaml cannot be read"),
    ],
)
def test_a_wrong_config_file_is_one_line(checkpoint: Checkpoint, tmp_path: Path, text: str, words: str) -> None:
    command = ["export", "-o", str(tmp_path / "bundle"), "--config", write_config(tmp_path, text)]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


def test_what_tunes_the_base_is_no_extra_parameter(tmp_path: Path) -> None:
    model = tiny_model({"base_rank": 2, "base_layers": 2})
    own = write_checkpoint(tmp_path / "tuned", model)
    tuning = sum(p.numel() for p in model.base_adapters.parameters())
    extra = sum(p.numel() for p in model.extra_parameters()) - tuning
    line = preview(config_for(own, tmp_path / "bundle")).adapter
    assert f" {extra:,} parameters, trained 7 steps, tunes the base's top 2 layers (merged into them)" in line


def test_a_target_whose_package_is_missing_is_one_line(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")

    monkeypatch.setattr("streamfuse.export.target.import_module", missing)
    code, stdout, stderr = export_command(checkpoint, "-o", str(tmp_path / "bundle"), "--target", "coreml")
    assert (code, stdout) == (2, "")
    assert "--target coreml needs the package coremltools, which is missing" in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_taken_folder_is_refused_at_once(checkpoint: Checkpoint, tmp_path: Path) -> None:
    code, _, stderr = export_command(checkpoint, "-o", str(tmp_path))
    assert code == 2
    assert "exists already; choose another folder or add --overwrite" in stderr


def test_streams_in_every_layer_have_methods_too(tmp_path: Path) -> None:
    """No layer lies below the streams, so verify has a top chain only."""
    model = tiny_model({"num_msa_layers": 3})
    config = config_for((tmp_path, tmp_path), tmp_path)
    weights = Weights(model, config.shapes).eval()
    spec = facts.model_spec(model, config)
    backend = ReferenceBackend(build_methods(weights), spec, [(2, 16)] * 3, num_lower=0)
    plain = decode_rows(backend, TEXT[:12])
    np.testing.assert_allclose(verify_rows(backend, "verify_12", TEXT[:12])[:12], plain, atol=1e-4)


def test_an_adapter_that_tunes_the_base_is_previewed_without_numbers(tmp_path: Path) -> None:
    model = tiny_model({"base_rank": 2, "base_layers": 2})
    config = config_for(write_checkpoint(tmp_path / "tuned", model), tmp_path / "bundle")
    plain = config_for(write_checkpoint(tmp_path / "plain", tiny_model()), tmp_path / "bundle")
    assert preview(config).weight_bytes == preview(plain).weight_bytes  # what tunes the base is merged into its weights


@pytest.mark.parametrize("capacity", [32, 128])
@pytest.mark.parametrize("count", [1, 40, 500])
def test_the_self_test_fits_every_capacity_and_text(capacity: int, count: int, tmp_path: Path) -> None:
    model = tiny_model()
    config = config_for((tmp_path, tmp_path), tmp_path, max_context_len=capacity)
    spec = facts.model_spec(model, config)
    script = Script.of(spec, [5 + i % 90 for i in range(count)])
    backend = ReferenceBackend(build_methods(Weights(model, config.shapes).eval()), spec, [(2, 16)] * 3, num_lower=1)
    results = script.run(backend)
    assert [result.method for result in results] == [WALK, "decode", "verify_4", "verify_12"]
    assert all(result.logits for result in results)


def test_agreement_is_asked_of_the_walk_alone() -> None:
    floor = Floor("test", 20.0, 0.9)
    row = {"snr_db": 21.0, "top1_agreement": 0.5}
    check({WALK: {**row, "top1_agreement": 0.9}, "decode": row}, floor)
    with pytest.raises(ParityError, match=r"walk: top1_agreement is 0\.5, the floor 'test' asks for 0.9"):
        check({WALK: row}, floor)
    with pytest.raises(ParityError, match="decode: snr_db is 19, the floor 'test' asks for 20"):
        check({WALK: {**row, "top1_agreement": 1.0}, "decode": {"snr_db": 19.0}}, floor)


def test_on_and_off_in_yaml_are_words(tmp_path: Path) -> None:
    text = "merge_adapter: off\nwidths: [4, 8]\noverwrite: on\nstream_nodes: {8: 4}\n"
    command = get_command(app).commands["export"]  # type: ignore[attr-defined]
    found = read_config(Path(write_config(tmp_path, text)), command, ExportConfig, ())
    assert found == {"merge_adapter": "off", "widths": "4,8", "overwrite": True, "stream_nodes": "8:4"}


def test_a_bundle_takes_as_much_of_the_table_as_the_plan_says(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder, base, adapter = checkpoint[0], load_base(checkpoint[0]), tmp_path / "with-table.safetensors"
    texts = np.random.default_rng(0).integers(0, 20, (40, 12)).tolist()
    replace_ngrams(checkpoint[1], count_ngrams([Example(text, 1) for text in texts], base.config.vocab_size), adapter)
    found = {}
    for size in (0.0, 0.001, 8.0):
        config = config_for((folder, adapter), tmp_path / "out", ngram_table_mb=size)
        model = with_streams(config, base)
        assert bytes_of(model.ngrams) <= size * 1e6
        found[size] = {name for name in draft_arrays(model) if name.startswith("ngram_")}
        assert preview(config).files["draft.safetensors"] >= bytes_of(model.ngrams)
    assert found[0.0] == set()
    assert found[0.001] == found[8.0] == {"ngram_keys", "ngram_starts", "ngram_ids", "ngram_log_probs"}


def test_the_keywords_of_python_are_the_fields_of_the_configuration() -> None:
    """ExportOptions is what type checkers read; it takes what a caller has at hand in place of tuples and paths."""
    looser = {"calibration_text", "widths", "allow_parity_below"}
    resolved = {"ngrams", "tasks", "asked", "eos_token_id"}  # adapter.py sets them
    fields = types_of(ExportConfig).keys() - {"model", "adapter", "output_dir", *resolved}
    keywords = get_type_hints(ExportOptions)
    assert keywords.keys() == fields
    assert {name: keywords[name] for name in fields - looser} == {
        name: types_of(ExportConfig)[name] for name in fields - looser
    }


def test_a_configuration_is_plain_values_that_say_nothing_of_the_disk(tmp_path: Path) -> None:
    """Neither a constructor nor `resolve` reads a file: the adapter and the text are looked at when they are used."""
    missing = tmp_path / "missing"
    config = ExportConfig(missing, missing, missing, backend="qnn", quantize="16a8w", calibration_text=missing)
    assert config.dtype == "auto"
    assert (resolve(config).dtype, resolve(config).calibration_text) == ("float16", missing)
    assert resolve(resolve(config)) == resolve(config)


@pytest.mark.parametrize("name", sorted(own_options()))
def test_an_option_that_few_backends_have_is_refused_by_the_others(name: str) -> None:
    """The table says which have it, and the error names them."""
    values = {
        "prune_threshold": 0.5,
        "extra_methods": {"draft": nn.Identity},
        "layout": "ane",
        "task": {"a": Path("x")},
        "merge_streams": "off",
    }
    value = values.get(name)
    value = value or choices_of(ExportConfig, name)[0]
    for target, backends in BACKENDS.items():
        for backend, can in backends.items():
            config = ExportConfig(Path(), Path(), Path(), target=target, backend=backend, **{name: value})  # type: ignore[arg-type]
            if name not in can.own:
                with pytest.raises(OptionError, match=f"^{name} goes with .*, not with "):
                    resolve(config)
            elif name != "prune_threshold":
                assert getattr(resolve(config), name) == value
