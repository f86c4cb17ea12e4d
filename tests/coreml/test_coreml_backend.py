"""The Core ML backend over PyTorch instead of Core ML: masks, padding, commits, both layouts.

pytest tests/coreml/test_coreml_backend.py
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import coreml_decoder as decoder
import numpy as np
import pytest
import torch

from streamfuse.runtime.backend import BackendError, ModelSpec
from streamfuse.runtime.backends.coreml import open_package
from streamfuse.runtime.backends.coreml_common import NO_ENTRY, CacheLayout, CoreMLBackend

NAMES = [f"new_{kind}_{layer}" for layer in range(decoder.LAYERS) for kind in ("key", "value")]
SPEC = ModelSpec(decoder.CAPACITY, decoder.VOCAB, 0, 0, prefill_rows=8, widths={"verify_4": (4, 4)})
TOKENS = [5, 17, 3, 41, 8, 22]


def _layout(channels_first: bool) -> CacheLayout:
    return CacheLayout(0, (decoder.KV_HEADS,) * decoder.LAYERS, decoder.HEAD_DIM, channels_first, np.float32)


def _backend(channels_first: bool) -> CoreMLBackend:
    torch.manual_seed(6)
    model = (decoder.ChannelsFirst if channels_first else decoder.Decoder)().eval()

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids, positions, mask, *caches = (torch.from_numpy(x) for x in inputs.values())
        assert len(ids) == SPEC.rows(method)
        turned = (
            [table[positions].T[None, :, None] for table in (model.cos, model.sin)] if channels_first else [positions]
        )
        with torch.inference_mode():
            logits, _, _, *new = model(ids, *turned, mask, *caches)
        return {"logits": logits.numpy(), **dict(zip(NAMES, (x.numpy() for x in new), strict=True))}

    return CoreMLBackend(predict, SPEC, _layout(channels_first))


def _chain(backend: CoreMLBackend, method: str, tokens: list[int]) -> Any:
    ids, count = np.array(tokens), len(tokens)
    return backend.run(method, ids, backend.length + np.arange(count), np.tril(np.ones((count, count), np.bool_)))


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_a_tree_pass_gives_what_decoding_token_by_token_gives(channels_first: bool) -> None:
    plain, tree = _backend(channels_first), _backend(channels_first)
    for backend in (plain, tree):
        _chain(backend, "prefill", TOKENS[:3])
        backend.commit([0, 1, 2])
    want = []
    for token in TOKENS[3:]:
        want.append(_chain(plain, "decode", [token]).logits[0])
        plain.commit([0])

    # Node 1 is a rejected sibling of node 2: rows 0, 2, 3 are the path.
    ancestors = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
    found = tree.run("verify_4", np.array([41, 9, 8, 22]), np.array([3, 4, 4, 5]), ancestors)
    np.testing.assert_allclose(found.logits[[0, 2, 3]], np.stack(want), atol=1e-4)
    assert found.best[[0, 2, 3]].tolist() == [int(row.argmax()) for row in want]
    tree.commit([0, 2])
    tree.commit([3])
    assert tree.length == plain.length == 6
    after = [_chain(backend, "decode", [11]).logits for backend in (tree, plain)]
    np.testing.assert_allclose(*after, atol=1e-4)


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_a_truncated_cache_is_as_if_its_tail_had_never_been(channels_first: bool) -> None:
    backend = _backend(channels_first)
    _chain(backend, "prefill", TOKENS[:3])
    backend.commit([0, 1, 2])
    before = _chain(backend, "decode", [7]).logits.copy()
    _chain(backend, "verify_4", TOKENS[2:])
    backend.commit([0, 1, 2, 3])
    backend.truncate(3)
    np.testing.assert_array_equal(before, _chain(backend, "decode", [7]).logits)


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_a_trimmed_backend_has_no_caches_and_gives_the_same_logits(channels_first: bool) -> None:
    backend, caches = _backend(channels_first), list[weakref.ref[Any]]()
    predict = backend.predict

    def watched(method: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        caches.extend(weakref.ref(array) for name, array in inputs.items() if "_cache_" in name)
        return predict(method, inputs)

    def logits() -> Any:
        _chain(backend, "prefill", TOKENS[:3])
        backend.commit([0, 1, 2])
        return _chain(backend, "decode", [7]).logits

    backend.predict = watched
    expected = logits()
    with pytest.raises(BackendError, match="the cache is not empty: truncate it to 0 first"):
        backend.trim()
    backend.truncate(0)
    backend.trim()
    assert caches
    assert all(cache() is None for cache in caches)
    np.testing.assert_array_equal(logits(), expected)


def test_the_mask_is_finite_and_padding_sees_nothing() -> None:
    visible = np.zeros((3, 3), np.bool_)
    visible[:2, :2] = [[1, 0], [1, 1]]
    mask = CacheLayout(0, (1,), 1).mask(visible, capacity=4, length=2)
    no = np.float16(NO_ENTRY)
    assert mask.dtype == np.float16
    assert mask.tolist() == [[0, 0, no, no, 0, no, no], [0, 0, no, no, 0, 0, no], [no] * 7]
    turned = CacheLayout(0, (1,), 1, channels_first=True).mask(visible, capacity=4, length=2)
    assert turned.shape == (1, 7, 1, 3)
    assert turned[0, :, 0].T.tolist() == mask.tolist()


def test_rows_of_pruned_layers_are_found_by_their_place_among_the_survivors() -> None:
    """Layer 0 returns all four rows, layer 1 the three survivors in their own order, a padding row last."""
    full, pruned = np.arange(4.0).reshape(4, 1, 1), np.array([0.0, 2, 3]).reshape(3, 1, 1)
    seen: list[dict[str, Any]] = []

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.append({name: value.copy() for name, value in inputs.items()})
        new = {"new_key_0": full, "new_value_0": 10 * full, "new_key_1": pruned, "new_value_1": 10 * pruned}
        return {
            "logits": np.zeros((3, 5), np.float16),
            "best": np.array([1, 2, 3], np.int32),
            "kept": np.array([0, 2, 3], np.int32),
            "stream_ids": np.ones((3, 2, 1), np.int32),
            "stream_log_probs": np.zeros((3, 2, 1), np.float16),
            **new,
        }

    spec = ModelSpec(6, 5, 2, 1, prefill_rows=4, widths={"verify_4": (4, 3)})
    backend = CoreMLBackend(predict, spec, CacheLayout(1, (1, 1), 1))
    for _ in range(2):
        found = backend.run("verify_4", np.array([4, 3, 2]), np.arange(3), np.eye(3, dtype=np.bool_))
        assert found.kept.tolist() == [0, 2]  # row 3 is padding
        assert found.best.tolist() == [1, 2]
        assert found.stream_ids.shape == (2, 2, 1)
        with pytest.raises(BackendError, match="row 1 is not among the surviving rows"):
            backend.commit([0, 1])
        backend.commit([0, 2])
    assert seen[1]["key_cache_1"].ravel().tolist() == [0, 2, 0, 0, 0, 0]
    assert seen[1]["value_cache_0"].ravel().tolist() == [0, 20, 0, 0, 0, 0]
    assert seen[0]["input_ids"].tolist() == [4, 3, 2, 0]


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_streams_get_the_state_of_their_node_and_the_committed_cache(channels_first: bool) -> None:
    """Layer 0 of two is below the top: its caches are no inputs of `streams`."""
    seen: dict[str, Any] = {}
    hidden = np.arange(12.0, dtype=np.float16).reshape(4, 3)

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if method == "streams":
            seen.update({name: value.copy() for name, value in inputs.items()})
            return {"stream_ids": np.full((1, 2, 1), 7, np.int32), "stream_log_probs": np.zeros((1, 2, 1), np.float16)}
        new = np.ones((1, 1, 1, 4) if channels_first else (4, 1, 1), np.float16)
        rows = {f"new_{kind}_{layer}": new for layer in range(2) for kind in ("key", "value")}
        states = hidden.T[None, :, None] if channels_first else hidden
        return {"logits": np.zeros((4, 5)), "best": np.zeros(4, np.int32), "hidden": states, **rows}

    spec = ModelSpec(
        6, 5, 2, 1, prefill_rows=4, widths={"verify_4": (4, 4)}, stream_nodes={"verify_4": 0}, deferred=True
    )
    backend = CoreMLBackend(predict, spec, CacheLayout(1, (1, 1), 1, channels_first))
    with pytest.raises(BackendError, match="no survivor 0 with a hidden state"):
        backend.streams(0, 0)
    assert _chain(backend, "verify_4", [1, 2, 3]).logits is None  # nobody asked
    backend.commit([0, 2])
    found = backend.streams(2, 0)
    assert found.stream_ids.tolist() == [[[7], [7]]]
    assert list(seen) == ["hidden", "position_ids", "mask", "key_cache_1", "value_cache_1"]
    assert seen["hidden"].shape == ((1, 3, 1, 1) if channels_first else (1, 3))
    assert seen["hidden"].ravel().tolist() == [6, 7, 8]
    assert seen["position_ids"].tolist() == [1]
    no = np.float16(NO_ENTRY)
    by_row = seen["mask"][0, :, 0].T if channels_first else seen["mask"]
    assert by_row.tolist() == [[0, 0, no, no, no, no, 0, no], [0, 0, no, no, no, no, 0, 0]]
    with pytest.raises(BackendError, match="no survivor 3 with a hidden state"):  # a padding row
        backend.streams(3, 0)


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_caches_of_a_layer_with_a_window_are_ring_buffers(channels_first: bool) -> None:
    """Layer 0 has a window of 2 and caches of 4 positions, layer 1 has the whole context."""
    seen: list[dict[str, Any]] = []

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.append({name: value.copy() for name, value in inputs.items()})
        rows = 1 + 3 * len(seen) - np.arange(3, 0, -1.0)  # the positions of all rows so far, and one
        new = rows.reshape((1, 1, 1, 3) if channels_first else (3, 1, 1))
        return {f"new_{kind}_{layer}": new for layer in range(2) for kind in ("key", "value")}

    layout = CacheLayout(0, (1, 1), 1, channels_first, window=2, positions=(4, 12))
    backend = CoreMLBackend(predict, ModelSpec(12, 5, 0, 0, prefill_rows=3), layout)
    for _ in range(3):
        _chain(backend, "prefill", [1, 2, 3])
        backend.commit([0, 1, 2])
    assert [inputs["cache_length"].tolist() for inputs in seen] == [[0], [3], [6]]
    assert seen[2]["key_cache_0"].ravel().tolist() == [5, 6, 3, 4]
    assert seen[2]["value_cache_1"].ravel().tolist() == [1, 2, 3, 4, 5, 6, *[0] * 6]
    assert [backend.truncatable(length) for length in (9, 8, 7, 6)] == [9, 8, 7, 0]
    with pytest.raises(BackendError, match="sliding window or convolution of 2 positions have only those from 5 on"):
        backend.truncate(6)
    backend.truncate(0)
    assert backend.length == 0


@pytest.mark.parametrize("channels_first", [False, True], ids=["plain", "channels_first"])
def test_caches_of_layers_may_differ_in_their_heads(channels_first: bool) -> None:
    seen: list[dict[str, Any]] = []

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.append({name: value.copy() for name, value in inputs.items()})
        shapes = [(1, 2 * heads, 1, 3) if channels_first else (3, heads, 2) for heads in (1, 3)]
        new = {layer: np.full(shape, 1.0 + layer) for layer, shape in enumerate(shapes)}
        return {f"new_{kind}_{layer}": new[layer] for kind in ("key", "value") for layer in new}

    backend = CoreMLBackend(predict, ModelSpec(6, 5, 0, 0, prefill_rows=3), CacheLayout(0, (1, 3), 2, channels_first))
    for _ in range(2):
        _chain(backend, "prefill", [1, 2, 3])
        backend.commit([0, 1, 2])
    shapes = [(1, 2, 1, 6), (1, 6, 1, 6)] if channels_first else [(6, 1, 2), (6, 3, 2)]
    assert [seen[1][f"value_cache_{layer}"].shape for layer in range(2)] == shapes
    assert [float(seen[1][f"key_cache_{layer}"].sum()) for layer in range(2)] == [3 * 2 * 1.0, 3 * 6 * 2.0]


def test_logits_in_chunks_are_joined() -> None:
    chunks = {
        f"logits_{i}": np.arange(2 * n, dtype=np.float16).reshape(1, n, 1, 2) + 100 * i for i, n in ((0, 3), (1, 2))
    }
    new = {"new_key_0": np.zeros((1, 1, 1, 2)), "new_value_0": np.zeros((1, 1, 1, 2))}

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {**chunks, "best": np.zeros(2, np.int32), **new}

    spec = ModelSpec(4, 5, 0, 0, prefill_rows=2, widths={"verify_2": (2, 2)})
    backend = CoreMLBackend(predict, spec, CacheLayout(0, (1,), 1, channels_first=True))
    found = backend.run("verify_2", np.array([1, 2]), np.arange(2), np.tri(2, dtype=np.bool_), want_logits=True)
    assert found.logits is not None
    assert found.logits.tolist() == [[0, 2, 4, 100, 102], [1, 3, 5, 101, 103]]


def test_what_does_not_fit_is_said() -> None:
    backend = _backend(False)
    with pytest.raises(BackendError, match="verify_4 takes from 1 to 4 rows, not 5"):
        _chain(backend, "verify_4", [1, 2, 3, 4, 5])
    with pytest.raises(BackendError, match="cannot truncate a cache of 0 rows to 1"):
        backend.truncate(1)
    for _ in range(3):
        _chain(backend, "prefill", [1] * 8)
        backend.commit(range(8))
    _chain(backend, "decode", [1])
    with pytest.raises(BackendError, match="25 rows do not fit into the cache of 24"):
        backend.commit([0])
    with pytest.raises(BackendError, match="no output 'new_key_0'"):
        CoreMLBackend(lambda method, inputs: {}, SPEC, _layout(False)).run(
            "decode", np.array([1]), np.array([0]), np.ones((1, 1), np.bool_)
        )


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("num_layers", None, "no metadata key"),
        ("num_layers", "two", "integer from 1 to 65536, is two"),
        ("num_layers", "0", "integer from 1 to 65536, is 0"),
        ("num_msa_layers", "3", "integer from 0 to 2, is 3"),
        ("kv_heads", "2", "list of 2 integers, is 2"),
        ("kv_heads", "[1]", "list of 2 integers"),
        ("kv_heads", "[1, -1]", "integers from 1 to 65536, is .1, -1"),
        ("head_dim", "9000000000", "integer from 1 to 65536"),
        ("layout", "round", "one of plain, ane, is round"),
        ("dtype", "float8", "one of float16, float32, is float8"),
        ("compute_units", "gpu", "one of all, cpu_and_ne, cpu_and_gpu, cpu_only, is gpu"),
        ("sliding_window", "x", "integer from 1 to .*, is x"),
        ("sliding_window", "0", "integer from 1 to .*, is 0"),
        ("cache_positions", None, "no metadata key"),
        ("cache_positions", "[", "list of 2 integers"),
        ("cache_positions", "[8]", "list of 2 integers"),
        ("cache_positions", "[8, true]", "list of 2 integers"),
        ("cache_positions", "[8, 2]", "between that and the window of 2, is .8, 2"),
        ("cache_positions", "[8, 9999]", "between that and the window of 2, is .8, 9999"),
    ],
)
def test_a_package_with_damaged_metadata_is_refused(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str | None, named: str
) -> None:
    facts = {"num_layers": "2", "num_msa_layers": "0", "kv_heads": "[1, 1]", "head_dim": "8", "dtype": "float32",
             "layout": "plain", "compute_units": "all", "sliding_window": "2", "cache_positions": "[8, 3]",
             key: value}  # fmt: skip

    class Package:
        def __init__(self, path: str) -> None:
            self.user_metadata = {f"streamfuse.{name}": found for name, found in facts.items() if found is not None}

    monkeypatch.setattr("streamfuse.runtime.backends.coreml.CoreMLEmulator", Package)
    with pytest.raises(
        BackendError, match=rf"^model\.mlpackage .*streamfuse\.{key}.*{named}|{named} 'streamfuse\.{key}'"
    ):
        open_package("model.mlpackage", SPEC)
