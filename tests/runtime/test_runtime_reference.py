"""The reference backend: padding, and commits of every layer. Run: pytest tests/runtime/test_runtime_reference.py"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from fakes import ArithmeticBackend, logits_after, spec

from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.loop import Loop

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'streamfuse[export]'")
reference = pytest.importorskip(
    "streamfuse.runtime.backends.reference", reason="torch is not installed: pip install 'streamfuse[export]'"
)

LAYERS, TOP = 3, 1
MODEL = spec(capacity=40, widths={"verify_4": (4, 3), "verify_8": (8, 5)})
SHAPE = {"caches": [(1, 2)] * LAYERS, "num_lower": LAYERS - TOP}


def survivors(ancestors: torch.Tensor, real: int, keep: int) -> torch.Tensor:
    """The root, then rows from the last one down, each behind its ancestors; padding rows last."""
    chosen: list[int] = [0]
    for row in reversed(range(real)):
        path = [j for j in range(row + 1) if ancestors[row, j] and j not in chosen]
        if len(chosen) + len(path) <= keep:
            chosen += path
    return torch.tensor((chosen + list(range(real, real + keep)))[:keep])


def toy(name: str) -> Callable[..., tuple]:
    """A method whose keys are (token, layer) and whose logits are the arithmetic model's after the tokens it sees.

    Each layer must tell the same story, so a row committed wrongly in one layer is found by the next pass.
    """
    rows, keep = MODEL.widths.get(name, (MODEL.rows(name), MODEL.rows(name)))

    def story(ancestors: torch.Tensor, ids: torch.Tensor, length: int, caches: tuple, row: int) -> list[int]:
        stories = []
        for layer in range(LAYERS):
            cached = caches[2 * layer][:length, 0]
            assert (cached[:, 1] == layer).all()
            assert (caches[2 * layer + 1][:length, 0, 0] == cached[:, 0] + 100).all()
            stories.append(cached[:, 0].long().tolist() + ids[ancestors[row]].tolist())
        assert stories == [stories[0]] * LAYERS
        return stories[0]

    def method(ids, positions, ancestors, length, want_logits, *caches):
        assert want_logits.shape == (1,)
        assert ids.shape == positions.shape == (rows,)
        assert ancestors.shape == (rows, rows)
        real = int(ancestors.diagonal().sum())
        assert not ancestors[real:].any()
        assert not ids[real:].any()
        kept = survivors(ancestors, real, keep) if name.startswith("verify") else torch.arange(rows)
        outputs: list[torch.Tensor] = []
        if name != "prefill":
            contexts = [story(ancestors, ids, int(length), caches, int(row)) for row in kept if row < real]
            logits = [torch.from_numpy(logits_after(context, MODEL.vocab_size)) for context in contexts]
            logits += [torch.full((MODEL.vocab_size,), 9.0)] * (len(kept) - len(logits))
            outputs += [torch.stack(logits), torch.stack(logits).argmax(1)]
        if name.startswith("verify"):
            outputs += [kept, torch.randint(64, (keep, 3, 3)), -torch.rand(keep, 3, 3).cumsum(-1)]
        for layer in range(LAYERS):
            key = torch.stack((ids.float(), torch.full((rows,), float(layer))), 1)[:, None]
            value = key + 100
            top = layer >= LAYERS - TOP and name.startswith("verify")
            outputs += [key[kept], value[kept]] if top else [key, value]
        return tuple(outputs)

    return method


def backend() -> object:
    return reference.ReferenceBackend({name: toy(name) for name in MODEL.methods}, MODEL, **SHAPE)


@pytest.mark.parametrize("width", [4, 8])
def test_the_law_holds_through_torch_caches(width: int) -> None:
    plain = Loop(ArithmeticBackend(MODEL), [1, 2, 3], GenerationConfig(30, speculative=False))
    list(plain.run())
    fused = Loop(backend(), [1, 2, 3], GenerationConfig(30, width=width))
    list(fused.run())
    assert fused.tokens == plain.tokens


def test_a_path_is_committed_by_node_below_and_by_survivor_above() -> None:
    engine = backend()
    ids = np.array([5, 6, 7, 8, 9, 10, 11], np.int64)
    parents = [-1, 0, 0, 1, 2, 3, 4]  # two paths: 0 1 3 5 and 0 2 4 6
    ancestors = np.eye(7, dtype=np.bool_)
    for row, parent in enumerate(parents[1:], start=1):
        ancestors[row] |= ancestors[parent]
    output = engine.run("verify_8", ids, np.array([0, 1, 1, 2, 2, 3, 3]), ancestors)
    assert output.kept.tolist() == [0, 2, 4, 6, 1]
    engine.commit([0, 2])
    engine.commit([4, 6])
    assert engine.length == 4
    alone = engine.run("decode", np.array([12]), np.array([4]), np.ones((1, 1), np.bool_))
    assert alone.logits is not None
    np.testing.assert_array_equal(alone.logits[0], logits_after([5, 7, 9, 11, 12], 64))
    engine.truncate(2)
    alone = engine.run("decode", np.array([12]), np.array([2]), np.ones((1, 1), np.bool_))
    assert alone.logits is not None
    np.testing.assert_array_equal(alone.logits[0], logits_after([5, 7, 12], 64))


def test_a_request_that_cannot_be_served_is_one_sentence() -> None:
    engine = backend()
    one = np.ones((1, 1), np.bool_)
    engine.run("verify_4", np.array([1]), np.array([0]), one)
    with pytest.raises(BackendError, match="row 3 is not among the surviving rows"):
        engine.commit([0, 3])
    assert engine.length == 0
    with pytest.raises(BackendError, match="no method 'verify_5'; it has prefill, decode"):
        engine.run("verify_5", np.array([1]), np.array([0]), one)
    with pytest.raises(BackendError, match="takes from 1 to 4 rows, not 5"):
        engine.run("verify_4", np.zeros(5, np.int64), np.zeros(5, np.int64), np.eye(5, dtype=np.bool_))
    with pytest.raises(BackendError, match="cannot truncate"):
        engine.truncate(1)
    with pytest.raises(BackendError, match="lacks the methods verify_8"):
        reference.ReferenceBackend({name: toy(name) for name in MODEL.methods[:-1]}, MODEL, **SHAPE)


def test_a_pass_that_fails_leaves_nothing_to_commit() -> None:
    def broken(*_: torch.Tensor) -> tuple:
        raise RuntimeError("out of memory")

    engine = reference.ReferenceBackend(
        {**{name: toy(name) for name in MODEL.methods}, "decode": broken}, MODEL, **SHAPE
    )
    one = np.ones((1, 1), np.bool_)
    engine.run("verify_4", np.array([1]), np.array([0]), one)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.run("decode", np.array([1]), np.array([0]), one)
    with pytest.raises(BackendError, match="row 0 is not among the surviving rows"):
        engine.commit([0])


def test_a_full_cache_refuses_another_row() -> None:
    engine = backend()
    for start in range(0, 40, 8):
        engine.run("prefill", np.arange(8), np.arange(start, start + 8), np.tri(8, dtype=np.bool_))
        engine.commit(range(8))
    with pytest.raises(BackendError, match="do not fit into the cache of 40"):
        engine.commit([0])


def test_the_runtime_imports_neither_torch_nor_pydantic() -> None:
    modules = ["backend", "backends.callbacks", "config", "core", "session", "tables", "text", "reference.loop"]
    code = f"import {', '.join('streamfuse.runtime.' + name for name in modules)}, sys; "
    code += "sys.exit(', '.join({'torch', 'pydantic', 'executorch'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
