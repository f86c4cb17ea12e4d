"""A whole export of a tiny model, in every form: what lies in the bundle, and what its graphs compute.

Run: python -m pytest tests/export/test_export_bundle.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import (
    FORKED,
    STREAM_VOCAB,
    TEXT,
    config_for,
    decode_rows,
    prefill,
    tiny_model,
    verify_rows,
    write_checkpoint,
)
from safetensors.numpy import load_file
from signed_samples import PUBLIC, rfc_key

from streamfuse.bundle import Bundle, BundleError, open_bundle
from streamfuse.bundle.manifest import ModelFacts
from streamfuse.export import facts, selftest
from streamfuse.export.config import ExportConfig
from streamfuse.export.executorch.kernels import KernelsTarget
from streamfuse.export.executorch.target import PteTarget
from streamfuse.export.integers import to_q4_1
from streamfuse.export.operators.packing import pack_q4_1
from streamfuse.export.pipeline import Report, count_steps, run_export
from streamfuse.export.preview import preview
from streamfuse.export.selftest import FLOORS, Floor, ParityError, Script
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.draft import DraftTables
from streamfuse.runtime.session import Session

STREAMS = {"num_msa_layers": 1}
LAYERS = {"num_hidden_layers": 2}
METHODS = ["prefill", "decode", "verify_4", "verify_12"]
KINDS: dict[str, dict[str, Any]] = {
    "kernels": {"schedule": "both"},
    "float32": {"backend": "xnnpack", "quantize": "none", "schedule": "both"},
    "8da4w": {"backend": "xnnpack", "prefill_len": 12},  # delegates of as many rows as verify_12's are compiled once
}


@dataclass
class Exported:
    kind: str  # of KINDS, and the key of its floor
    config: ExportConfig
    report: Report
    bundle: Bundle
    words: list[str]  # of the progress


@pytest.fixture(scope="module")
def model() -> StreamFused:
    torch.manual_seed(1)
    return tiny_model(STREAMS, **LAYERS)


@pytest.fixture(scope="module")
def checkpoint(model: StreamFused, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint", model, **LAYERS)


FLOAT32 = pytest.param("float32", marks=pytest.mark.full)  # the engine's own tests run XNNPACK's float32 by default


@pytest.fixture(scope="module", params=[FLOAT32 if kind == "float32" else kind for kind in KINDS])
def exported(
    request: pytest.FixtureRequest, checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    config = config_for(checkpoint, tmp_path_factory.mktemp("bundles") / request.param, **KINDS[request.param])
    words: list[str] = []
    report = run_export(config, words.append, sign_key=rfc_key())
    return Exported(request.param, config, report, open_bundle(config.output_dir, public_key=PUBLIC), words)


def methods_of(exported: Exported) -> list[str]:
    return METHODS + (["streams"] if exported.config.shapes.deferred else [])


@pytest.fixture
def engine(exported: Exported) -> Iterator[ExecuTorchBackend]:
    with ExecuTorchBackend(exported.bundle.graph, exported.bundle.spec()) as backend:
        yield backend


def test_the_manifest_says_what_was_exported(exported: Exported, model: StreamFused) -> None:
    manifest, config = exported.bundle.manifest, exported.config
    assert list(manifest.methods) == methods_of(exported)
    rows = [(m.rows, m.keep, m.stream_nodes) for m in manifest.methods.values()]
    assert rows[:4] == [(config.prefill_len, None, None), (1, None, None), (4, 4, 4), (12, 6, 3)]
    assert speculation_schedule(exported) == config.schedule
    assert (manifest.kernels, manifest.backend) == (config.kernels, config.backend)
    assert (manifest.model.num_layers, manifest.model.vocab_size) == (2, 258)
    assert manifest.model.parameters == sum(p.numel() for p in model.base.parameters())
    assert (manifest.model.bos_token_id, manifest.model.eos_token_ids) == (1, (3, 257))
    speculation = manifest.speculation
    assert (speculation.num_streams, speculation.top_k, speculation.num_msa_layers) == (3, 5, 1)
    assert (speculation.prune_layer, speculation.default_width, speculation.adapter) == (1, 12, "tiny")
    assert speculation.stream_vocab_size == len(STREAM_VOCAB)
    assert manifest.cache.capacity == config.max_context_len
    assert exported.bundle.spec() == facts.model_spec(model, config)
    assert set(manifest.files) == {*exported.report.bytes, "export_report.json"}
    assert {row.floor for row in manifest.parity.values()} == {FLOORS[exported.kind].name}
    assert set(manifest.parity) == set(methods_of(exported)) - {"prefill"}
    assert exported.report.peak_memory_bytes > 50_000_000


def test_a_model_in_the_current_folder_has_that_folders_name(
    checkpoint: tuple[Path, Path], model: StreamFused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, adapter = checkpoint
    monkeypatch.chdir(folder)
    config = config_for((Path("."), adapter), tmp_path / "bundle")
    assert facts.model_facts(config, model)["name"] == folder.name


@pytest.mark.parametrize(
    ("stated", "line"),
    [
        (["apache-2.0", "cc-by-4.0"], "apache-2.0, cc-by-4.0"),
        ("a text\n  of two lines", "a text of two lines"),
        ([], None),
        (None, None),
    ],
)
def test_the_licenses_of_a_model_are_one_line(
    stated: Any, line: str | None, checkpoint: tuple[Path, Path], model: StreamFused, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint[0], folder)
    (folder / "source.json").write_text(json.dumps({"kind": "hub", "model": "some/model", "license": stated}))
    config = config_for((folder, checkpoint[1]), tmp_path / "bundle")
    written = json.dumps(facts.model_facts(config, model))
    assert ModelFacts.model_validate_json(written).license == line


def speculation_schedule(exported: Exported) -> str:
    return exported.bundle.manifest.speculation.schedule


def test_a_bundle_says_which_operators_it_needs(exported: Exported) -> None:
    manifest, content = exported.bundle.manifest, exported.bundle.graph.read_bytes()
    assert (b"streamfuse::" in content) == exported.config.kernels
    if exported.config.kernels:
        families = ("embedding_q8", "gated_mlp", "head", "linear", "qkv", "stream_top_k", "tree_attention")
        assert manifest.required_operators == tuple(f"streamfuse::{name}.out" for name in families)
        assert b"XnnpackBackend" not in content
    else:
        assert manifest.required_operators == ()


@pytest.mark.parametrize("exported", ["kernels"], indirect=True)
def test_the_drafts_were_calibrated_by_the_bundle_itself(exported: Exported, model: StreamFused) -> None:
    tables = DraftTables.load(exported.bundle.tables)
    calibration = tables.calibration
    assert len(calibration) == model.streams_config.num_streams
    assert all(0 <= ratio <= 10 for ratio in calibration)
    assert set(calibration) != {1.0}, "nothing was seen"
    assert exported.report.calibration == pytest.approx(calibration, abs=1e-6)


def test_the_drafting_data_lie_aligned_and_as_the_package_reads_them(exported: Exported) -> None:
    path = exported.bundle.draft
    assert path is not None
    content, read = path.read_bytes(), load_file(path)
    assert (8 + int.from_bytes(content[:8], "little")) % 64 == 0
    assert {name: array.dtype.name for name, array in read.items()}.items() >= {
        "parent_left": "float16", "parent_right": "float16", "gate": "float32", "stream_vocab": "int32"
    }.items()  # fmt: skip
    assert ("calibration" in read) == exported.config.kernels
    for name, array in exported.bundle.tables.items():
        assert array.flags.aligned, name
        np.testing.assert_array_equal(array, read[name])
    assert [other.name for other in path.parent.glob("draft*")] == [path.name]


@pytest.mark.parametrize("exported", ["kernels"], indirect=True)
def test_weights_on_a_grid_are_carried_over(exported: Exported) -> None:
    """The head is the embedding. The streams' rows of it are stored in 4 bits."""
    shares = {part: facts["exact_share"] for part, facts in exported.report.target["grid"].items()}
    assert shares == {"embedding": 1, "attention": 1, "mlp": 1, "streams": 0}


