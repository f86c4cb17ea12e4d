"""The native engine on a small hand-made program with every method of docs/contracts.md, section 2.

Run: pytest tests/kernels/test_kernels_engine.py. It builds build/native if needed; skipped only without a compiler.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_samples import output_of
from torch import Tensor, nn

from streamfuse.export.operators.layout import cache_shapes
from streamfuse.export.operators.packing import pack_q8_0
from streamfuse.runtime.backend import BackendError, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
    pytest.skip("there is no C++ compiler to build the native engine with", allow_module_level=True)

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM, LAYERS, CAPACITY = 96, 64, 4, 2, 16, 2, 32
PREFILL_ROWS, STREAMS, TOP_K, STREAM_VOCAB = 8, 2, 5, 40
KEEP_PRIORITY = (9.0, 1.0, 3.0, 5.0)  # of four nodes, node 1 goes first; node 3 is kept before its parent 2
CARRYING = 2  # of the kept nodes


class TinyModel(nn.Module):
    """Two attention layers and a head; the pruner of verify_4 sits between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.place = nn.Embedding(CAPACITY, HIDDEN)
        self.qkv = nn.ModuleList(nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(HEADS * DIM, HIDDEN, bias=False) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        q, d = torch.randint(-128, 128, (STREAM_VOCAB, HIDDEN)), torch.rand(STREAM_VOCAB, HIDDEN // 32) * 0.002
        self.register_buffer("stream_head", pack_q8_0(q.to(torch.int8), d.half()))
        self.register_buffer("stream_norm", torch.ones(HIDDEN))
        self.stream_embed = nn.Parameter(torch.randn(STREAMS, HIDDEN))
        self.register_buffer("stream_vocab", torch.arange(STREAM_VOCAB) * 2 + 1)

    def layer(
        self, index: int, x: Tensor, visible: Tensor, length: Tensor, caches: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = x.shape[0]
        q, k, v = self.qkv[index](x).split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
        k, v = k.reshape(rows, KV_HEADS, DIM), v.reshape(rows, KV_HEADS, DIM)
        mixed = torch.ops.streamfuse.tree_attention(
            q.reshape(rows, HEADS, DIM), k, v, caches[2 * index], caches[2 * index + 1], length, visible, DIM**-0.5
        )
        return x + self.out[index](mixed), k, v

    def candidates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Streams of the nodes x [n, h]: ids and log-probabilities [n, G, k]."""
        hidden = (x[:, None, :] + self.stream_embed).reshape(x.shape[0] * STREAMS, HIDDEN)
        ids, log_probs = torch.ops.streamfuse.stream_top_k(
            hidden, self.stream_norm, 1e-5, self.stream_head, self.stream_vocab, TOP_K
        )
        shape = (x.shape[0], STREAMS, TOP_K)
        return ids.reshape(shape), log_probs.reshape(shape)


class Method(nn.Module):
    """One method of the program: `keep` None prunes nothing, `streams` adds the drafts."""

    def __init__(self, model: TinyModel, rows: int, *, logits: bool, keep: int | None = None) -> None:
        super().__init__()
        self.model, self.rows, self.logits, self.keep = model, rows, logits, keep
        self.register_buffer("priority", torch.tensor(KEEP_PRIORITY))

    def survivors(self, ancestors: Tensor) -> tuple[Tensor, Tensor]:
        """Real rows that are kept, in row order, padding rows last; and their order by priority."""
        keep, row = self.keep or 0, torch.arange(self.rows)
        value = torch.diagonal(ancestors).to(torch.float32) * self.priority
        best = torch.topk(value, keep).indices
        place = torch.where(value[best] > 0, row[best], row[best] + self.rows)
        kept = best[torch.topk(-place.to(torch.float32), keep).indices]  # the wheel has no aten::sort
        return kept, torch.topk(value[kept], keep).indices

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        ancestors: Tensor,
        length: Tensor,
        want_logits: Tensor,
        *caches: Tensor,
    ):
        model = self.model
        hidden = model.embed(input_ids) + model.place(position_ids)
        hidden, *first = model.layer(0, hidden, ancestors, length, caches)
        if self.keep is None:
            x, *second = model.layer(1, hidden, ancestors, length, caches)
            return (*self.heads(x), *first, *second, hidden) if self.logits else (*first, *second)
        # Attention sees a path in its order; the outputs stand in the order of `kept`.
        kept, order = self.survivors(ancestors)
        hidden = hidden[kept]
        x, *second = model.layer(1, hidden, ancestors[kept][:, kept], length, caches)
        x, kept, hidden, *second = (t[order] for t in (x, kept, hidden, *second))
        streams = model.candidates(x[:CARRYING])
        return *self.heads(x), kept, *streams, *first, *second, hidden

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.head(x)
        return logits, torch.argmax(logits, dim=1)


class Streams(nn.Module):
    """The deferred schedule: candidates of one node from its hidden state, over the top layer's cache."""

    rows = 1

    def __init__(self, model: TinyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor, position_ids: Tensor, length: Tensor, *caches: Tensor):
        visible = torch.ones(1, 1, dtype=torch.bool)
        placed = hidden + self.model.place(position_ids)
        x, _, _ = self.model.layer(1, placed, visible, length, (caches[0], caches[1], *caches))
        return self.model.candidates(x)


def methods_of(model: TinyModel) -> dict[str, Method | Streams]:
    return {
        "prefill": Method(model, PREFILL_ROWS, logits=False),
        "decode": Method(model, 1, logits=True),
        "verify_4": Method(model, 4, logits=True, keep=3),
        "verify_2": Method(model, 2, logits=True),
        "streams": Streams(model),
    }


def inputs_of(method: Method | Streams) -> tuple[Tensor, ...]:
    # Each cache is a tensor of its own: torch.export takes one tensor passed twice for one input.
    shapes = cache_shapes(CAPACITY, KV_HEADS, DIM)
    caches = [torch.zeros(shapes[i % 2], dtype=torch.uint8) for i in range(2 * LAYERS)]
    ids, length = torch.zeros(method.rows, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    if isinstance(method, Streams):
        return (torch.zeros(1, HIDDEN), ids, length, *caches[2:])
    visible, want_logits = torch.eye(method.rows, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    return (ids, ids.clone(), visible, length, want_logits, *caches)


def write_program(
    path: Path,
    methods: Mapping[str, nn.Module],
    *,
    inputs: Callable[[Any], tuple[Tensor, ...]] = inputs_of,
    delegate: bool = True,
    planned_inputs: bool = False,
    **constants: int,
) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    programs = {name: torch.export.export(m.eval(), inputs(m), strict=False) for name, m in methods.items()}
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={name: [XnnpackPartitioner()] if delegate else [] for name in programs},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        constant_methods={"get_max_context_len": CAPACITY, "get_n_msa_layers": 1, **constants},
    )
    planning = MemoryPlanningPass(alloc_graph_input=planned_inputs, alloc_graph_output=False)
    path.write_bytes(edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer)


@pytest.fixture(scope="session", autouse=True)
def engine_library() -> Path:
    from streamfuse.native.build import build

    return build(quiet=True, jobs=2)


@pytest.fixture(scope="session")
def tiny() -> TinyModel:
    import streamfuse.export.operators.aot  # noqa: F401  registers torch.ops.streamfuse

    torch.manual_seed(3)
    return TinyModel().eval()


# 8da4w is what the engine's tests say of XNNPACK's int8 activations; test_export_bundle.py runs them by default too.
@pytest.fixture(scope="session", params=["float32", pytest.param("8da4w", marks=pytest.mark.full)])
def program(request: pytest.FixtureRequest, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory):
    """The .pte and the eager methods that it was made from."""
    import copy

    model = copy.deepcopy(tiny)
    if request.param == "8da4w":
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        quantize_(
            model, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
        )
    methods = methods_of(model)
    path = tmp_path_factory.mktemp("tiny") / "model.pte"
    write_program(path, methods)
    return path, methods


@pytest.fixture
def backend(program):
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    with ExecuTorchBackend(program[0], num_threads=2) as backend:
        yield backend


class Eager:
    """The same passes in PyTorch, with caches written here."""

    def __init__(self, methods: dict[str, Method]) -> None:
        self.methods, self.length = methods, 0
        self.caches = [torch.zeros(CAPACITY, KV_HEADS, DIM) for _ in range(2 * LAYERS)]

    def run(self, method: str, ids: np.ndarray, positions: np.ndarray, ancestors: np.ndarray) -> list[np.ndarray]:
        rows, n = self.methods[method].rows, len(ids)
        padded_ids, padded_positions = torch.zeros(2, rows, dtype=torch.int64)
        visible = torch.zeros(rows, rows, dtype=torch.bool)
        padded_ids[:n], padded_positions[:n] = torch.from_numpy(ids), torch.from_numpy(positions)
        visible[:n, :n] = torch.from_numpy(ancestors)
        with torch.no_grad():
            outputs = self.methods[method](
                padded_ids, padded_positions, visible, torch.tensor([self.length]), torch.tensor([True]), *self.caches
            )
        if method != "prefill":
            *outputs, self.hidden = outputs
        self.new_rows = outputs[-2 * LAYERS :]
        return [output.numpy() for output in outputs[: -2 * LAYERS]]

    def commit_all(self, n: int) -> None:
        for cache, new in zip(self.caches, self.new_rows, strict=True):
            cache[self.length : self.length + n] = new[:n]
        self.length += n


def chain(ids: list[int], start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = len(ids)
    return np.array(ids, np.int64), np.arange(start, start + n, dtype=np.int64), np.tril(np.ones((n, n), bool))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    difference = np.abs(actual - expected)
    assert difference.max() <= tolerance, f"max difference {difference.max():.2e}, mean {difference.mean():.2e}"


TREE = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], bool)  # 0 -> 1, 0 -> 2 -> 3


def verify_tree(backend, start: int) -> PassOutput:
    positions = start + np.array([0, 1, 1, 2], np.int64)
    return backend.run("verify_4", np.array([5, 6, 7, 8], np.int64), positions, TREE, want_logits=True)


def test_prefill_decode_and_verify_equal_eager(program, backend) -> None:
    path, methods = program
    tolerance = 1e-4 if backend.description["constants"] and "float32" in str(path) else 5e-2
    eager = Eager(methods)
    prompt = chain([1, 2, 3, 4, 5], 0)
    eager.run("prefill", *prompt)
    eager.commit_all(5)
    assert backend.run("prefill", *prompt).logits is None
    backend.commit(range(5))
    assert backend.length == 5

    one = chain([9], 5)
    seen = backend.run("decode", *one, want_logits=True)
    assert_close(seen.logits, eager.run("decode", *one)[0], tolerance)
    assert seen.best.tolist() == seen.logits.argmax(1).tolist()

    tree = (np.array([5, 6, 7, 8], np.int64), 5 + np.array([0, 1, 1, 2], np.int64), TREE)
    logits, best, kept, stream_ids, stream_log_probs = eager.run("verify_4", *tree)
    seen = backend.run("verify_4", *tree, want_logits=True)
    assert kept.tolist() == seen.kept.tolist() == [0, 3, 2]
    assert_close(seen.logits, logits, tolerance)
    assert_close(seen.stream_log_probs, stream_log_probs, tolerance)
    assert seen.stream_ids.shape == (CARRYING, STREAMS, TOP_K)
    assert seen.best.tolist() == seen.logits.argmax(1).tolist()
    if tolerance < 1e-2:
        assert (seen.stream_ids == stream_ids).all()
        assert (seen.best == best).all()


def test_logits_come_only_when_they_are_asked_for(backend) -> None:
    assert backend.run("decode", *chain([1], 0)).logits is None
    assert backend.run("decode", *chain([1], 0), want_logits=True).logits.shape == (1, VOCAB)


def test_the_deferred_schedule_reads_the_hidden_state_of_a_survivor(program, backend) -> None:
    """`streams` after a commit: same candidates as the method itself gives for that state and those caches."""
    methods = program[1]
    tolerance = 1e-4 if "float32" in str(program[0]) else 5e-2
    eager = Eager(methods)
    tree = (np.array([5, 6, 7, 8], np.int64), np.array([0, 1, 1, 2], np.int64), TREE)
    eager.run("verify_4", *tree)
    with pytest.raises(BackendError, match="streams need a run first"):
        backend.streams(0, 0)
    backend.run("verify_4", *tree)
    with pytest.raises(BackendError, match="commit first"):
        backend.streams(0, 0)
    backend.commit([0])
    for cache, new in zip(eager.caches, eager.new_rows, strict=True):
        cache[:1] = new[:1]
    expected = methods["streams"](eager.hidden[:1], torch.tensor([0]), torch.tensor([1]), *eager.caches[2:])
    seen = backend.streams(0, 0)
    assert seen.stream_ids.shape == (1, STREAMS, TOP_K)
    assert_close(seen.stream_log_probs, expected[1].detach().numpy(), tolerance)
    with pytest.raises(BackendError, match="3 survivors"):
        backend.streams(3, 0)
    backend.commit([2])  # streams leave the pass as it was
    assert backend.length == 2


def test_padding_rows_do_not_appear_in_outputs(backend) -> None:
    seen = backend.run("verify_4", *chain([5, 6], 0))
    assert seen.kept.tolist() == [0, 1]
    assert seen.best.shape == (2,)
    assert seen.stream_ids.shape == (2, STREAMS, TOP_K)
    assert backend.run("verify_4", *chain([5], 0)).stream_ids.shape == (1, STREAMS, TOP_K)
    assert set(seen.stream_ids.ravel().tolist()) <= set(range(1, 2 * STREAM_VOCAB, 2))


def test_decode_and_verify_give_the_same_bits_along_a_path(backend) -> None:
    """To the bit: attention by contract, and XNNPACK's linear layers as observed (float32 and 8da4w)."""
    backend.run("prefill", *chain([1, 2, 3], 0))
    backend.commit([0, 1, 2])
    verified = verify_tree(backend, 3).logits[[0, 2, 1]]  # kept is 0, 3, 2
    rows = []
    for at, token in enumerate([5, 7, 8]):  # the path 0 -> 2 -> 3
        rows.append(backend.run("decode", *chain([token], 3 + at), want_logits=True).logits.copy())
        backend.commit([0])
    assert (verified == np.concatenate(rows)).all()


def test_committing_a_path_of_a_pruned_tree_equals_decoding_it(backend) -> None:
    """Lower layers are copied by row number, layers above the pruner by place among the survivors."""
    verify_tree(backend, 0)
    backend.commit([0])
    backend.commit([2, 3])
    assert backend.length == 3
    after_tree = backend.run("decode", *chain([11], 3), want_logits=True).logits.copy()
    backend.truncate(0)
    for at, token in enumerate([5, 7, 8]):
        backend.run("decode", *chain([token], at))
        backend.commit([0])
    assert (backend.run("decode", *chain([11], 3), want_logits=True).logits == after_tree).all()


def test_truncate_forgets_the_tail(backend) -> None:
    backend.run("prefill", *chain([1, 2, 3], 0))
    backend.commit([0, 1, 2])
    before = backend.run("decode", *chain([4], 3), want_logits=True).logits.copy()
    backend.commit([0])
    backend.truncate(3)
    assert (backend.run("decode", *chain([4], 3), want_logits=True).logits == before).all()


def test_results_outlive_the_next_run_and_the_engine(program) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    with ExecuTorchBackend(program[0]) as backend:
        first = backend.run("decode", *chain([1], 0), want_logits=True).logits
        before = first.copy()
        backend.run("decode", *chain([2], 0), want_logits=True)
    np.testing.assert_array_equal(first, before)


def test_a_backend_that_is_closed_under_its_session_is_freed_with_the_session(program) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    with Session(ExecuTorchBackend(program[0])) as session:
        session.generate([1, 2, 3], GenerationConfig(20)).finish()
        whole = session.tokens
    backend = ExecuTorchBackend(program[0])
    with Session(backend) as session:
        generation = session.generate([1, 2, 3], GenerationConfig(20))
        next(generation)
        backend.close()
        with pytest.raises(BackendError, match="this backend is closed"):
            backend.truncate(0)
        generation.finish()
        assert session.tokens == whole


@pytest.mark.parametrize(
    ("method", "ids", "positions", "ancestors", "sentence"),
    [
        ("verify_9", [1], [0], [[1]], "there is no method verify_9"),
        ("decode", [1, 2], [0, 1], [[1, 0], [1, 1]], "takes 1 to 1 rows, not 2"),
        ("decode", [], [], np.zeros((0, 0)), "takes 1 to 1 rows, not 0"),
        ("decode", [VOCAB], [0], [[1]], "outside the vocabulary"),
        ("decode", [-1], [0], [[1]], "outside the vocabulary"),
        ("decode", [1], [CAPACITY], [[1]], "outside the capacity"),
        ("verify_2", [1, 2], [0, 1], [[1, 0], [1, 0]], "not its own ancestor"),
        ("verify_2", [1, 2], [0, 1], [[1, 1], [1, 1]], "the later row 1 as an ancestor"),
    ],
)
def test_bad_input_is_one_sentence(backend, method, ids, positions, ancestors, sentence) -> None:
    with pytest.raises(BackendError, match=sentence):
        backend.run(method, np.array(ids, np.int64), np.array(positions, np.int64), np.array(ancestors, bool))


def test_shapes_that_do_not_fit_are_refused(backend) -> None:
    with pytest.raises(BackendError, match=r"run takes ids \[n\]"):
        backend.run("decode", np.zeros(1, np.int64), np.zeros(2, np.int64), np.ones((1, 1), bool))


def test_commit_takes_only_survivors_of_the_last_run(backend) -> None:
    with pytest.raises(BackendError, match="no run to commit from"):
        backend.commit([0])
    verify_tree(backend, 0)
    with pytest.raises(BackendError, match="row 1 of the last run was pruned"):
        backend.commit([0, 1])
    assert backend.length == 0
    backend.commit([0])
    backend.truncate(0)
    verify_tree(backend, 0)
    backend.commit([0, 2])
    backend.run("decode", *chain([1], 2))
    backend.truncate(1)
    with pytest.raises(BackendError, match="no run to commit from"):
        backend.commit([0])


def test_a_full_cache_and_a_bad_length_are_refused(backend) -> None:
    for at in range(CAPACITY):
        backend.run("decode", *chain([1], at))
        backend.commit([0])
    backend.run("decode", *chain([1], CAPACITY - 1))
    with pytest.raises(BackendError, match="cannot take 1 more"):
        backend.commit([0])
    for length in (-1, CAPACITY + 1):
        with pytest.raises(BackendError, match="cannot truncate"):
            backend.truncate(length)


def test_description_gives_the_facts_and_a_wrong_manifest_is_refused(program, backend) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    widths = {"verify_2": (2, 2), "verify_4": (4, 3)}
    facts = {
        "vocab_size": VOCAB,
        "num_streams": STREAMS,
        "top_k": TOP_K,
        "prefill_rows": PREFILL_ROWS,
        "widths": widths,
        "stream_nodes": {"verify_2": 0, "verify_4": CARRYING},
        "deferred": True,
    }
    assert backend.spec == ModelSpec(capacity=CAPACITY, **facts)
    assert backend.description["constants"] == {"get_max_context_len": CAPACITY, "get_n_msa_layers": 1}
    with pytest.raises(BackendError, match="capacity is 33"):
        ExecuTorchBackend(program[0], ModelSpec(capacity=CAPACITY + 1, **facts))


@pytest.mark.parametrize(
    ("window", "context", "sentence"),
    [
        (1, 64, "key_cache_0 has 32 positions, .* context .64., or at least 33 for the window of 1, in blocks of 32$"),
        (64, 64, "a window of 64 tokens does not fit a context of 64"),
        (0, 64, "a window of 0 tokens"),
        (1, 40, "the capacity is 40, not a multiple of 32"),
    ],
)
def test_a_window_that_does_not_fit_the_caches_is_refused(
    program, tmp_path: Path, window: int, context: int, sentence: str
) -> None:
    """The program, changed to say that its layers have a window."""
    import copy

    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    from streamfuse.runtime.backends.executorch import ExecuTorchProgram

    whole = deserialize_pte_binary(program[0].read_bytes())
    plans = {plan.name: plan for plan in whole.program.execution_plan}
    added = copy.deepcopy(plans["get_n_msa_layers"])
    added.name = "get_sliding_window"
    added.values[0].val.int_val = window
    whole.program.execution_plan.append(added)
    plans["get_max_context_len"].values[0].val.int_val = context
    (tmp_path / "model.pte").write_bytes(bytes(serialize_pte_binary(whole)))
    with pytest.raises(BackendError, match=sentence):
        ExecuTorchProgram(tmp_path / "model.pte")


def test_a_verify_method_without_a_name_is_refused(program, backend) -> None:
    from ctypes import byref, c_void_p

    from streamfuse.native.library import load_library, path_argument
    from streamfuse.runtime.core import spec_struct
    from streamfuse.runtime.text_library import BAD_ARGUMENT

    library, opened = load_library(), c_void_p()
    assert library.sf_program_open(path_argument(program[0]), 1, None, byref(opened)) == 0
    spec, (methods, _stops) = spec_struct(backend.spec)
    methods[0].name = None
    assert library.sf_program_check(opened, byref(spec)) == BAD_ARGUMENT
    assert library.sf_program_error(opened) == b"a verify method of the spec has no name"
    library.sf_program_close(opened)


class FloatCaches(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[-1] + inputs[-2]


def test_a_window_that_does_not_fit_float_caches_is_refused(tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchProgram

    ids, length = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    caches = torch.zeros(32, KV_HEADS, DIM), torch.ones(32, KV_HEADS, DIM)
    inputs = ids, ids.clone(), torch.eye(1, dtype=torch.bool), length, torch.ones(1, dtype=torch.bool), *caches
    constants = {"get_sliding_window": 33, "get_max_context_len": 64}
    write_program(tmp_path / "model.pte", {"decode": FloatCaches()}, inputs=lambda method: inputs, **constants)
    sentence = r"key_cache_0 has 32 positions, .* context \(64\), or at least 33 for the window of 33$"
    with pytest.raises(BackendError, match=sentence):
        ExecuTorchProgram(tmp_path / "model.pte")


def test_several_engines_live_in_one_process(program, backend) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    expected = backend.run("decode", *chain([7], 0), want_logits=True).logits.copy()
    for _ in range(2):
        with ExecuTorchBackend(program[0]) as other:
            assert (other.run("decode", *chain([7], 0), want_logits=True).logits == expected).all()
            backend.commit([0])
            backend.truncate(0)
            assert (backend.run("decode", *chain([7], 0), want_logits=True).logits == expected).all()


def test_many_sessions_run_on_one_program_in_threads(program) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram

    def generate(loaded: ExecuTorchProgram, token: int) -> list[bytes]:
        seen = []
        with ExecuTorchBackend(loaded) as backend:
            for at in range(20):
                seen.append(backend.run("verify_2", *chain([token, at], at), want_logits=True).logits.tobytes())
                backend.commit([0])
        return seen

    with ExecuTorchProgram(program[0], num_threads=2) as loaded:
        alone = [generate(loaded, token) for token in (1, 2, 3, 4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda token: generate(loaded, token), (1, 2, 3, 4)))
        survivor = ExecuTorchBackend(loaded)
    assert together == alone
    assert survivor.run("decode", *chain([1], 0)).best.shape == (1,)  # the program is closed, its sessions live on
    survivor.close()
    with pytest.raises(BackendError, match="closed"):
        ExecuTorchBackend(loaded)


def test_a_profile_names_every_operator_and_leaves_the_caches(program, backend, tmp_path: Path) -> None:
    from executorch.devtools import Inspector

    backend.run("prefill", *chain([1, 2], 0))
    backend.commit([0, 1])
    expected = backend.run("decode", *chain([3], 2)).best.tolist()
    with pytest.raises(BackendError, match="no profile"):
        backend.profile_data()
    backend.profile(True)
    for _ in range(3):
        assert backend.run("decode", *chain([3], 2)).best.tolist() == expected
    (tmp_path / "etdump").write_bytes(backend.profile_data())
    events = [event for block in Inspector(etdump_path=str(tmp_path / "etdump")).event_blocks for event in block.events]
    attention = [event for event in events if event.name == "streamfuse::tree_attention.out"]
    assert attention
    assert all(event.perf_data.raw[0] >= 0 for event in attention)
    backend.profile(False)
    assert backend.run("decode", *chain([3], 2)).best.tolist() == expected


def test_an_idle_engine_sleeps(backend) -> None:
    """Its threads spin for a moment after a pass, not longer."""
    import time

    backend.run("prefill", *chain([1, 2, 3], 0))
    time.sleep(0.05)
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.1


def test_a_profile_that_cannot_be_started_leaves_the_engine_as_it_was(program, tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    path, whole = tmp_path / "model.pte", program[0].read_bytes()
    path.write_bytes(whole)
    with ExecuTorchBackend(path, num_threads=2) as backend:
        backend.run("prefill", *chain([1, 2], 0))
        backend.commit([0, 1])
        expected = backend.run("decode", *chain([3], 2), want_logits=True).logits
        with path.open("r+b") as file:  # the engine has the file mapped, so its methods cannot be loaded again
            file.write(whole.replace(b"streamfuse::tree_attention", b"streamfuse::tree_attentiom"))
        with pytest.raises(BackendError, match=r"profile cannot be started.*as they are: method .*tree_attentiom"):
            backend.profile(True)
        assert (backend.run("decode", *chain([3], 2), want_logits=True).logits == expected).all()
        with pytest.raises(BackendError, match="no profile"):
            backend.profile_data()
        with path.open("r+b") as file:
            file.write(whole)
        backend.profile(True)
        assert (backend.run("decode", *chain([3], 2), want_logits=True).logits == expected).all()


class PlainModel(TinyModel):
    """Without an operator of this project, as a graph that is all on a vendor's delegate."""

    def layer(
        self, index: int, x: Tensor, visible: Tensor, length: Tensor, caches: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = x.shape[0]
        q, k, v = self.qkv[index](x).split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
        seen = (caches[2 * index] + caches[2 * index + 1]).sum() + visible.sum() + length
        return x + self.out[index](q) + seen, k.reshape(rows, KV_HEADS, DIM), v.reshape(rows, KV_HEADS, DIM)


def inputs_with_float_caches(method: Method) -> tuple[Tensor, ...]:
    return (*inputs_of(method)[:5], *(torch.zeros(CAPACITY, KV_HEADS, DIM) for _ in range(2 * LAYERS)))


THREADS_OF_AN_ENGINE = """
import os, sys
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
with ExecuTorchBackend(sys.argv[1], num_threads=int(sys.argv[2])) as backend:
    backend.run("decode", np.array([1]), np.array([0]), np.array([[True]]))
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list a process's threads")
def test_only_programs_that_call_our_operators_start_our_threads(tiny: TinyModel, tmp_path: Path) -> None:
    torch.manual_seed(3)
    plain, ours = (
        {name: method for name, method in methods_of(model.eval()).items() if name in ("prefill", "decode")}
        for model in (PlainModel(), tiny)
    )
    write_program(tmp_path / "plain.pte", plain, inputs=inputs_with_float_caches, delegate=False)
    write_program(tmp_path / "ours.pte", ours, delegate=False)

    def threads(file: str, num_threads: int) -> int:
        command = [sys.executable, "-c", THREADS_OF_AN_ENGINE, tmp_path / file, str(num_threads)]
        return int(output_of(command))

    # Other libraries of the process have threads too, as many in each of these.
    assert threads("ours.pte", 60) - threads("ours.pte", 2) > 40
    assert threads("plain.pte", 60) - threads("plain.pte", 2) < 20


def test_bandwidth_of_too_many_threads_is_refused() -> None:
    from streamfuse.runtime.backends.executorch import read_bandwidth

    for threads, size in ((65, 1), (1, 0)):
        with pytest.raises(
            BackendError, match=f"of {threads} threads and {size} bytes: num_threads must lie between 0"
        ):
            read_bandwidth(threads, size)
    assert read_bandwidth(1, 1) > 0, "a block has at least one part"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lets nobody choose cores")
def test_there_is_no_distance_on_one_core() -> None:
    script = """
import os
from streamfuse.runtime.backends.executorch import core_distance_ns
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
print(core_distance_ns())
"""
    assert output_of([sys.executable, "-c", script]) == "0.0\n"


def test_engines_in_different_threads_do_not_disturb_each_other(program) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    def generate(token: int) -> list[bytes]:
        seen = []
        for _ in range(3):
            with ExecuTorchBackend(program[0]) as backend:
                for at in range(20):
                    seen.append(backend.run("verify_2", *chain([token, at], at), want_logits=True).logits.tobytes())
                    backend.commit([0])
        return seen

    alone = [generate(token) for token in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(generate, (1, 2, 3))) == alone


def test_a_quantized_embedding_finds_its_kernel(tiny: TinyModel, tmp_path: Path) -> None:
    """The wheel's quantized kernels are opened when a program asks for them, whether or not the exporter holds them."""
    import copy

    import executorch.kernels.quantized  # noqa: F401  registers quantized_decomposed::embedding_4bit.out for export

    class Embedding4Bit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(0, 255, (VOCAB, HIDDEN // 2), dtype=torch.uint8))
            self.register_buffer("scales", torch.rand(VOCAB, 2))

        def forward(self, ids: Tensor) -> Tensor:
            return torch.ops.quantized_decomposed.embedding_4bit(self.weight, self.scales, None, -8, 7, ids)

    model = copy.deepcopy(tiny)
    model.embed = Embedding4Bit()
    methods = {name: method for name, method in methods_of(model).items() if name in ("prefill", "decode")}
    write_program(tmp_path / "quantized.pte", methods, delegate=False)  # sooner exported
    expected = Eager(methods).run("decode", *chain([9], 0))[0]
    script = """
import sys
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
with ExecuTorchBackend(sys.argv[1]) as backend:
    out = backend.run("decode", np.array([9]), np.array([0]), np.array([[True]]), want_logits=True)
    np.save(sys.argv[2], out.logits)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "quantized.pte"), str(tmp_path / "logits.npy")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_close(np.load(tmp_path / "logits.npy"), expected, 1e-4)


def test_a_closed_backend_says_so(program) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    backend = ExecuTorchBackend(program[0])
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="closed"):
        backend.truncate(0)


def test_missing_damaged_and_foreign_files_are_one_sentence(program, tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    whole = program[0].read_bytes()
    files = {"foreign": b"not a program" * 100, "empty": b"", "cut": whole[: len(whole) // 3], "short": whole[:20]}
    with pytest.raises(BackendError, match="cannot read"):
        ExecuTorchBackend(tmp_path / "nowhere.pte")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BackendError, match=f"{tmp_path / name}") as refused:
            ExecuTorchBackend(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_planned_inputs_are_refused_with_the_remedy(tiny: TinyModel, tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    decode = methods_of(tiny)["decode"]
    write_program(tmp_path / "planned.pte", {"decode": decode}, delegate=False, planned_inputs=True)
    with pytest.raises(BackendError, match="alloc_graph_input=False"):
        ExecuTorchBackend(tmp_path / "planned.pte")


def test_an_unknown_operator_is_named(program, tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    content = program[0].read_bytes()
    assert b"streamfuse::tree_attention" in content
    (tmp_path / "strange.pte").write_bytes(
        content.replace(b"streamfuse::tree_attention", b"streamfuse::tree_attentiom")
    )
    with pytest.raises(
        BackendError, match=r"operators that this library does not include: streamfuse::tree_attentiom\.out"
    ):
        ExecuTorchBackend(tmp_path / "strange.pte")


def test_the_runtime_process_imports_neither_torch_nor_executorch(program) -> None:
    script = """
import sys
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
with ExecuTorchBackend(sys.argv[1]) as backend:
    out = backend.run("verify_2", np.array([1, 2]), np.array([0, 1]), np.array([[True, False], [True, True]]))
    assert out.best.shape == (2,)
    backend.commit([0, 1])
    assert backend.length == 2
assert not {"torch", "executorch", "pydantic"} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(program[0])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


OTHERS_POOL = """
import ctypes, sys
from streamfuse.native.library import installed_executorch, file_name
from streamfuse.runtime.backends.executorch import ExecuTorchProgram
library = ctypes.CDLL(str(installed_executorch() / file_name("executorch_threadpool")))
get, count = library._ZN10executorch9extension10threadpool15get_pthreadpoolEv, library.pthreadpool_get_threads_count
get.restype, count.argtypes, count.restype = ctypes.c_void_p, [ctypes.c_void_p], ctypes.c_size_t
pool, before = get(), count(get())  # as another model's delegates would keep it
with ExecuTorchProgram(sys.argv[1], num_threads=1), ExecuTorchProgram(sys.argv[1], num_threads=2):
    print(get() == pool, count(pool))
print(get() == pool, count(pool) - before)
"""


def test_executorchs_own_pool_stays_as_others_of_the_process_know_it(program) -> None:
    assert output_of([sys.executable, "-c", OTHERS_POOL, program[0]]) == "True 1\nTrue 0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="vendors' packages are for Linux only")
def test_a_wheels_copies_of_executorch_find_the_vendors_packages_beside_the_wheel(
    engine_library: Path, tmp_path: Path
) -> None:
    """The engine takes these copies if the installed executorch is of another release."""
    from streamfuse.native.library import RUNTIME_LIBRARIES, VERSION_FILE, file_name, installed_executorch

    own, wheel = tmp_path / "streamfuse" / "native" / "lib", installed_executorch()
    own.mkdir(parents=True)
    for stem in RUNTIME_LIBRARIES:
        shutil.copy(wheel / file_name(stem), own)
    shutil.copy(engine_library, own)
    (own / VERSION_FILE).write_text("1.4.0+cpu\n", encoding="utf-8")
    core = engine_library.with_name(file_name("streamfuse_core"))  # stands for any library
    for vendor, names in (("onnxruntime_qnn", ["QnnSystem", "QnnHtp"]), ("openvino/libs", ["openvino_c"])):
        (tmp_path / vendor).mkdir(parents=True)
        for name in names:
            shutil.copy(core, tmp_path / vendor / file_name(name))
    for name in ("executorch_backend_qnn", "qnn_executorch_backend"):
        (own / file_name(name)).write_text("of another release, as good as missing\n", encoding="utf-8")
    script = "import json; from streamfuse.native.library import list_backends; print(json.dumps(list_backends()))"
    places = {"STREAMFUSE_ENGINE": str(own / engine_library.name), "LD_LIBRARY_PATH": str(own), "QNN_SDK_ROOT": ""}
    found = json.loads(output_of([sys.executable, "-c", script], OPENVINO_LIB_PATH="", **places))
    assert found["openvino"].startswith(f"{own}/../../../openvino/libs/libopenvino_c.so is not OpenVINO's C library")
    assert found["qnn"].startswith("libexecutorch_backend_qnn.so cannot be loaded")
    assert found["qnn"].endswith("`pip install executorch==1.4.0`")


SHARED_POOL = """
import sys, warnings
from streamfuse.runtime.backends.executorch import ExecuTorchProgram
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ExecuTorchProgram(sys.argv[1], num_threads=1) as first:
        print(first.description["threads"], len(caught))
        with ExecuTorchProgram(sys.argv[1], num_threads=3) as second:
            print(second.description["threads"], *(warning.message for warning in caught))
"""


def test_the_number_of_threads_that_is_reported_is_the_one_of_xnnpacks_pool(program) -> None:
    first, second = output_of([sys.executable, "-c", SHARED_POOL, program[0]]).splitlines()
    assert first == "1 0"
    assert second.startswith(f"1 {program[0]} runs with threads=1, not 3: a process has one XNNPACK thread pool")


def test_a_program_opens_under_a_name_that_is_no_utf_8(program, tmp_path: Path) -> None:
    from streamfuse.runtime.backends.executorch import ExecuTorchProgram

    path = tmp_path / os.fsdecode(b"model-\xff.pte")
    path.symlink_to(program[0])
    with ExecuTorchProgram(path, num_threads=1) as loaded:
        assert "decode" in loaded.description["methods"]
