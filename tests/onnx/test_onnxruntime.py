"""The backend on ONNX Runtime: equal texts on a tiny model, the cache, and files that are not what they should be.

Run: python -m pytest tests/onnx/test_onnxruntime.py
"""

from __future__ import annotations

import os
import shutil
import tracemalloc
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import TEXT, decode_rows, prefill, tiny_model, verify_rows
from onnx_samples import Written, write

from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends.onnx_providers import PROVIDERS, Choice
from streamfuse.runtime.backends.onnxruntime import OnnxBackend, OnnxProgram
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.sampling import Sampler

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'streamfuse[onnx]'")

# By how much the logits of one token may differ between methods. With float32 graphs not at all. A float16 graph runs
# in float32 on CPUs, and where ONNX Runtime rounds to float16 on the way differs from graph to graph.
NOISE = {
    ("float32", "none"): 0.0,
    ("float32", "int8"): 0.0,
    ("float32", "int4"): 0.0,
    ("float16", "none"): 0.1,
    ("float16", "int4"): 0.4,
}
# By default each kind of graph once, and each schedule with and without integers and in both types.
SCHEDULES = {
    ("float32", "none"): "fused",
    ("float32", "int8"): "fused",
    ("float32", "int4"): "deferred",
    ("float16", "none"): "deferred",
    ("float16", "int4"): "fused",
}
CASES = [
    pytest.param(*kind, schedule, marks=[] if schedule == usual else pytest.mark.full)
    for kind, usual in SCHEDULES.items()
    for schedule in ("fused", "deferred")
]
SAMPLINGS = [SamplingConfig(), SamplingConfig(temperature=0.8, top_p=0.9, seed=7)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(1)
    return write(tmp_path_factory.mktemp("onnx") / "int4", tiny_model(), "float32", "int4")


@pytest.fixture(scope="module")
def program(written: Written) -> OnnxProgram:
    return OnnxProgram(written.folder, 1)


@pytest.mark.parametrize(("asked", "usable", "threads"), [(None, 2, 2), (None, 8, 0), (3, 2, 3), (3, 8, 3)])
def test_a_limited_process_has_no_more_threads_than_cores(
    asked: int | None, usable: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorder(Choice):
        """Keeps the options of a session instead of opening one."""

        def open(self, file: Path, options: Any) -> Any:
            opened.append(options.intra_op_num_threads)
            return None, None

    opened: list[int] = []
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("streamfuse.runtime.backends.onnxruntime.cores", lambda: usable)
    (tmp_path / "decode.onnx").touch()
    OnnxProgram(tmp_path, asked, provider=Recorder()).session("decode")
    assert opened == [threads]


@pytest.mark.parametrize(("dtype", "quantize", "schedule"), CASES)
def test_speculation_changes_no_token_but_in_a_near_tie(
    tmp_path: Path, dtype: str, quantize: str, schedule: str
) -> None:
    torch.manual_seed(1)
    written = write(tmp_path, tiny_model(), dtype, quantize, schedule)
    program, equal = OnnxProgram(tmp_path, 1), []
    for prompt, sampling in product((TEXT[:11], TEXT[7:26]), SAMPLINGS):
        plain = Loop(
            OnnxBackend(program, written.spec), list(prompt), GenerationConfig(50, sampling, speculative=False)
        )
        list(plain.run())
        for width in (4, 12):
            loop = Loop(OnnxBackend(program, written.spec), list(prompt), GenerationConfig(50, sampling, width=width))
            list(loop.run())
            assert loop.counts.draft_tokens_accepted > 0
            equal.append(loop.tokens == plain.tokens)
            if loop.tokens != plain.tokens:
                noise = NOISE[dtype, quantize]
                assert_near_tie(OnnxBackend(program, written.spec), plain.tokens, loop.tokens, sampling, noise)
    assert sum(equal) >= len(equal) / 2, "near ties are few"


def assert_near_tie(
    backend: OnnxBackend, plain: list[int], other: list[int], sampling: SamplingConfig, noise: float
) -> None:
    """Where the texts part, a little noise on the logits makes plain decoding choose the other token too."""
    assert noise, "this graph keeps the law to the bit"
    at = next(i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b)
    prefill(backend, plain[: at - 1])
    logits = decode_rows(backend, plain[at - 1 : at], start=at - 1)[0]
    random = np.random.default_rng(0)
    sampler = Sampler(sampling)
    noisy = (logits + random.uniform(-noise, noise, logits.shape).astype(np.float32) for _ in range(500))
    choices = {sampler.pick(each, plain[:at], at) for each in noisy}
    assert {plain[at], other[at]} <= choices


@pytest.mark.parametrize("method", ["verify_4", "verify_12"])
def test_a_tree_pass_gives_the_bits_of_decoding_token_by_token(
    written: Written, program: OnnxProgram, method: str
) -> None:
    with OnnxBackend(program, written.spec) as backend:
        plain = decode_rows(backend, TEXT[:40])
        prefill(backend, TEXT[:20])
        np.testing.assert_array_equal(verify_rows(backend, method, TEXT[20:40], start=20), plain[20:])


def test_backends_on_one_program_do_not_see_each_other(written: Written, program: OnnxProgram) -> None:
    one, other = OnnxBackend(program, written.spec), OnnxBackend(program, written.spec)
    prefill(one, TEXT[:12])
    alone = decode_rows(one, TEXT[12:16], start=12)
    prefill(other, TEXT[20:40])
    one.truncate(12)
    rows = []
    for token in TEXT[12:16]:
        for backend, fed in ((other, 5), (one, token)):
            out = backend.run("decode", np.array([fed]), np.array([backend.length]), np.ones((1, 1), np.bool_), True)
            backend.commit([0])
        assert out.logits is not None
        rows.append(np.array(out.logits[0]))
    np.testing.assert_array_equal(np.stack(rows), alone)


def test_a_frugal_program_gives_the_same_from_one_graph_at_a_time(written: Written, program: OnnxProgram) -> None:
    frugal = OnnxProgram(written.folder, 1, frugal=True)
    found = []
    for backend in (OnnxBackend(program, written.spec), OnnxBackend(frugal, written.spec)):
        loop = Loop(backend, TEXT[:11], GenerationConfig(20, width=4))
        list(loop.run())
        found.append(loop.tokens)
    assert found[0] == found[1]


class RecordedSession:
    """A session that keeps what its runs ask of the memory arena."""

    def __init__(self, session: Any, asked: list[str]) -> None:
        self._session, self._asked = session, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if options is not None:
            self._asked.append(options.get_run_config_entry("memory.enable_memory_arena_shrinkage"))
        self._session.run_with_iobinding(binding, options)


def test_a_trimmed_backend_has_given_back_its_memory_and_gives_the_same_logits(written: Written) -> None:
    class Recorder(Choice):
        def open(self, file: Path, options: Any) -> Any:
            session, assignment = super().open(file, options)
            return RecordedSession(session, asked), assignment

    def logits() -> np.ndarray:
        prefill(backend, TEXT[:20])
        return verify_rows(backend, "verify_12", TEXT[20:40], start=20)

    asked: list[str] = []
    tracemalloc.start()
    try:
        program = OnnxProgram(written.folder, 1, provider=Recorder())
        shapes = [tensor.shape for tensor in program.session("decode").get_inputs() if "key_values" in tensor.name]
        backend = OnnxBackend(program, written.spec)
        expected = logits()
        with pytest.raises(BackendError, match="the cache is not empty: truncate it to 0 first"):
            backend.trim()
        backend.truncate(0)
        before, _ = tracemalloc.get_traced_memory()
        backend.trim()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before - after > sum(4 * np.prod(shape) for shape in shapes) > 0
    assert asked == ["cpu:0"] * 3, "ONNX Runtime's own memory, of decode, prefill and verify_12"
    np.testing.assert_array_equal(logits(), expected)
    assert asked == ["cpu:0"] * 3
    backend.close()
    backend.trim()


# A window of 7 positions, or convolutions of three: some layers have caches of 288 positions. Those of the convolutions
# have two heads.
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": False, "num_hidden_layers": 4}
WINDOWS: dict[str, dict[str, Any]] = {
    "window": {
        "architectures": ["MinistralForCausalLM"],
        "num_hidden_layers": 2,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "convolutions": {**LFM2, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"] * 2},
    "convolutions, with the heads of attention": {
        **LFM2,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"] * 2,
    },
    "convolutions, windows and gates": {
        "architectures": ["Lfm3ForCausalLM"],
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 9,
        "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
    },
}
WINDOW_OPTIONS: dict[str, Any] = {"max_context_len": 448, "widths": (4,), "default_width": 4, "prune_keep": 4}


def windowed(folder: Path, provider: str, kind: str = "window") -> Written:
    torch.manual_seed(5)
    top = WINDOWS[kind]["num_hidden_layers"] // 2
    model = tiny_model({"num_msa_layers": top}, max_position_embeddings=448, **WINDOWS[kind])
    return write(folder, model, "float32", "none", "deferred", provider, **WINDOW_OPTIONS)


@pytest.mark.parametrize("kind", WINDOWS)
def test_rings_in_the_memory_of_a_provider_have_the_rows_of_those_of_the_host(tmp_path: Path, kind: str) -> None:
    """The processor as a provider with memory of its own, so that commit.onnx writes the caches."""
    written, own = windowed(tmp_path, "webgpu", kind), Choice(replace(PROVIDERS["cpu"], device="cpu"))
    text = np.random.default_rng(2).integers(4, 250, 430).tolist()
    found = []
    for choice in (None, own):
        with OnnxBackend(OnnxProgram(tmp_path, 1, provider=choice), written.spec) as backend:
            rows = verify_rows(backend, "verify_4", text)
            backend.truncate(0)
            backend.trim()
            prefill(backend, text[:400])
            found.append(np.concatenate([rows, decode_rows(backend, text[400:], 400)]))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("key", "value"), [("num_layers", "x"), ("num_msa_layers", "3"), ("num_msa_layers", "-1")])
def test_damaged_metadata_are_refused(tmp_path: Path, key: str, value: str) -> None:
    written = windowed(tmp_path, "cpu")
    graph = onnx.load(tmp_path / "decode.onnx", load_external_data=False)
    next(prop for prop in graph.metadata_props if prop.key == f"streamfuse.{key}").value = value
    (tmp_path / "decode.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(BackendError, match=r"decode\.onnx is no graph of streamfuse"):
        OnnxBackend(tmp_path, written.spec, 1)


def test_a_ring_without_its_window_is_refused(tmp_path: Path) -> None:
    written = windowed(tmp_path, "cpu")
    graph = onnx.load(tmp_path / "decode.onnx", load_external_data=False)
    (window,) = (prop for prop in graph.metadata_props if prop.key == "streamfuse.sliding_window")
    assert window.value == "7"
    for value in ("0", "289", None):
        if value is None:
            graph.metadata_props.remove(window)
        else:
            window.value = value
        (tmp_path / "decode.onnx").write_bytes(graph.SerializeToString())
        with pytest.raises(BackendError, match=r"capacity 448, but decode\.onnx has 288"):
            OnnxBackend(tmp_path, written.spec, 1)


def test_logits_come_only_when_they_are_asked_for(written: Written, program: OnnxProgram) -> None:
    backend = OnnxBackend(program, written.spec)
    one = np.ones((1, 1), np.bool_)
    assert backend.run("decode", np.array([5]), np.array([0]), one).logits is None
    out = backend.run("decode", np.array([5]), np.array([0]), one, want_logits=True)
    assert out.logits is not None
    assert out.logits.argmax(1).tolist() == out.best.tolist()


def test_streams_follow_the_commit(written: Written, program: OnnxProgram) -> None:
    backend, reference = OnnxBackend(program, written.spec), written.reference()
    found = []
    for each in (backend, reference):
        prefill(each, TEXT[:9])
        each.run("decode", np.array([TEXT[9]]), np.array([9]), np.ones((1, 1), np.bool_))
        each.commit([0])
        found.append(each.streams(0, 0))
    np.testing.assert_allclose(found[0].stream_log_probs, found[1].stream_log_probs, atol=0.3)
    assert (found[0].stream_ids[..., 0] == found[1].stream_ids[..., 0]).mean() > 0.6


def test_wrong_calls_are_refused(written: Written, program: OnnxProgram) -> None:
    backend = OnnxBackend(program, written.spec)
    one = np.ones((1, 1), np.bool_)
    with pytest.raises(BackendError, match="no method 'verify_5'"):
        backend.run("verify_5", np.array([1]), np.array([0]), one)
    with pytest.raises(BackendError, match="decode takes from 1 to 1 rows, not 2"):
        backend.run("decode", np.array([1, 2]), np.array([0, 1]), np.ones((2, 2), np.bool_))
    with pytest.raises(BackendError, match="survivor 0 with a hidden state"):
        backend.streams(0, 0)
    backend.run("decode", np.array([1]), np.array([0]), one)
    with pytest.raises(BackendError, match="row 3 is not among the surviving rows"):
        backend.commit([3])
    with pytest.raises(BackendError, match="cannot truncate a cache of 0 rows to 1"):
        backend.truncate(1)
    prefill(backend, (TEXT * 4)[:128])
    with pytest.raises(BackendError, match="129 rows do not fit into the cache of 128"):
        backend.commit([0])
    backend.close()
    with pytest.raises(BackendError, match="closed"):
        backend.run("decode", np.array([1]), np.array([0]), one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 256}, "capacity 256, but decode.onnx has 128"),
        ({"vocab_size": 300}, r"asks for logits \[1, 300\] of decode"),
        ({"top_k": 3}, r"asks for stream_ids \[4, 3, 3\] of verify_4"),
        ({"widths": {"verify_4": (4, 2)}, "stream_nodes": {}}, r"asks for logits \[2, 258\] of verify_4"),
        ({"prefill_rows": 16}, r"asks for input_ids \[16\] of prefill"),
    ],
)
def test_graphs_that_do_not_fit_the_manifest_are_refused(
    written: Written, program: OnnxProgram, changes: dict[str, Any], message: str
) -> None:
    def use_all() -> None:
        backend = OnnxBackend(program, replace(written.spec, default_width=None, **changes))
        for method in ("prefill", "verify_4"):
            backend.run(method, np.array([1]), np.array([0]), np.ones((1, 1), np.bool_))

    with pytest.raises(BackendError, match=message):
        use_all()


def test_malformed_files_are_named(written: Written, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(written.folder, folder)

    def opened() -> OnnxBackend:
        return OnnxBackend(folder, written.spec, 1)

    good = (folder / "decode.onnx").read_bytes()
    (folder / "decode.onnx").unlink()
    with pytest.raises(BackendError, match=r"bad has no decode\.onnx"):
        opened()
    for content in (b"", b"no graph", good[: len(good) // 2]):
        (folder / "decode.onnx").write_bytes(content)
        with pytest.raises(BackendError, match=r"ONNX Runtime cannot load|no graph of streamfuse"):
            opened()
    foreign = onnx.load(written.folder / "decode.onnx", load_external_data=False)
    del foreign.metadata_props[:]
    (folder / "decode.onnx").write_bytes(foreign.SerializeToString())
    with pytest.raises(BackendError, match="no graph of streamfuse"):
        opened()
    (folder / "decode.onnx").write_bytes(good)
    weights = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").write_bytes(weights[:5000])
    with pytest.raises(BackendError, match="ONNX Runtime cannot load"):
        opened()
    (folder / "weights.bin").unlink()
    with pytest.raises(BackendError, match="ONNX Runtime cannot load"):
        opened()


def test_a_graph_with_other_caches_is_refused(written: Written, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = write(tmp_path / "float16", tiny_model(), "float16", "none")
    backend = OnnxBackend(other.folder, other.spec, 1)
    for name in ("verify_4.onnx", "weights.bin"):
        shutil.copy(written.folder / name, other.folder)
    with pytest.raises(BackendError, match=r"present\.0\.key is tensor\(float\)"):
        backend.run("verify_4", np.array([1]), np.array([0]), np.ones((1, 1), np.bool_))


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "decode.onnx").write_bytes(b"graph")
    with pytest.raises(BackendError, match="takes only names in UTF-8; rename the folder"):
        OnnxProgram(folder).session("decode")