@pytest.mark.parametrize("exported", ["8da4w", FLOAT32], indirect=True)
def test_stock_executorch_runs_a_bundle_without_kernels(
    exported: Exported, engine: ExecuTorchBackend, model: StreamFused
) -> None:
    runtime = pytest.importorskip(
        "executorch.runtime", reason="executorch is not installed: pip install 'streamfuse[export]'"
    ).Runtime.get()
    program = runtime.load_program(str(exported.bundle.graph))
    caches = [torch.zeros(128, 2, 16) for _ in range(4)]
    inputs = [torch.tensor([TEXT[0]]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool), torch.tensor([0])]
    logits, best, *_ = program.load_method("decode").execute([*inputs, torch.tensor([True]), *caches])
    torch.testing.assert_close(logits, torch.from_numpy(decode_rows(engine, TEXT[:1])), atol=1e-4, rtol=1e-4)
    assert best.tolist() == logits.argmax(1).tolist()
    if exported.kind == "float32":
        expected = model.base(torch.tensor([TEXT[:1]]))[0]
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
        assert best.tolist() == expected.argmax(1).tolist()


def test_the_outputs_in_the_manifest_are_those_of_the_graphs(exported: Exported) -> None:
    method = exported.bundle.manifest.methods["verify_12"]
    shapes = {tensor.name: tensor.shape for tensor in method.outputs}
    assert shapes["logits"] == (6, 258)
    assert shapes["best"] == shapes["kept"] == (6,)
    assert shapes["stream_ids"] == shapes["stream_log_probs"] == (3, 3, 5)
    assert ("hidden" in shapes) == exported.config.shapes.deferred
    assert [shapes[f"new_key_{i}"][0] for i in range(2)] == [12, 6]


