"""The packed operators: packing, and the C++ against reference.py bit for bit, through a program of the engine.

Run: pytest tests/kernels/test_kernels_products.py. Attention sums otherwise than PyTorch does, so every row of these
programs attends to itself alone, where it is exact.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import streamfuse.export.operators.aot  # noqa: F401  registers torch.ops.streamfuse
from streamfuse.export.operators import packing, reference
from streamfuse.export.operators.layout import cache_shapes

OPS = torch.ops.streamfuse
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, CAPACITY = 96, 3, 1, 32, 160, 1000, 64
STREAM_VOCAB, TOP_K, ROWS, RANK, EPS = 200, 7, 6, 5, 1e-5
WINDOW = 3  # of positions: a node's window begins among the tree's nodes or in the cache
CACHED = 37  # positions before the passes that are compared: a whole block of the cache and a part of one
DEPTHS = [0, 1, 1, 2, 2, 3]
TREE = np.array([list(map(int, row)) for row in ("100000", "110000", "101000", "110100", "101010", "110101")], bool)
TEXT = [7 * position % VOCAB for position in range(CACHED)]
HAS_COMPILER = any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++"))
X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["avx512", "avx_vnni", "avx2", "portable"] if X86 else ["neon_i8mm", "neon_dot", "neon"]
# On each instruction set one number of threads by default; the next set has the other one.
PAIRS = [
    pytest.param(name, threads, marks=[] if threads == (3, 1)[i % 2] else pytest.mark.full)
    for i, name in enumerate(INSTRUCTION_SETS)
    for threads in (1, 3)
]


def q4_1(outputs: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    d = (torch.rand(outputs, inputs // 32) * 0.02).half()
    return torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), d, -(7.5 * d.float()).half()


def q8_0(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    d = (torch.rand(outputs, inputs // 32) * 0.002).half()
    return torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8), d


class Layer(nn.Module):
    """Every operator once, with adapters in the rows from `first` on and norms per head; with biases or without.

    `norms_after`: norms over all heads and before residual additions, none before a product, a window, gated heads,
    GELU, adapters in int8, a four-bit embedding, a query alone, and capped logits.
    """

    def __init__(self, biased: bool, norms_after: bool) -> None:
        super().__init__()
        self.biased, self.norms_after = biased, norms_after
        wide = (HEADS + 2 * KV_HEADS) * DIM
        buffers = {
            "embedding": packing.pack_q8_0(*q8_0(VOCAB, HIDDEN)),
            "qkv": packing.pack_q4_1(*q4_1(wide, HIDDEN)),
            "o": packing.pack_q4_1(*q4_1(HIDDEN, HEADS * DIM)),
            "table": packing.pack_q4_1(*q4_1(VOCAB, HIDDEN)),
            "query": packing.pack_q4_1(*q4_1(HEADS * DIM, HIDDEN)),
            "gates": packing.pack_q4_1(*q4_1(HEADS, HIDDEN)),
            "gate_up": packing.pack_q4_1(*q4_1(2 * INNER, HIDDEN)),
            "down": packing.pack_q4_1(*q4_1(HIDDEN, INNER)),
            "stream_head": packing.pack_q8_0(*q8_0(STREAM_VOCAB, HIDDEN)),
            "stream_ids": torch.randperm(VOCAB)[:STREAM_VOCAB],
        }
        shapes = {"qkv": (3, HIDDEN, wide), "o": (1, HEADS * DIM, HIDDEN), "gate_up": (2, HIDDEN, 2 * INNER)}
        shapes["query"] = (1, HIDDEN, HEADS * DIM)
        for name, (parts, inputs, outputs) in (shapes | {"down": (1, INNER, HIDDEN)}).items():
            down, up = (torch.randn(parts * RANK, inputs) * 0.1).half(), torch.randn(outputs, RANK) * 0.1
            if norms_after:
                pairs = [packing.integer_adapters(part.float(), up) for part in down.chunk(parts)]
                down, up = torch.cat([part for part, _ in pairs]), pairs[0][1]
            buffers |= {f"{name}_a": down, f"{name}_b": packing.tile_adapters(up)}
        buffers |= {name: torch.rand(HIDDEN) + 0.5 for name in ("norm_1", "norm_2", "norm_3")}
        of_heads = (HEADS, KV_HEADS) if norms_after else (1, 1)
        buffers |= {f"{n}_norm": torch.rand(k * DIM) + 0.5 for n, k in zip("qk", of_heads, strict=True)}
        buffers["query_norm"] = torch.rand(DIM) + 0.5
        buffers |= {"qkv_bias": torch.randn(wide) * 3, "o_bias": torch.randn(HIDDEN) * 3}
        angle = torch.arange(CAPACITY)[:, None] * torch.rand(DIM // 2)
        buffers |= {"cos": torch.cat([angle.cos()] * 2, 1), "sin": torch.cat([angle.sin()] * 2, 1)}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


class Method(nn.Module):
    def __init__(self, layer: Layer, rows: int, first: int) -> None:
        super().__init__()
        self.layer, self.rows, self.first = layer, rows, first

    def forward(self, ids: Tensor, positions: Tensor, ancestors: Tensor, length: Tensor, want: Tensor, *caches: Tensor):
        w, first = self.layer, self.first
        x = OPS.embedding_q8(w.embedding, ids)
        cos, sin = w.cos[positions], w.sin[positions]
        qkv, linear, biases = OPS.qkv, OPS.linear, ([], [])
        if w.biased:
            qkv, linear, biases = OPS.biased_qkv, OPS.biased_linear, ([w.qkv_bias], [w.o_bias])
        before = (None, None) if w.norms_after else (w.norm_1, w.norm_2)
        q, k, v = qkv(
            x, before[0], EPS, w.qkv, cos, sin, HEADS, KV_HEADS, w.q_norm, w.k_norm, w.qkv_a, w.qkv_b, first, *biases[0]
        )
        if w.norms_after:
            mixed = OPS.window_attention(q, k, v, *caches, length, ancestors, DIM**-0.5, WINDOW)
            gates = OPS.linear(x, w.norm_2, EPS, w.gates, HEADS, None, None, None, self.rows)
            mixed = OPS.gate_heads(mixed, gates)
        else:
            mixed = OPS.tree_attention(q, k, v, *caches, length, ancestors, DIM**-0.5)
        residual = None if w.norms_after else x
        y = linear(mixed, None, EPS, w.o, HIDDEN, residual, w.o_a, w.o_b, first, *biases[1])
        x = OPS.add_normed(y, w.norm_1, EPS, x) if w.norms_after else y
        adapters = w.gate_up_a, w.gate_up_b, w.down_a, w.down_b, first
        mlp = OPS.gated_branch if w.norms_after else OPS.gated_mlp
        y = mlp(x, before[1], EPS, w.gate_up, w.down, INNER, *adapters, *([True] if w.norms_after else []))
        x = OPS.add_normed(y, w.norm_2, EPS, x) if w.norms_after else y
        if w.norms_after:
            adapter = w.query_a, w.query_b, first
            q = OPS.query(x, w.norm_1, EPS, w.query, cos, sin, HEADS, w.query_norm, *adapter)
            x = OPS.gelu_gate(q.flatten(1), x) + OPS.embedding_q4(w.table, ids)
            logits, best = OPS.capped_head(x, w.norm_3, EPS, w.embedding, VOCAB, want, 3.5)
        else:
            logits, best = OPS.head(x, w.norm_3, EPS, w.embedding, VOCAB, want)
        kept = positions * 0 + torch.arange(self.rows)
        if self.rows == 1:
            return logits, best, k, v
        streams = OPS.stream_top_k(x, w.norm_3, EPS, w.stream_head, w.stream_ids, TOP_K)
        return logits, best, kept, *(t.view(self.rows, 1, TOP_K) for t in streams), k, v


def inputs_of(rows: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, VOCAB, (rows,), generator=generator)
    caches = (torch.zeros(shape, dtype=torch.uint8) for shape in cache_shapes(CAPACITY, KV_HEADS, DIM))
    visible, length = torch.eye(rows, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    return (ids, torch.arange(rows), visible, length, torch.tensor([True]), *caches)


@pytest.fixture(
    scope="module", params=[(False, False), (True, False), (False, True)], ids=["plain", "biased", "norms after"]
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Method]]:
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    torch.manual_seed(5)
    layer = Layer(*request.param)
    methods = {"prefill": Method(layer, 1, 1), "decode": Method(layer, 1, 1), "verify_6": Method(layer, ROWS, 3)}
    exported = {name: torch.export.export(m, inputs_of(m.rows), strict=False) for name, m in methods.items()}
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    path = tmp_path_factory.mktemp("products") / "model.pte"
    path.write_bytes(
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning, constant_tensor_alignment=64)).buffer
    )
    return path, methods


@pytest.fixture(scope="module")
def expected(program: tuple[Path, dict[str, Method]]) -> dict[str, np.ndarray]:
    """What the methods give in PyTorch, which has no instruction sets and no threads to choose."""
    methods, found = program[1], {}
    caches = [torch.zeros(CAPACITY, KV_HEADS, DIM) for _ in range(2)]

    def eager(name: str, ids: Tensor, length: int, depths: list[int], tree: Tensor) -> tuple[Tensor, ...]:
        return methods[name](
            ids, length + torch.tensor(depths), tree, torch.tensor([length]), torch.tensor([True]), *caches
        )

    for position, token in enumerate(TEXT):
        *_, key, value = eager("decode", torch.tensor([token]), position, [0], torch.ones(1, 1, dtype=torch.bool))
        caches[0][position], caches[1][position] = key[0], value[0]
    for name, rows in (("decode", 1), ("verify_6", ROWS)):
        tree = torch.from_numpy(TREE[:rows, :rows])
        logits, best, *rest = eager(name, inputs_of(rows)[0], CACHED, DEPTHS[:rows], tree)
        found |= {f"{name}_logits": logits.numpy(), f"{name}_best": best.numpy()}
    _, ids, log_probs, *_ = rest
    return found | {"ids": ids.numpy(), "log_probs": log_probs.numpy()}


SCRIPT = """
import sys
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
with ExecuTorchBackend(sys.argv[1], num_threads=int(sys.argv[4])) as backend:
    inputs = np.load(sys.argv[2])
    seen = {"isa": np.array(backend.description["instruction_set"])}
    for position, token in enumerate(inputs["text"]):
        backend.run("decode", np.array([token]), np.array([position]), np.ones((1, 1), bool))
        backend.commit([0])
    for name, rows in (("decode", 1), ("verify_6", 6)):
        tree = inputs["positions"][:rows], inputs["ancestors"][:rows, :rows]
        out = backend.run(name, inputs[name], *tree, want_logits=True)
        seen |= {f"{name}_logits": out.logits.copy(), f"{name}_best": out.best.copy()}
        best = backend.run(name, inputs[name], *tree).best
        assert (best == seen[f"{name}_best"]).all()
    seen |= {"ids": out.stream_ids, "log_probs": out.stream_log_probs}
    np.savez(sys.argv[3], **seen)
