"""The operators: C++ against a double-precision reference and against itself bit for bit, PyTorch reference, export.

Run: pytest tests/kernels/test_kernels_ops.py. It builds build/native if needed; only the C++ part needs a compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiers import cases
from torch.nn import functional as F

import streamfuse.export.operators.aot  # registers torch.ops.streamfuse
from streamfuse.export.operators import reference
from streamfuse.export.operators.layout import cache_shapes
from streamfuse.export.operators.packing import RoundedKeys, RoundedValues, pack_q4_1, pack_q8_0, unpack
from streamfuse.export.operators.states import HEADER

HAS_COMPILER = any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++"))
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler to build the operators with")
X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["avx512", "avx_vnni", "avx2", "portable"] if X86 else ["neon_i8mm", "neon_dot", "neon"]


@functools.cache
def built_test_program() -> Path:
    from streamfuse.native.build import build

    return build(quiet=True, jobs=2).parent / "test_ops"


def run_on(instruction_set: str, *arguments: str) -> str:
    """What the test program prints on an instruction set. Skips only where the program says that this CPU lacks it."""
    environment = os.environ | {"STREAMFUSE_ISA": instruction_set}
    done = subprocess.run([built_test_program(), *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    chosen = re.search(r"instruction set: (\w+)", done.stdout)
    assert chosen, done.stdout + done.stderr
    if chosen[1] != instruction_set:
        assert instruction_set != INSTRUCTION_SETS[-1], f"{instruction_set} must run here, {chosen[1]} did"
        pytest.skip(f"this CPU has no {instruction_set}, the program chose {chosen[1]}")
    return done.stdout


@needs_compiler
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_operators_are_right_and_row_invariant_on_every_instruction_set(instruction_set: str) -> None:
    run_on(instruction_set, str(cases(75, 300)))


@needs_compiler
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_all_instruction_sets_give_the_same_bits(instruction_set: str) -> None:
    plain = run_on(INSTRUCTION_SETS[-1], "--digest").split("digest: ")[1]
    assert run_on(instruction_set, "--digest").split("digest: ")[1] == plain


@needs_compiler
@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="the test reads other threads' clocks as Linux gives them")
def test_threads_are_as_many_as_big_cores_and_sleep_and_survive_a_fork() -> None:
    done = subprocess.run([built_test_program().with_name("test_team")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def random_attention(rows: int, heads: int, kv_heads: int, dim: int, capacity: int, length: int) -> list:
    draw = torch.randn
    visible = torch.tril(torch.rand(rows, rows) < 0.5) | torch.eye(rows, dtype=torch.bool)
    shapes = [(rows, heads, dim), (rows, kv_heads, dim), (rows, kv_heads, dim)] + [(capacity, kv_heads, dim)] * 2
    return [*(draw(shape) for shape in shapes), torch.tensor([length]), visible, dim**-0.5]


def packed(arguments: list) -> list:
    """The same with caches in int8, as an exported program takes them."""
    caches = RoundedKeys.of(arguments[3]).packed(), RoundedValues.of(arguments[4]).packed()
    return [*arguments[:3], *caches, *arguments[5:]]


def obvious_attention(
    query, key, value, key_cache, value_cache, cache_length, visible, scale, window=None
) -> torch.Tensor:
    """Row by row, head by head, in double precision."""
    rows, heads, dim = query.shape
    group, length = heads // key.shape[1], int(cache_length)
    out = torch.zeros(rows, heads, dim, dtype=torch.float64)
    for i in range(rows):
        for h in range(heads):
            seen = visible[i]
            keys = torch.cat([key_cache[:length, h // group], key[seen][:, h // group]]).double()
            values = torch.cat([value_cache[:length, h // group], value[seen][:, h // group]]).double()
            if window is not None:
                keys, values = keys[-window:], values[-window:]
            if len(keys):
                out[i, h] = torch.softmax(keys @ query[i, h].double() * scale, dim=0) @ values
    return out.reshape(rows, heads * dim)


@pytest.mark.parametrize(
    "shape", [(1, 9, 3, 64, 32, 20), (7, 4, 2, 16, 32, 0), (16, 8, 1, 32, 64, 64), (5, 3, 3, 48, 32, 3)]
)
def test_the_reference_equals_the_obvious_attention(shape: tuple[int, ...]) -> None:
    """But for the rounding: numbers around 1 in 127 steps."""
    torch.manual_seed(sum(shape))
    arguments = random_attention(*shape)
    found = torch.ops.streamfuse.tree_attention(*arguments)
    torch.testing.assert_close(found.double(), obvious_attention(*arguments), atol=0.05, rtol=0)
    assert torch.equal(torch.ops.streamfuse.tree_attention(*packed(arguments)), found)
    for window in (1, 4, 33, 1000):
        found = torch.ops.streamfuse.window_attention(*arguments, window)
        expected = obvious_attention(*arguments, window)
        torch.testing.assert_close(found.double(), expected, atol=0.05, rtol=0)
        assert torch.equal(torch.ops.streamfuse.window_attention(*packed(arguments), window), found)


def test_a_ring_with_the_last_positions_is_as_good_as_the_whole_cache() -> None:
    torch.manual_seed(2)
    query, key, value, keys, values, length, visible, scale = random_attention(7, 4, 2, 16, 256, 150)
    whole = packed((query, key, value, keys, values, length, visible, scale))
    for window, positions in ((1, 64), (20, 64), (32, 64), (33, 96), (64, 128)):
        ring = [cache.new_zeros(positions, *cache.shape[1:]) for cache in (keys, values)]
        for t in range(int(length)):
            for cache, from_ in zip(ring, (keys, values), strict=True):
                cache[t % positions] = from_[t]
        arguments = packed((query, key, value, *ring, length, visible, scale))
        found = torch.ops.streamfuse.window_attention(*arguments, window)
        assert torch.equal(found, torch.ops.streamfuse.window_attention(*whole, window))
    with pytest.raises(ValueError, match="outside the cache of 64 positions"):
        reference.window_attention(*packed((query, key, value, keys[:64], values[:64], length, visible, scale)), 33)


def random_convolution(rows: int, heads: int, dim: int, capacity: int, length: int, count: int) -> list:
    arguments = random_attention(rows, heads, heads // 2, dim, capacity, length)
    return [*arguments[:-1], torch.randn(count, heads * dim)]


@pytest.mark.parametrize(
    "shape", [(1, 4, 64, 32, 20, 3), (7, 2, 16, 32, 0, 3), (9, 6, 48, 64, 64, 4), (5, 2, 32, 32, 1, 1)]
)
def test_the_reference_equals_the_obvious_convolution(shape: tuple[int, ...]) -> None:
    torch.manual_seed(sum(shape))
    query, key, value, keys, values, length, visible, taps = arguments = random_convolution(*shape)
    rows, count = len(query), len(taps)
    wanted = []
    for i in range(rows):
        parts = [torch.cat([keys[:length], key[visible[i]]]), torch.cat([values[:length], value[visible[i]]])]
        read = torch.cat([part.flatten(1) for part in parts], 1)[-count:]
        wanted.append(query[i].flatten() * (taps[count - len(read) :] * read).sum(0))
    found = torch.ops.streamfuse.short_convolution(*arguments)
    torch.testing.assert_close(found, torch.stack(wanted), atol=0.2, rtol=0)
    assert torch.equal(torch.ops.streamfuse.short_convolution(*packed(arguments)), found)


def test_a_convolution_reads_a_ring_like_a_whole_cache() -> None:
    torch.manual_seed(3)
    query, key, value, keys, values, length, visible, taps = random_convolution(7, 4, 16, 256, 150, 3)
    ring = [cache.new_zeros(64, *cache.shape[1:]) for cache in (keys, values)]
    for t in range(int(length)):
        for cache, from_ in zip(ring, (keys, values), strict=True):
            cache[t % 64] = from_[t]
    found, wanted = (
        torch.ops.streamfuse.short_convolution(*packed([query, key, value, *caches, length, visible, taps]))
        for caches in (ring, (keys, values))
    )
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="outside the cache of 64 positions"):
        reference.short_convolution(*packed([query, key, value, *ring, length, visible, torch.randn(33, 64)]))


def random_recurrence(
    rows: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, dim: int, length: int
) -> tuple[list, torch.Tensor]:
    """Arguments of gated_delta_rule, and the cached and new rows before they are split into key and value."""
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    kv_heads = -(-(64 * value_heads + channels) // (2 * dim))
    projected = torch.randn(length + rows, 2 * value_heads + channels)
    key, value = torch.ops.streamfuse.delta_rows(projected, value_heads, kv_heads, dim)
    caches = [F.pad(part[:length], (0, 0, 0, 0, 0, 64 - length)) for part in (key, value)]
    visible = torch.eye(rows, dtype=torch.bool)
    for i in range(1, rows):
        visible[i] |= visible[int(torch.randint(0, i, ()))] & (torch.rand(()) < 0.8)
    states = torch.zeros(2, HEADER + 3 * channels + value_heads * key_dim * value_dim)
    weights = [torch.randn(4, channels), torch.rand(value_heads), torch.randn(value_heads), torch.randn(value_dim)]
    return [key[length:], value[length:], *caches, torch.tensor([length]), visible, states, *weights, 1e-6, key_heads,
            64], projected  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1, 1, 8, 8, 16, 5), (9, 2, 6, 12, 5, 16, 0), (12, 2, 2, 16, 24, 32, 20)])
def test_the_reference_equals_the_obvious_recurrence(shape: tuple[int, ...]) -> None:
    """Gated DeltaNet, eq. 10, in float64, a row at a time; but for the rounding of the rows."""
    torch.manual_seed(sum(shape))
    arguments, projected = random_recurrence(*shape)
    rows, key_heads, value_heads, key_dim, value_dim, _, length = shape
    visible = arguments[5]
    taps, rates, bias, norm = (tensor.double() for tensor in arguments[7:11])
    found = torch.ops.streamfuse.gated_delta_rule(*arguments)
    for i in range(rows):
        sequence = torch.cat([projected[:length], projected[length:][visible[i]]]).double()
        gates, channels = sequence[:, : 2 * value_heads], sequence[:, 2 * value_heads :]
        mixed = F.silu((F.pad(channels, (0, 0, 3, 0)).unfold(0, 4, 1) * taps.T).sum(2))
        q, k, v = mixed.split([key_heads * key_dim, key_heads * key_dim, value_heads * value_dim], 1)
        for head in range(value_heads):
            state, own = torch.zeros(key_dim, value_dim).double(), head * key_heads // value_heads
            for t in range(len(sequence)):
                key = F.normalize(k[t].view(key_heads, -1)[own], dim=0)
                decay = torch.exp(-rates[head] * F.softplus(gates[t, head] + bias[head]))
                beta = torch.sigmoid(gates[t, value_heads + head])
                state = decay * state
                state = state + torch.outer(key, beta * (v[t].view(value_heads, -1)[head] - key @ state))
            out = F.normalize(q[-1].view(key_heads, -1)[own], dim=0) @ state
            expected = out / (out.square().mean() + key_dim * 1e-6).sqrt() * norm
            ours = found[i].view(value_heads, -1)[head].double()
            assert F.cosine_similarity(ours, expected, dim=0) > 0.99, (i, head)
    again = [*arguments[:6], arguments[6] * 0, *arguments[7:]]
    again[2], again[3] = RoundedKeys.of(again[2]).packed(), RoundedValues.of(again[3]).packed()
    assert torch.equal(torch.ops.streamfuse.gated_delta_rule(*again), found)


def test_a_state_that_was_lost_is_refused() -> None:
    arguments, _ = random_recurrence(2, 1, 1, 8, 8, 16, 20)
    arguments[6][:, 0] = 21.0
    with pytest.raises(ValueError, match="the state after 20 tokens is lost: the oldest one is after 21"):
        torch.ops.streamfuse.gated_delta_rule(*arguments)


def test_gates_scale_numbers_by_sigmoids_or_silu() -> None:
    x, gates = torch.randn(3, 40), torch.randn(3, 40) * 20
    torch.testing.assert_close(torch.ops.streamfuse.gate_heads(x, gates), x * torch.sigmoid(gates))
    torch.testing.assert_close(torch.ops.streamfuse.silu_gate(x, gates), x * F.silu(gates))
    torch.testing.assert_close(torch.ops.streamfuse.gelu_gate(x, gates), x * F.gelu(gates, approximate="tanh"))


@pytest.mark.parametrize("shape", [(1, 9, 64), (5, 4, 16), (40, 3, 12)])
def test_gates_scale_heads_by_sigmoids(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(sum(shape))
    rows, heads, _ = shape
    x, gates = torch.randn(shape), torch.randn(rows, heads) * 20
    found = torch.ops.streamfuse.gate_heads(x.flatten(1), gates)
    torch.testing.assert_close(found, (x * torch.sigmoid(gates).unsqueeze(2)).flatten(1))


def test_a_packed_cache_holds_what_was_rounded() -> None:
    torch.manual_seed(1)
    rows = torch.randn(64, 3, 48)
    rows[5] = 0.0
    rows[7] *= 1e-7  # below float16's normal numbers
    rows[9] *= 1e7  # a scale of keys that float16 cannot hold
    keys, values = RoundedKeys.of(rows), RoundedValues.of(rows)
    for kind, rounded in ((RoundedKeys, keys), (RoundedValues, values)):
        again = kind.unpack(rounded.packed())
        assert all(torch.equal(*pair) for pair in zip(vars_of(again), vars_of(rounded), strict=True))
    assert keys.q.abs().max() == values.q.abs().max() == 127
    assert (tuple(keys.packed().shape), tuple(values.packed().shape)) == cache_shapes(64, 3, 48)
    with pytest.raises(ValueError, match="a multiple of 32, not 40"):
        cache_shapes(40, 3, 48)


def vars_of(rounded: RoundedKeys | RoundedValues) -> list[torch.Tensor]:
    return [getattr(rounded, field.name) for field in dataclasses.fields(rounded)]


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    arguments = random_attention(4, 4, 2, 8, 5, 0)
    arguments[6][3] = False
    out = reference.tree_attention(*arguments)
    assert (out[3] == 0).all()
    assert torch.isfinite(out).all()
    assert out[2].abs().sum() > 0


def packed_weight(scheme: str, outputs: int, inputs: int) -> torch.Tensor:
    d = (torch.rand(outputs, inputs // 32) / 100).half()
    if scheme == "q8_0":
        return pack_q8_0(torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8), d)
    return pack_q4_1(torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), d, -8 * d)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("scheme", ["q4_1", "q8_0"])
def test_a_product_adds_its_groups_in_order(scheme: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = packed_weight(scheme, 36, 96), torch.randn(rows, 96)
    w, r = unpack(weight), reference.Rounded.of(x)
    wanted = torch.zeros(rows, 48)
    for g in range(3):
        dots = r.q[:, g] @ w.q[:, 32 * g : 32 * (g + 1)].float().T
        steps = [(dots, w.d[:, g] * r.scale[:, g, None])]
        steps += [] if w.m is None else [(r.scale[:, g, None] * r.q[:, g].sum(1, keepdim=True), w.m[:, g])]
        for a, b in steps:
            wanted = (a.double() * b.double() + wanted.double()).float()
    for at_once in (1 << 18, 40 * rows):  # all outputs together, and in four blocks
        monkeypatch.setattr(reference, "AT_ONCE", at_once)
        assert torch.equal(reference.product(x, weight, 36), wanted[:, :36])


def test_a_weight_is_unpacked_once_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = packed_weight("q8_0", 32, 64), torch.randn(2, 64)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(reference, "unpack", lambda weight: (seen.append(weight), unpack(weight))[1])
    wanted = reference.product(x, weight, 32)
    with reference.unpacked_once():
        assert all(torch.equal(reference.product(x, weight, 32), wanted) for _ in range(3))
        assert torch.equal(reference.product(x, weight[:1], 16), wanted[:, :16])  # at the same address
        assert len(seen) == 3
    reference.product(x, weight, 32)
    assert len(seen) == 4


def test_top_k_breaks_ties_by_the_smaller_column() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0]])
    ids, log_probs = reference.top_k_log_prob(logits, torch.arange(6) * 10, 5)
    assert ids.tolist() == [[10, 20, 40, 30, 50]]
    torch.testing.assert_close(log_probs, torch.log_softmax(logits, 1)[:, [1, 2, 4, 3, 5]])


def test_out_variants_equal_the_functional_forms() -> None:
    arguments = random_attention(3, 4, 2, 16, 32, 2)
    out = torch.empty(3, 64)
    assert torch.ops.streamfuse.tree_attention.out(*arguments, out=out) is out
    assert (out == reference.tree_attention(*arguments)).all()
    arguments = torch.randn(2, 32), torch.ones(32), 1e-5, stream_head(9), torch.arange(9), 4
    ids, log_probs = torch.empty(2, 4, dtype=torch.int64), torch.empty(2, 4)
    torch.ops.streamfuse.stream_top_k.out(*arguments, out_ids=ids, out_log_probs=log_probs)
    expected = reference.stream_top_k(*arguments)
    assert (ids == expected[0]).all()
    assert (log_probs == expected[1]).all()


def stream_head(columns: int) -> torch.Tensor:
    """A packed matrix [columns, 32]."""
    return pack_q8_0(torch.randint(-128, 128, (columns, 32), dtype=torch.int8), torch.rand(columns, 1).half() * 0.01)


class TwoOperators(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("head", stream_head(32))
        self.register_buffer("norm", torch.ones(32))

    def forward(self, query, key, value, key_cache, value_cache, cache_length, visible, ids):
        mixed = torch.ops.streamfuse.tree_attention(
            query, key, value, key_cache, value_cache, cache_length, visible, 0.25
        )
        return torch.ops.streamfuse.stream_top_k(mixed, self.norm, 1e-5, self.head, ids, 4)


def test_torch_export_keeps_the_operators_and_their_shapes() -> None:
    arguments = (*packed(random_attention(3, 2, 2, 16, 32, 2))[:-1], torch.arange(32))
    program = torch.export.export(TwoOperators(), arguments)
    called = {str(node.target) for node in program.graph.nodes if "streamfuse" in str(node.target)}
    assert called == {"streamfuse.tree_attention.default", "streamfuse.stream_top_k.default"}
    ids, log_probs = program.module()(*arguments)
    assert ids.shape == log_probs.shape == (3, 4)


def test_the_lowered_program_calls_the_out_variants() -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    arguments = (*packed(random_attention(3, 2, 2, 16, 32, 2))[:-1], torch.arange(32))
    edge = to_edge(
        torch.export.export(TwoOperators(), arguments), compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    plan = edge.to_executorch().executorch_program.execution_plan[0]
    names = {f"{operator.name}.{operator.overload}" for operator in plan.operators}
    called = {"streamfuse::tree_attention.out", "streamfuse::stream_top_k.out"}
    assert called <= set(streamfuse.export.operators.aot.OPERATORS)
    assert called <= names


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({0: (3, 5, 16)}, "multiple of kv heads"),
        ({6: (2, 2)}, "visible must be bool"),
        ({3: (2, 32, 33)}, r"packed as uint8 \[2, 32, 34\] and \[2, 32, 21\]"),
        ({3: (2, 24, 34)}, "multiple of 32, not 24"),
    ],
)
def test_wrong_shapes_are_refused_at_export(change: dict[int, tuple[int, ...]], sentence: str) -> None:
    arguments = packed(random_attention(3, 4, 2, 16, 32, 2))
    for place, shape in change.items():
        arguments[place] = torch.zeros(shape, dtype=arguments[place].dtype)
    with pytest.raises(ValueError, match=sentence):
        torch.ops.streamfuse.tree_attention(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments))


def test_a_missing_library_names_the_command_that_builds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from streamfuse.native import library

    monkeypatch.delenv("STREAMFUSE_ENGINE", raising=False)
    monkeypatch.setattr(library, "HERE", tmp_path / "native")
    with pytest.raises(library.LibraryError, match=r"python -m streamfuse\.native\.build"):
        library.find_library()
    monkeypatch.setenv("STREAMFUSE_ENGINE", str(tmp_path / "nowhere.so"))
    with pytest.raises(library.LibraryError, match="STREAMFUSE_ENGINE names"):
        library.find_library()


def test_the_manifest_knows_the_operators_of_the_engine() -> None:
    from streamfuse.bundle.manifest import OPERATORS as KNOWN

    assert set(KNOWN) == set(streamfuse.export.operators.aot.OPERATORS)


def test_the_reference_takes_inputs_that_are_trained() -> None:
    weight, x = packed_weight("q4_1", 36, 96), torch.randn(3, 96, requires_grad=True)
    assert torch.equal(reference.product(x, weight, 36), reference.product(x.detach(), weight, 36))
    assert torch.equal(
        reference.rms_norm(x, torch.ones(96), 1e-5), reference.rms_norm(x.detach(), torch.ones(96), 1e-5)
    )