def test_the_weights_lie_in_the_file_once(exported: Exported, model: StreamFused) -> None:
    """Four methods, one copy: a row of a weight is found once in the file."""
    content = exported.bundle.graph.read_bytes()
    if exported.kind == "kernels":
        q = to_q4_1(model.base.blocks[1].mlp.down_proj.weight)
        packed = pack_q4_1(q.q, q.d, q.m)
        assert content.count(packed[1].numpy().tobytes()) == 1
    elif exported.kind == "float32":
        block = model.base.blocks[1]
        for weight in (block.mlp.down_proj.weight, block.self_attn.v_proj.weight, block.input_layernorm.weight[None]):
            assert content.count(weight[0].detach().numpy().tobytes()) == 1
    expected = sum(part.bytes for _, part in exported.bundle.manifest.quantization if part.bytes is not None)
    graphs = 200_000 + sum(preview(plan_for_again(exported)).delegates.values()) * 16_000
    assert expected < len(content) < expected + graphs


def test_progress_counts_every_step(exported: Exported) -> None:
    assert len(exported.words) == count_steps(preview(plan_for_again(exported)))
    assert list(exported.report.seconds) == ["load", "reference", "quantize", "lower", "parity", "write"]


def plan_for_again(exported: Exported) -> ExportConfig:
    config = exported.config
    return config_for((config.model, config.adapter), config.output_dir.with_name("nothing"), **KINDS[exported.kind])


