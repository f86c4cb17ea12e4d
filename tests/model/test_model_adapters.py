"""Adapter files: what is written is what is read, and a wrong base or a damaged file is one sentence.

Run: python -m pytest tests/model/test_model_adapters.py
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from streamfuse.model.checkpoint import load_stream_fused, read_adapter, save_adapter
from streamfuse.model.config import CheckpointError
from streamfuse.model.streams import StreamFused


@pytest.fixture
def model() -> StreamFused:
    return tiny.fused(tiny.base(), torch.arange(0, tiny.VOCAB_SIZE, 3), eta_rank=2)


def test_an_adapter_comes_back_bit_for_bit(model: StreamFused, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "adapter.safetensors"
    save_adapter(model, path, {"data": "x.jsonl", "steps": "7"})
    again = load_stream_fused(model.base, path)
    assert again.streams_config == model.streams_config
    assert again.extra_state().keys() == model.extra_state().keys()
    assert all(torch.equal(value, again.extra_state()[name]) for name, value in model.extra_state().items())
    metadata = read_adapter(path)[2]
    assert metadata["steps"] == "7"
    assert json.loads(metadata["base"])["num_layers"] == 4
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_link_keeps_pointing_where_it_did(model: StreamFused, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link, target = tmp_path / "latest.safetensors", tmp_path / "runs" / "adapter.safetensors"
    link.symlink_to(target)
    for steps in ("1", "2"):
        save_adapter(model, link, {"steps": steps})
        assert link.is_symlink()
        assert read_adapter(target)[2]["steps"] == steps
    assert [file.name for file in (tmp_path / "runs").iterdir()] == [target.name]


def test_writers_of_one_adapter_take_turns(model: StreamFused, tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: save_adapter(model, path, {"steps": str(number)}), range(12)))
    assert read_adapter(path)[2]["steps"] in map(str, range(12))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_adapter_holds_nothing_of_the_base(model: StreamFused, tmp_path: Path) -> None:
    save_adapter(model, tmp_path / "a.safetensors")
    names = set(read_adapter(tmp_path / "a.safetensors")[1])
    parts = {name.split(".")[0] for name in names}
    assert parts == {"stream_embeddings", "eta", "adapters", "parent", "pruner", "stream_vocab"}
    assert sum(p.numel() for p in model.extra_parameters()) == sum(
        value.numel() for name, value in model.extra_state().items() if name != "stream_vocab"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 6}, "trained on a base with num_layers 4, this one has 6"),
        ({"hidden_size": 64}, "trained on a base with hidden_size 32, this one has 64"),
        ({"vocab_size": 50}, "trained on a base with vocab_size 40, this one has 50"),
    ],
)
def test_another_base_is_refused(model: StreamFused, changes: dict[str, int], words: str, tmp_path: Path) -> None:
    save_adapter(model, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=words):
        load_stream_fused(tiny.base(**changes), tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 64}, "does not fit, but the base model has 4 layers of size 64"),
        ({"vocab_size": 20}, "'stream_vocab' is not a list of ascending token ids"),
        ({"num_hidden_layers": 1}, "has 2 layers with streams, but the base model has 1 layers"),
    ],
)
def test_another_base_is_refused_where_the_file_does_not_name_its_own(
    model: StreamFused, changes: dict[str, int], words: str, tmp_path: Path
) -> None:
    metadata = {"format": "streamfuse-adapter-1", "streams": model.streams_config.to_json()}
    save_file(model.extra_state(), tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match=words):
        load_stream_fused(tiny.base(**changes), tmp_path / "a.safetensors")


def test_missing_damaged_and_foreign_files_are_named(model: StreamFused, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match=r"a.safetensors: no such adapter file"):
        read_adapter(path)
    save_adapter(model, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"a.safetensors: damaged adapter file"):
        read_adapter(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not an adapter; `streamfuse train`"):
        read_adapter(path)


@pytest.mark.parametrize("streams", ['{"num_streams": 99}', '{"from_the_future": 1}', "[1]", "not json"])
def test_settings_that_cannot_be_read_are_refused(streams: str, model: StreamFused, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(model.extra_state(), path, metadata={"format": "streamfuse-adapter-1", "streams": streams})
    with pytest.raises(CheckpointError, match="metadata field 'streams' cannot be read"):
        read_adapter(path)


def test_a_lost_tensor_is_named(model: StreamFused, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    state = model.extra_state()
    del state["parent.gate"]
    metadata = {"format": "streamfuse-adapter-1", "streams": model.streams_config.to_json()}
    save_file(state, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"tensor 'parent.gate' does not fit"):
        load_stream_fused(model.base, path)


@torch.no_grad()
def test_a_tuned_base_runs_with_merged_weights_and_trains_with_adapters_apart(tmp_path: Path) -> None:
    model = tiny.fused(tiny.base(), base_rank=2, base_layers=3, adapter_rank=2)
    path = tmp_path / "a.safetensors"
    save_adapter(model, path)
    apart, merged = load_stream_fused(model.base, path, merge=False), load_stream_fused(model.base, path)
    assert apart.streams_config == model.streams_config
    assert not any(name.startswith("base_adapters.") for name in merged.extra_state())
    ids, at = torch.randint(1, tiny.VOCAB_SIZE, (1, 7)), torch.tensor([[3, 6]])
    one = apart.stream_states(apart.frozen_states(ids), at)
    two = merged.stream_states(merged.frozen_states(ids), at)
    torch.testing.assert_close(one.streams, two.streams, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(one.main, two.main, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(merged.base(ids), model.base(ids), atol=1e-2)


def test_base_adapters_without_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="base_rank and base_layers go together"):
        tiny.fused(tiny.base(), base_rank=2)
    with pytest.raises(ValueError, match="--base-layers is 5, the base model has 4 layers"):
        tiny.fused(tiny.base(), base_rank=2, base_layers=5)