"""


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler to build the engine with")
@pytest.mark.parametrize(("instruction_set", "threads"), PAIRS)
def test_every_operator_has_the_bits_of_its_reference(
    program, expected, tmp_path: Path, instruction_set: str, threads: int
):
    """On each instruction set and on any number of threads."""
    from streamfuse.native.build import build

    library = os.environ.get("STREAMFUSE_ENGINE") or str(build(quiet=True, jobs=2))
    path, methods = program
    own = {name: inputs_of(method.rows)[0].numpy() for name, method in methods.items()}
    positions = CACHED + np.array(DEPTHS)
    np.savez(tmp_path / "in.npz", **own, text=np.array(TEXT), positions=positions, ancestors=TREE)
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        str(path),
        str(tmp_path / "in.npz"),
        str(tmp_path / "out.npz"),
        str(threads),
    ]
    environment = os.environ | {"STREAMFUSE_ISA": instruction_set, "STREAMFUSE_ENGINE": library}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    seen = np.load(tmp_path / "out.npz")
    if seen["isa"] != instruction_set:
        pytest.skip(f"this CPU has no {instruction_set}")
    for name in ("decode", "verify_6"):
        difference = np.abs(seen[f"{name}_logits"] - expected[f"{name}_logits"]).max()
        assert (seen[f"{name}_logits"] == expected[f"{name}_logits"]).all(), f"{name}: largest difference {difference}"
        assert (seen[f"{name}_best"] == expected[f"{name}_best"]).all()
    assert (seen["ids"] == expected["ids"]).all()
    assert np.abs(seen["log_probs"] - expected["log_probs"]).max() < 2e-6


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (16, 64), (37, 96)])
def test_packing_keeps_every_bit(outputs: int, inputs: int) -> None:
    q, d, m = q4_1(outputs, inputs)
    unpacked = packing.unpack(packing.pack_q4_1(q, d, m))
    assert torch.equal(unpacked.q[:outputs], q.to(torch.int16))
    assert torch.equal(unpacked.d[:outputs], d.float())
    assert unpacked.m is not None
    assert torch.equal(unpacked.m[:outputs], m.float())
    q, d = q8_0(outputs, inputs)
    unpacked = packing.unpack(packing.pack_q8_0(q, d))
    assert torch.equal(unpacked.q[:outputs], q.to(torch.int16))
    assert torch.equal(unpacked.d[:outputs], d.float())
    assert unpacked.m is None


def test_packing_refuses_what_does_not_fit() -> None:
    q, d, m = q4_1(16, 64)
    with pytest.raises(ValueError, match="between 0 and 15"):
        packing.pack_q4_1(q + 16, d, m)
    with pytest.raises(ValueError, match="a multiple of 32"):
        packing.pack_q4_1(q[:, :40], d, m)
    with pytest.raises(ValueError, match="scales must be"):
        packing.pack_q4_1(q, d[:, :1], m)
    with pytest.raises(ValueError, match="a packed weight is"):
        packing.unpack(torch.zeros(1, 2, 100, dtype=torch.uint8))


def test_a_product_is_near_the_float_one() -> None:
    """What rounding the activations to eight bits costs, and nothing more."""
    q, d, m = q4_1(48, 256)
    x = torch.randn(5, 256)
    weight = packing.pack_q4_1(q, d, m)
    exact = x.double() @ packing.unpack(weight).dequantized()[:48].double().T
    error = (reference.product(x, weight, 48) - exact).norm() / exact.norm()
    assert error < 0.01
    rounded = reference.Rounded.of(x)
    values = (rounded.q * rounded.scale[..., None]).reshape(x.shape)
    same = values.double() @ packing.unpack(weight).dequantized()[:48].double().T
    assert (reference.product(x, weight, 48) - same).abs().max() < 1e-5


@pytest.mark.parametrize("value", [0.0, 1e-40, -3.0, 88.0])
def test_the_reference_activations_are_the_usual_ones(value: float) -> None:
    x = torch.full((1, 32), value)
    assert torch.allclose(reference.silu(x), torch.nn.functional.silu(x), rtol=1e-6, atol=0)
    assert torch.isfinite(reference.Rounded.of(x).scale).all()
    norm = reference.rms_norm(x, torch.ones(32), EPS)
    assert torch.allclose(norm, x * torch.rsqrt((x * x).mean() + EPS), rtol=1e-6)


def test_adapters_in_int8_are_near_the_product() -> None:
    down, up, x = torch.randn(5, 96) * torch.logspace(-3, 1, 5)[:, None], torch.randn(40, 5), torch.randn(96)
    down[2], up[:, 3] = 0.0, 0.0
    first, second = packing.integer_adapters(down, up)
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((5, 100), torch.int8, (40, 5), torch.int8)
    numbers, factors, columns = packing.float_adapters(first, packing.tile_adapters(second))
    found = torch.einsum("trn,r->tn", columns, numbers @ x * factors).flatten()[:40]
    expected = up @ (down @ x)
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_shapes_that_do_not_fit_are_named_at_export() -> None:
    weight = packing.pack_q4_1(*q4_1(32, 64))
    x, norm = torch.zeros(2, 64, device="meta"), torch.zeros(64, device="meta")
    with pytest.raises(ValueError, match="linear: weight must be packed"):
        OPS.linear(x, norm, EPS, weight.to("meta"), 64, None, None, None, 0)
    with pytest.raises(ValueError, match=r"biased_linear: bias must be float32 \[32\]"):
        OPS.biased_linear(x, norm, EPS, weight.to("meta"), 32, None, None, None, 0, torch.zeros(16, device="meta"))
    with pytest.raises(ValueError, match="down and up must be given together"):
        OPS.linear(
            x, norm, EPS, weight.to("meta"), 32, None, torch.zeros(3, 64, dtype=torch.float16, device="meta"), None, 0
        )
    with pytest.raises(ValueError, match="gate_heads: the columns of x must be a multiple of 3"):
        OPS.gate_heads(x, torch.zeros(2, 3, device="meta"))
    small, tiled = torch.zeros(3, 64, dtype=torch.int8, device="meta"), torch.zeros(2, 3, 16, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"down must be float16 \[1 r, 64\] or int8 \[1 r, 68\]"):
        OPS.linear(x, norm, EPS, weight.to("meta"), 32, None, small, tiled.to("meta"), 0)