def test_the_constant_methods_answer(exported: Exported) -> None:
    runtime = pytest.importorskip(
        "executorch.runtime", reason="executorch is not installed: pip install 'streamfuse[export]'"
    ).Runtime.get()
    program = runtime.load_program(str(exported.bundle.graph))

    def constant(name: str) -> list[object]:
        return list(program.load_method(name).execute([]))

    assert set(METHODS) < set(program.method_names)
    assert constant("get_max_context_len") == [128]
    assert constant("get_vocab_size") == [258]
    assert constant("get_eos_ids") == [3, 257]
    assert constant("get_bos_id") == [1]
    assert constant("get_num_streams") == [3]
    assert constant("get_max_tree_nodes") == [12]
    assert constant("use_kv_cache") == [True]


def test_the_engine_is_within_the_floor_of_the_model(exported: Exported) -> None:
    floor = FLOORS[exported.kind]
    measured = exported.report.parity["lowering"]
    assert set(measured) == {selftest.WALK, *methods_of(exported)} - {"prefill"}
    for method, row in measured.items():
        assert row["snr_db"] >= floor.snr_db, (method, row)
        assert row.get("kept_agreement", 1.0) == 1.0 or exported.kind != "float32"
    if exported.kind == "float32":
        assert min(row["stream_top1_agreement"] for row in measured.values() if "stream_top1_agreement" in row) == 1.0


@pytest.mark.parametrize("exported", ["kernels"], indirect=True)
@pytest.mark.parametrize("method", ["verify_4", "verify_12"])
def test_every_width_gives_the_bits_of_decode(engine: ExecuTorchBackend, method: str) -> None:
    plain = decode_rows(engine, TEXT)
    drafted = verify_rows(engine, method, TEXT)
    assert np.array_equal(drafted[: len(plain)], plain)


@pytest.mark.parametrize("exported", ["kernels"], indirect=True)
def test_a_cache_written_by_prefill_gives_the_bits_of_decode(engine: ExecuTorchBackend) -> None:
    plain = decode_rows(engine, TEXT)
    for length in (1, 7, 8, 9, 30):
        prefill(engine, TEXT[:length])
        assert np.array_equal(decode_rows(engine, TEXT[length:], length), plain[length:])
        prefill(engine, TEXT[:length])
        assert np.array_equal(verify_rows(engine, "verify_12", TEXT[length:], length), plain[length:])


@pytest.mark.parametrize("exported", ["kernels", FLOAT32], indirect=True)
def test_deferred_streams_are_those_of_the_verifying_pass(exported: Exported, engine: ExecuTorchBackend) -> None:
    """To the bit with our operators, whose rows do not know where the cache ends."""
    ids, ancestors = np.array([*TEXT[10:12], 9, 11]), np.tril(np.ones((4, 4), np.bool_))
    ancestors[2:, 1:] = np.eye(3, dtype=np.bool_)[1:]
    for path in ([0], [0, 1], [0, 3]):
        prefill(engine, TEXT[:10])
        out = engine.run("verify_4", ids, 10 + np.array([0, 1, 1, 1]), ancestors)
        index = out.kept.tolist().index(path[-1])
        fused = np.array(out.stream_ids[index]), np.array(out.stream_log_probs[index])
        engine.commit(path)
        deferred = engine.streams(index, 0)
        assert np.array_equal(deferred.stream_ids[0], fused[0])
        if exported.config.kernels:
            assert np.array_equal(deferred.stream_log_probs[0], fused[1])
        else:
            np.testing.assert_allclose(deferred.stream_log_probs[0], fused[1], atol=1e-4)


def test_a_forked_process_generates_with_the_kernels_and_fails_with_xnnpack(exported: Exported, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(exported.config.output_dir)]
    environment = {**os.environ, "STREAMFUSE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if exported.config.kernels:
        assert done.stdout == ""
    else:
        assert "XNNPACK has no threads in it: load models after forking only" in done.stdout


def test_the_self_test_in_the_bundle_repeats(exported: Exported, engine: ExecuTorchBackend) -> None:
    with np.load(exported.bundle.folder / "selftest.npz") as arrays:
        script = Script.of(engine.spec, arrays["text"].tolist())
        ours = {result.method: result for result in script.run(engine)}
        for method in METHODS[1:]:
            nodes = arrays[f"{method}.nodes"].tolist()
            expected = dict(zip(nodes, arrays[f"{method}.logits"], strict=True))
            assert script.trees[method].tokens.tolist() == arrays[f"{method}.tokens"].tolist()
            shared = sorted(set(nodes) & set(ours[method].logits))
            a, b = np.stack([ours[method].logits[n] for n in shared]), np.stack([expected[n] for n in shared])
            noise = float(((a - b) ** 2).sum())
            snr_db = 10 * np.log10(float((b**2).sum()) / max(noise, 1e-30))
            assert snr_db >= FLOORS[exported.kind].snr_db


@pytest.mark.parametrize("width", [4, 12])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.1])
def test_speculation_changes_no_token(exported: Exported, width: int, temperature: float) -> None:
    assert exported.bundle.draft is not None
    tables = exported.bundle.tables
    with Session(ExecuTorchBackend(exported.bundle.graph, exported.bundle.spec()), tables) as session:
        for seed, prompt in enumerate([TEXT[:9], TEXT[20:23], [200, 100, 50]]):
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            plain = session.generate(prompt, GenerationConfig(40, sampling, speculative=False, ignore_eos=True))
            plain.finish()
            fused = session.generate(prompt, GenerationConfig(40, sampling, width=width, ignore_eos=True))
            fused.finish()
            assert fused.token_ids == plain.token_ids
            assert fused.statistics.draft_tokens_proposed > 0


@pytest.mark.parametrize("exported", ["kernels", FLOAT32], indirect=True)
def test_fewer_streams_say_the_same(checkpoint: tuple[Path, Path], exported: Exported, tmp_path: Path) -> None:
    """Streams see the streams before them only, so dropping the last ones leaves the first as they were."""
    fewer = {"schedule": "fused", "num_streams": 2, "stream_nodes": "all", "widths": (4,), "default_width": 4}
    config = config_for(checkpoint, tmp_path / "two", **{**KINDS[exported.kind], **fewer})
    run_export(config)
    found = []
    for folder in (config.output_dir, exported.config.output_dir):
        bundle = open_bundle(folder)
        with ExecuTorchBackend(bundle.graph, bundle.spec()) as backend:
            prefill(backend, TEXT[:10])
            causal = np.tril(np.ones((4, 4), np.bool_))
            out = backend.run("verify_4", np.array(TEXT[10:14]), np.arange(10, 14), causal, True)
            found.append((np.array(out.logits), np.array(out.stream_ids), np.array(out.stream_log_probs)))
    (logits, ids, log_probs), (all_logits, all_ids, all_log_probs) = found
    assert ids.shape == (4, 2, 5)
    assert np.array_equal(logits, all_logits)
    assert np.array_equal(ids, all_ids[:, :2])
    np.testing.assert_allclose(log_probs, all_log_probs[:, :2], atol=1e-5)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_graph_below_its_floor_leaves_nothing(
    exported: Exported, checkpoint: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(target: PteTarget) -> None:  # the program that the same plan gave before
        shutil.copy(exported.bundle.graph, target.folder)
        target.operators, target.delegation = list(exported.bundle.manifest.required_operators), {}

    monkeypatch.setattr(PteTarget, "lower", lower)
    run_export(config_for(checkpoint, tmp_path / "good", **KINDS[exported.kind]))
    monkeypatch.setitem(selftest.FLOORS, exported.kind, Floor("impossible", 500.0, 1.0))
    with pytest.raises(ParityError, match=r"walk: snr_db is .*, the floor 'impossible' asks for 500"):
        run_export(config_for(checkpoint, tmp_path / "bad", **KINDS[exported.kind]))
    assert left(tmp_path) == ["good"]


def test_weights_below_their_floor_are_refused_before_lowering(
    checkpoint: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(selftest.FLOORS, "int4", Floor("impossible", 500.0, 1.0))
    monkeypatch.setattr(KernelsTarget, "edge", lambda *_: pytest.fail("lowered"))
    with pytest.raises(ParityError, match="'impossible'"):
        run_export(config_for(checkpoint, tmp_path / "bundle"))
    assert left(tmp_path) == []


def test_an_interrupted_export_leaves_the_old_bundle(
    exported: Exported, checkpoint: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelsTarget, "edge", interrupt)
    before = left(exported.config.output_dir.parent)
    config = config_for(checkpoint, exported.config.output_dir, overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        run_export(config)
    assert left(exported.config.output_dir.parent) == before
    open_bundle(exported.config.output_dir)


def test_a_taken_folder_is_refused_before_any_work(exported: Exported, checkpoint: tuple[Path, Path]) -> None:
    with pytest.raises(BundleError, match="exists already"):
        run_export(config_for(checkpoint, exported.config.output_dir))


def test_overwriting_needs_a_bundle_to_replace(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("keep me")
    with pytest.raises(BundleError, match="not a bundle"):
        run_export(config_for(checkpoint, tmp_path / "letters", overwrite=True))
    assert left(tmp_path / "letters") == ["dear.txt"]


@pytest.fixture(scope="module")
def deferred(checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The default schedule: verify methods without streams, of which the engine computes the real rows alone."""
    trees = {"widths": (1, 4, 6), "default_width": 4, "prune_keep": {6: 2}}
    config = config_for(checkpoint, tmp_path_factory.mktemp("deferred") / "bundle", schedule="deferred", **trees)
    run_export(config)
    return open_bundle(config.output_dir)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_a_pass_of_fewer_nodes_says_the_same_bits(deferred: Bundle, nodes: int) -> None:
    def chain(backend: ExecuTorchBackend, tokens: list[int]) -> Any:
        count = len(tokens)
        out = backend.run(
            "verify_4", np.array(tokens), backend.length + np.arange(count), np.tri(count, dtype=np.bool_), True
        )
        return np.array(out.logits), out.best.tolist()

    with ExecuTorchBackend(deferred.graph, deferred.spec()) as backend:
        prefill(backend, TEXT[:9])
        whole, best = chain(backend, TEXT[9:13])
        chain(backend, TEXT[1:5])  # leaves other rows where the next pass has padding
        logits, chosen = chain(backend, TEXT[9 : 9 + nodes])
        np.testing.assert_array_equal(logits, whole[:nodes])
        assert chosen == best[:nodes]
        backend.commit(range(nodes))
        np.testing.assert_array_equal(decode_rows(backend, TEXT[9:13], 9), whole)
        prefill(backend, TEXT[: 8 + nodes])  # the last chunk of a prompt is seldom full
        np.testing.assert_array_equal(decode_rows(backend, TEXT[8 + nodes : 13], 8 + nodes), whole[nodes - 1 :])


def test_a_pruner_s_choice_does_not_depend_on_what_padding_rows_held(deferred: Bundle) -> None:
    def star(backend: ExecuTorchBackend, tokens: list[int]) -> Any:
        """A root with children, which the pruner chooses from."""
        count = len(tokens)
        ancestors = np.eye(count, dtype=np.bool_)
        ancestors[:, 0] = True
        out = backend.run("verify_6", np.array(tokens), backend.length + ancestors.sum(1) - 1, ancestors, True)
        return out.kept.tolist(), np.array(out.logits)

    with ExecuTorchBackend(deferred.graph, deferred.spec()) as backend:
        prefill(backend, TEXT[:9])
        found = []
        for before in ([TEXT[9]], TEXT[1:7], TEXT[4:10]):  # what earlier passes leave in the other rows
            star(backend, before)
            found.append(star(backend, TEXT[9:12]))
        assert len(found[0][0]) == 2
        for kept, logits in found[1:]:
            assert kept == found[0][0]
            np.testing.assert_array_equal(logits, found[0][1])


def test_a_softmax_pruner_with_a_threshold_drops_nodes_and_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's pruner in a bundle of its one pass; the export compares the graphs with PyTorch."""
    monkeypatch.setattr(selftest, "WALK_TOKENS", 16)  # plain passes, in which no pruner has a part
    torch.manual_seed(6)
    checkpoint = write_checkpoint(
        tmp_path / "checkpoint", tiny_model({**STREAMS, "pruner_score": "softmax"}, **LAYERS), **LAYERS
    )
    changes = {"widths": (12,), "default_width": 12, "prune_keep": 11, "stream_nodes": "all", "prune_threshold": 0.02}
    plan = config_for(checkpoint, tmp_path / "bundle", **changes)
    report = run_export(plan)
    assert all(row.get("kept_agreement", 1.0) == 1.0 for row in report.parity["lowering"].values())
    bundle, kept = open_bundle(plan.output_dir), list[int]()
    with ExecuTorchBackend(bundle.graph, bundle.spec()) as backend:
        star = np.eye(12, dtype=np.bool_)
        star[:, 0] = True
        for prompt in (TEXT[:9], TEXT[3:14]):
            prefill(backend, prompt)
            ids = np.array([TEXT[15], *range(20, 31)])
            out = backend.run("verify_12", ids, len(prompt) + star.sum(1) - 1, star, True)
            kept.append(len(out.kept))
            assert len(out.stream_ids) == len(out.kept)
    assert 1 <= min(kept) < 12
    assert bundle.draft is not None
    with Session(ExecuTorchBackend(bundle.graph, bundle.spec()), bundle.tables) as session:
        for prompt in (TEXT[:9], TEXT[20:23]):
            texts = []
            for speculative in (False, True):
                config = GenerationConfig(40, speculative=speculative, width=12, ignore_eos=True)
                answer = session.generate(prompt, config)
                answer.finish()
                texts.append(answer.token_ids)
            assert texts[0] == texts[1]


def test_a_plain_pass_that_carries_streams_has_the_bits_of_both(deferred: Bundle) -> None:
    assert [(m.rows, m.keep, m.stream_nodes) for m in deferred.manifest.verify_methods.values()] == [
        (1, 1, 1),
        (4, 4, 0),
        (6, 2, 0),
    ]
    with ExecuTorchBackend(deferred.graph, deferred.spec()) as backend:
        prefill(backend, TEXT[:9])
        plain = decode_rows(backend, TEXT[9:13], 9)
        np.testing.assert_array_equal(verify_rows(backend, "verify_1", TEXT[9:13], 9), plain)
        for at in (9, 12):
            prefill(backend, TEXT[:at])
            backend.run("decode", np.array(TEXT[at : at + 1]), np.array([at]), np.ones((1, 1), np.bool_))
            backend.commit([0])
            bought = backend.streams(0, 0)
            ids, log_probs = bought.stream_ids[0].copy(), bought.stream_log_probs[0].copy()
            backend.truncate(at)
            carried = backend.run("verify_1", np.array(TEXT[at : at + 1]), np.array([at]), np.ones((1, 1), np.bool_))
            np.testing.assert_array_equal(carried.stream_ids[0], ids)
            np.testing.assert_array_equal(carried.stream_log_probs[0], log_probs)


def test_with_the_kernels_a_plain_pass_may_carry_streams_where_nobody_names_widths(
    checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    usual = {"widths": (), "default_width": None, "schedule": "deferred"}
    assert config_for(checkpoint, tmp_path, **usual).widths == (1, 4, 8, 16)
    assert config_for(checkpoint, tmp_path, **usual).default_width == 8
    assert config_for(checkpoint, tmp_path, **usual, backend="xnnpack").widths == (4, 8, 16)
    assert config_for(checkpoint, tmp_path, **{**usual, "schedule": "fused"}, stream_nodes="all").widths == (
        4,
        8,
        16,
    )
