"""Whole runs on a tiny model: what they write, that a killed one resumes with the same losses, and what they refuse.

Run: python -m pytest tests/train/test_train_run.py
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from streamfuse.model.checkpoint import adapter_digest, load_base, load_stream_fused, read_adapter, save_adapter
from streamfuse.model.config import CheckpointError, StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.train.config import DistillConfig
from streamfuse.train.data import without_prompts_of
from streamfuse.train.distill import load_writer
from streamfuse.train.formats import DataError, Example
from streamfuse.train.readers import to_examples

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")
pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'streamfuse[train]'")

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState

from streamfuse.train import dtype, main, report
from streamfuse.train.main import TrainConfig, TrainResult, run
from streamfuse.train.templates import CHATML
from streamfuse.train.trainer import LengthGrouped, SetsEpoch, StreamTrainer

STEPS_PER_EPOCH = 5  # 20 examples in batches of 4


class Losses(TrainerCallback):
    """The loss of each step; raises after `kill_at` steps, as a kill would end the run."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.of_step: dict[int, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.of_step[state.global_step] = logs["loss"]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.kill_at:
            raise KeyboardInterrupt


class AskToStop(TrainerCallback):
    """Asks for a stop in the first step, as Ctrl-C would."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stop.set()


def prepared(folder: Path) -> TrainConfig:
    """A run in `folder`, with a model and examples there."""
    tiny.write_base(folder / "base", tiny.base())
    generator = torch.Generator().manual_seed(3)
    rows = []
    for i in range(26):
        ids = torch.randint(1, tiny.VOCAB_SIZE, (12 + i % 5,), generator=generator).tolist()
        rows.append({"id": i, "input_ids": ids[:4], "completion_ids": ids[4:]})
    (folder / "base" / "tokenizer.json").write_text('{"model": {}}')  # the command line asks for a whole folder
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return config_in(folder)


def config_in(folder: Path) -> TrainConfig:
    return TrainConfig(
        model=folder / "base",
        data=(str(folder / "data.jsonl"),),
        out_dir=folder / "run",
        adapter=folder / "run" / "adapter.safetensors",
        streams=StreamConfig(num_streams=2, num_msa_layers=2, adapter_rank=2, parent_rank=4, stream_vocab_size=30),
        epochs=3,
        batch_size=4,
        held_out=6,
        log_every=1,
        evaluate_every=4,
    )


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch, finished: Finished) -> None:
    """Half of the time of such a run; `finished` is plotted before."""
    monkeypatch.setattr(report, "plot_metrics", lambda *_: None)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return prepared(tmp_path)


@pytest.fixture(scope="module")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has finished its only epoch."""
    folder = tmp_path_factory.mktemp("epoch")
    torch.manual_seed(4)
    run(replace(prepared(folder), epochs=1.0))
    return folder


@pytest.fixture
def trained_once(epoch: Path, tmp_path: Path) -> TrainConfig:
    """The settings of that run for three epochs, in a copy of its folder."""
    shutil.copytree(epoch, tmp_path / "once")
    return config_in(tmp_path / "once")


def shared(config: TrainConfig, **changes: Any) -> TrainConfig:
    streams = replace(config.streams, adapter_rank=0, base_rank=2, base_layers=3)
    return replace(config, mode="shared", streams=streams, **changes)


def base_only(config: TrainConfig) -> TrainConfig:
    return replace(config, mode="base", streams=StreamConfig.without(base_rank=2, base_layers=3), epochs=1.0)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_end_token_of_a_base_adapter_goes_along(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a converted LoRA: answers end with it, in training and in distillation."""
    folder, ends = config.out_dir.parent, list[int | None]()
    run(replace(base_only(config), max_steps=1))
    tuned = folder / "lora.safetensors"
    own = load_stream_fused(load_base(config.model), config.adapter, merge=False)
    save_adapter(own, tuned, {"eos_token_id": "5"})
    assert load_writer(config.model, tuned, DistillConfig(dtype="float32")).config.eos_token_id == 5

    def recorded(samples: Any, text: Any, eos_token_id: int | None, *rest: Any) -> list[Example]:
        ends.append(eos_token_id)
        return to_examples(samples, text, eos_token_id, *rest)

    monkeypatch.setattr(main, "to_examples", recorded)
    streams = replace(config, base_adapter=tuned, out_dir=folder / "streams", adapter=folder / "own.safetensors")
    run(replace(streams, max_steps=1))
    assert (read_adapter(streams.adapter)[2]["eos_token_id"], set(ends)) == ("5", {5})


def trained(config: TrainConfig, **kwargs: Any) -> tuple[TrainResult, dict[int, float]]:
    losses = Losses()
    return run(config, callbacks=[losses], **kwargs), losses.of_step


@dataclass(frozen=True)
class Finished:
    """A run of three epochs: the base's weights before it, what it returned, and its losses by step."""

    config: TrainConfig
    before: dict[str, torch.Tensor]
    result: TrainResult
    losses: dict[int, float]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """For tests that only read it."""
    torch.manual_seed(5)
    config = prepared(tmp_path_factory.mktemp("finished"))
    before = {name: value.clone() for name, value in load_base(config.model).state_dict().items()}
    return Finished(config, before, *trained(config))


def test_a_run_writes_adapter_metrics_and_checkpoints(finished: Finished) -> None:
    config, before, result, losses = finished.config, finished.before, finished.result, finished.losses
    assert (result.step, result.max_steps, result.finished) == (15, 15, True)
    assert sorted(losses) == list(range(1, 16))
    _, state, facts = read_adapter(config.adapter)
    assert facts["steps"] == "15"
    assert facts["data"] == "data.jsonl"
    assert json.loads(facts["held_out"]) == result.metrics
    model = load_stream_fused(load_base(config.model), config.adapter)
    assert all(torch.equal(value, before[name]) for name, value in model.base.state_dict().items())
    assert len(state["stream_vocab"]) == 30
    rows = metrics_of(config.out_dir)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 16))
    assert [row["step"] for row in rows if "eval_call_reduction_ratio" in row] == [4, 8, 12, 15]
    assert {"accuracy_stream_1", "accuracy_given_parent_stream_2", "trained_tokens_per_second"} <= rows[0].keys()
    assert {"checkpoint-12", "checkpoint-15"} == {path.name for path in config.out_dir.glob("checkpoint-*")}
    assert {"eval_call_reduction_ratio_64_nodes", "eval_acceptance_depth_1_rank_1"} <= rows[-2].keys() | rows[-1].keys()
    assert (config.out_dir / "metrics.png").stat().st_size > 10_000
    checkpoint = config.out_dir / "checkpoint-15" / "model.safetensors"
    assert checkpoint.stat().st_size < 200_000


@pytest.mark.parametrize("left", ['{"global_step": 15, "log_h', pytest.param(None, marks=pytest.mark.full)])
def test_a_checkpoint_that_a_killed_run_wrote_half_is_not_taken(
    left: str | None, finished: Finished, tmp_path: Path
) -> None:
    shutil.copytree(finished.config.out_dir.parent, tmp_path / "half")
    config = config_in(tmp_path / "half")
    _, whole, _ = read_adapter(config.adapter)
    state = config.out_dir / "checkpoint-15" / "trainer_state.json"
    state.unlink() if left is None else state.write_text(left)
    result, losses = trained(config)
    assert (result.step, sorted(losses)) == (15, [13, 14, 15])
    _, again, _ = read_adapter(config.adapter)
    assert all(torch.equal(value, whole[name]) for name, value in again.items())


# In the second and in the third epoch, beyond a checkpoint.
@pytest.mark.parametrize(
    ("kill_at", "mode"),
    [
        (13, "lossless"),
        (6, "shared"),
        (6, "anchors"),
        (6, "muon"),
        pytest.param(6, "lossless", marks=pytest.mark.full),
        pytest.param(13, "shared", marks=pytest.mark.full),
    ],
)
def test_a_killed_run_resumes_with_the_same_losses(kill_at: int, mode: str, finished: Finished, tmp_path: Path) -> None:
    config, whole, expected = finished.config, finished.result, finished.losses
    epochs = float(kill_at // STEPS_PER_EPOCH + 1)
    if mode == "shared":
        config = prepared(tmp_path)
        streams = replace(config.streams, base_rank=2, base_layers=3)
        config = replace(config, mode=mode, streams=streams, epochs=epochs)
        whole, expected = trained(config)
    elif mode == "anchors":
        config = replace(prepared(tmp_path), anchors=0.5, next_token_dropout=0.5, epochs=epochs)
        whole, expected = trained(config)
    elif mode == "muon":
        config = replace(prepared(tmp_path), optimizer=mode, epochs=epochs)
        whole, expected = trained(config)
    other = replace(config, out_dir=tmp_path / "again", adapter=tmp_path / "again" / "adapter.safetensors")
    killed = Losses(kill_at)
    with pytest.raises(KeyboardInterrupt):
        run(other, callbacks=[killed])
    result, found = trained(other)
    assert min(found) == kill_at // 4 * 4 + 1
    assert {**killed.of_step, **found} == expected
    assert result.metrics == whole.metrics
    assert [row["step"] for row in metrics_of(other.out_dir)] == [row["step"] for row in metrics_of(config.out_dir)]
    one, two = read_adapter(config.adapter)[1], read_adapter(other.adapter)[1]
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_resumed_run_takes_the_intervals_that_it_is_given(trained_once: TrainConfig) -> None:
    trained(replace(trained_once, log_every=2, evaluate_every=6))
    rows = [row for row in metrics_of(trained_once.out_dir) if row["step"] > STEPS_PER_EPOCH]
    assert [row["step"] for row in rows if "loss" in row] == [6, 8, 10, 12, 14]
    assert [row["step"] for row in rows if "eval_call_reduction_ratio" in row] == [6, 12, 15]
    assert {"checkpoint-12", "checkpoint-15"} == {path.name for path in trained_once.out_dir.glob("checkpoint-*")}


def test_a_run_that_is_asked_to_stop_leaves_a_checkpoint_and_goes_on(config: TrainConfig) -> None:
    config = replace(config, epochs=1.0)
    stop = threading.Event()
    result = run(config, stop=stop, callbacks=[AskToStop(stop)])
    assert (result.step, result.finished, result.metrics) == (1, False, {})
    assert (config.out_dir / "checkpoint-1").is_dir()
    result, losses = trained(config)
    assert result.finished
    assert min(losses) == 2


def test_a_run_stops_if_any_process_is_asked_to() -> None:
    """One process that stopped alone would leave the others waiting for its gradients."""
    control, votes = TrainerControl(), list[bool]()

    def any_of(value: bool) -> bool:
        votes.append(value)
        return True

    report.StopAfterStep(threading.Event(), any_of).on_step_end(None, TrainerState(), control)
    assert (votes, control.should_training_stop, control.should_save) == ([False], True, True)


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_diverged_run_says_so_and_keeps_what_was_written_before(log_every: int, config: TrainConfig) -> None:
    config = replace(config, learning_rate=1e30, log_every=log_every, evaluate_every=1)
    with pytest.raises(
        DataError, match=r"step \d+: the .* is (nan|-?inf), so the run has diverged; .* --learning-rate"
    ):
        run(config)
    _, weights, facts = read_adapter(config.adapter)
    assert all(bool(value.float().isfinite().all()) for value in weights.values())
    last = report.checkpoints(config.out_dir)[-1]
    assert last.name == f"checkpoint-{facts['steps']}"
    assert all(bool(value.float().isfinite().all()) for value in load_file(last / "model.safetensors").values())
    assert all(row.get("loss") is None or math.isfinite(row["loss"]) for row in metrics_of(config.out_dir))


def test_the_last_checkpoint_is_not_of_a_diverged_run(config: TrainConfig) -> None:
    with pytest.raises(DataError, match="step 15: the mean of trained weights is nan, so the run has diverged"):
        run(replace(config, learning_rate=1e30, log_every=100, evaluate_every=100))
    assert report.checkpoints(config.out_dir) == []
    assert not config.adapter.exists()


def test_frozen_states_of_other_data_are_deleted(config: TrainConfig) -> None:
    once = replace(config, max_steps=1)
    run(once)
    (first,) = config.out_dir.glob("frozen-*.npy")
    unfinished = first.with_name("frozen-1-2.tmp.npy")
    unfinished.touch()
    run(replace(once, max_tokens=14), resume=False)
    (second,) = config.out_dir.glob("frozen-*.npy")
    assert second != first


def test_examples_beyond_the_models_context_are_refused(config: TrainConfig) -> None:
    rows = Path(config.data[0]).read_text()
    Path(config.data[0]).write_text(rows + json.dumps({"input_ids": [1], "completion_ids": [2] * 150}) + "\n")
    words = "an example has 151 tokens, more than the model's context of 128; lower max_tokens"
    with pytest.raises(ValueError, match=words):
        run(replace(config, max_steps=1))
    run(replace(config, max_steps=1, max_tokens=128))


def test_a_finished_run_is_measured_and_not_trained_again(config: TrainConfig) -> None:
    config = replace(config, epochs=1.0)
    first, _ = trained(config)
    again, losses = trained(config)
    assert again == first
    assert losses == {}


def test_a_finished_run_does_not_compute_frozen_states_that_were_deleted(config: TrainConfig) -> None:
    config, stop = replace(config, epochs=1.0), threading.Event()
    first, _ = trained(config)
    (states,) = config.out_dir.glob("frozen-*")
    states.unlink()
    stop.set()
    assert run(config, stop=stop) == first
    assert list(config.out_dir.glob("frozen-*")) == []


@pytest.mark.parametrize("length", [{"epochs": 1.5}, {"max_steps": 3}])
def test_a_finished_run_writes_a_missing_adapter_and_does_not_train(
    config: TrainConfig, length: dict[str, Any]
) -> None:
    config = replace(config, **length)
    first, _ = trained(config)
    digest = adapter_digest(config.adapter)
    config.adapter.unlink()
    again, losses = trained(config)
    assert (again, losses) == (first, {})
    assert json.loads(read_adapter(config.adapter)[2]["held_out"]) == first.metrics
    assert adapter_digest(config.adapter) == digest


def test_a_stop_during_the_frozen_layers_ends_the_run_and_it_goes_on(config: TrainConfig) -> None:
    config, stop = replace(config, epochs=1.0), threading.Event()
    stop.set()
    result = run(config, stop=stop)
    assert (result.step, result.max_steps, result.finished) == (0, STEPS_PER_EPOCH, False)
    assert [path.suffixes for path in config.out_dir.glob("frozen-*")] == [[".tmp", ".npy"]]
    result, losses = trained(config)
    assert (result.finished, len(losses)) == (True, STEPS_PER_EPOCH)


def test_no_resume_starts_over(config: TrainConfig) -> None:
    config = replace(config, epochs=1.0)
    _, first = trained(config)
    kept = config.out_dir / "checkpoint-best" / "model.safetensors"
    kept.parent.mkdir()
    kept.touch()
    os.utime(kept.parent, (1, 1))  # the oldest by far
    _, second = trained(config, resume=False)
    assert second == first
    assert kept.is_file(), "not one of the run's"
    assert {path.name for path in config.out_dir.glob("checkpoint-*")} == {
        "checkpoint-4",
        "checkpoint-5",
        "checkpoint-best",
    }
    assert len([row for row in metrics_of(config.out_dir) if "loss" in row]) == STEPS_PER_EPOCH == len(first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 5e-4}, "the run in it has learning_rate 0.001, not 0.0005, so it cannot be resumed; add"),
        ({"streams": StreamConfig(num_streams=2, num_msa_layers=2, stream_vocab_size=30)}, "has streams {'adapter_r"),
        ({"max_tokens": 14}, "has max_tokens 320, not 14"),
    ],
)
def test_other_settings_are_not_mixed_into_a_run(
    trained_once: TrainConfig, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        run(replace(trained_once, **changes))


def test_a_run_goes_on_in_other_processes_with_the_same_global_batch_alone(
    trained_once: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, once = trained_once.out_dir / "config.json", replace(trained_once, epochs=1.0)
    before = settings.read_bytes()
    with pytest.raises(ValueError, match=r"has 4 examples per step \(--batch-size times processes\), not 8, so it"):
        run(replace(once, batch_size=8))
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    for config in (once, trained_once):
        with pytest.raises(ValueError, match=r"has 4 examples per step \(--batch-size times processes\), not 8, so it"):
            run(config)
    assert settings.read_bytes() == before
    result = run(replace(once, batch_size=2))
    assert (result.step, result.max_steps) == (STEPS_PER_EPOCH, STEPS_PER_EPOCH)


def test_a_process_without_a_launcher_trains_on_one_gpu(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    result, _ = trained(replace(config, epochs=1.0))
    settings = json.loads((config.out_dir / "config.json").read_text())
    assert (result.max_steps, settings["global_batch_size"]) == (STEPS_PER_EPOCH, 4)


def test_other_data_is_not_mixed_into_a_run(trained_once: TrainConfig) -> None:
    with Path(trained_once.data[0]).open("a") as file:
        file.write(json.dumps({"input_ids": [1], "completion_ids": [2, 3, 4, 5]}) + "\n")
    with pytest.raises(ValueError, match="the run in it has another set of examples, so"):
        run(trained_once)


def test_another_model_of_the_same_shape_is_not_mixed_into_a_run(trained_once: TrainConfig) -> None:
    tiny.write_base(trained_once.model, tiny.base())
    with pytest.raises(ValueError, match="the run in it has another base model, so it cannot be resumed; add --no-res"):
        run(trained_once)


def test_a_run_that_does_not_record_its_base_model_is_not_resumed(trained_once: TrainConfig) -> None:
    path = trained_once.out_dir / "config.json"
    settings = json.loads(path.read_text())
    del settings["model_digest"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="in it does not record its base model, so it cannot be resumed; add --no-"):
        run(trained_once)


@pytest.mark.parametrize("name", ["base_adapter", "init_adapter"])
def test_another_adapter_to_begin_with_is_not_mixed_into_a_run(
    name: str, trained_once: TrainConfig, tmp_path: Path
) -> None:
    begin = tmp_path / "begin.safetensors"
    shutil.copy(trained_once.adapter, begin)
    further = replace(trained_once, out_dir=tmp_path / "b", adapter=tmp_path / "b.safetensors", **{name: begin})
    if name == "base_adapter":
        with pytest.raises(CheckpointError, match="it does not tune the base"):
            run(further)
        save_adapter(tiny.fused(load_base(trained_once.model), base_rank=2, base_layers=2), begin, {"steps": "1"})
    run(replace(further, max_steps=1))
    _, state, facts = read_adapter(begin)
    save_file({key: value * 2 if value.is_floating_point() else value for key, value in state.items()}, begin, facts)
    with pytest.raises(ValueError, match=f"the run in it has another --{name.replace('_', '-')}, so it cannot be resu"):
        run(replace(further, max_steps=2))


def test_checkpoints_without_the_settings_of_a_run_are_neither_resumed_nor_deleted(trained_once: TrainConfig) -> None:
    settings, other = trained_once.out_dir / "config.json", trained_once.out_dir / "checkpoint-1000"
    settings.unlink()
    shutil.copytree(trained_once.model, other)  # a loop of one's own keeps its models so, without a trainer_state.json
    before = sorted(trained_once.out_dir.rglob("*"))
    for model, resume in ((other, True), (other, False), (trained_once.model, False)):
        with pytest.raises(ValueError, match=r"run/config.json: missing, so the checkpoints beside it .* give another"):
            run(replace(trained_once, model=model), resume)
    settings.write_text("{}")
    with pytest.raises(ValueError, match=r"run/config.json: not written by a training run, .* another --output-dir"):
        run(trained_once, resume=False)
    settings.unlink()
    assert sorted(trained_once.out_dir.rglob("*")) == before


def test_no_resume_starts_over_where_the_settings_are_damaged(trained_once: TrainConfig) -> None:
    settings, once = trained_once.out_dir / "config.json", replace(trained_once, epochs=1.0)
    settings.write_text("{")
    with pytest.raises(ValueError, match=r"run/config.json: not valid JSON .* add --no-resume to start over, or give"):
        run(once)
    _, losses = trained(once, resume=False)
    assert sorted(losses) == [*range(1, STEPS_PER_EPOCH + 1)]
    assert json.loads(settings.read_text())["epochs"] == 1.0
    (once.model / "config.json").write_text("{")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"base/config.json: not valid JSON .* it is in a model's folder"):
            run(replace(once, out_dir=once.model), resume=False)
        assert (once.model / "config.json").read_text() == "{"
        (once.model / "tokenizer.json").unlink(missing_ok=True)  # such a folder has weights at least


def test_an_adapter_can_be_trained_further(trained_once: TrainConfig, tmp_path: Path) -> None:
    further = replace(
        trained_once, out_dir=tmp_path / "b", adapter=tmp_path / "b.safetensors", init_adapter=trained_once.adapter
    )
    result, _ = trained(replace(further, streams=StreamConfig(num_streams=4), epochs=1.0))
    assert result.finished
    assert read_adapter(further.adapter)[0].num_streams == 2


def test_an_adapter_may_grow_when_it_is_trained_further(trained_once: TrainConfig, tmp_path: Path) -> None:
    further = replace(
        trained_once, out_dir=tmp_path / "b", adapter=tmp_path / "b.safetensors", init_adapter=trained_once.adapter
    )
    run(
        replace(
            further, epochs=1.0, widen={"num_streams": 3, "eta_rank": 3, "adapter_rank": 5, "stream_vocab_size": 34}
        )
    )
    (before, old, _), (after, new, _) = read_adapter(trained_once.adapter), read_adapter(further.adapter)
    assert (after.num_streams, after.eta_rank, after.adapter_rank, after.stream_vocab_size) == (3, 3, 5, 34)
    assert after.adapter_alpha / after.adapter_rank == before.adapter_alpha / before.adapter_rank
    assert set(old["stream_vocab"].tolist()) < set(new["stream_vocab"].tolist())
    assert new["eta.up"].abs().max() > 0
    with pytest.raises(ValueError, match="adapter_rank 2 of an adapter cannot become 1"):
        run(replace(further, widen={"adapter_rank": 1}), resume=False)


def test_the_whole_vocabulary_is_the_largest_of_an_adapter() -> None:
    model = tiny.fused(tiny.base(), stream_vocab_size=0)
    with pytest.raises(ValueError, match="stream_vocab_size all of an adapter cannot become 30"):
        model.widened(torch.arange(30), stream_vocab_size=30)
    some = tiny.fused(tiny.base(), stream_vocab=torch.arange(30), stream_vocab_size=30)
    whole = some.widened(torch.arange(tiny.VOCAB_SIZE), stream_vocab_size=0)
    assert len(whole.stream_vocab) == tiny.VOCAB_SIZE


def test_a_grown_adapter_says_the_same(trained_once: TrainConfig) -> None:
    model = load_stream_fused(load_base(trained_once.model), trained_once.adapter)
    sizes = {"num_streams": 4, "eta_rank": 3, "adapter_rank": 5, "parent_rank": 9, "pruner_rank": 12}
    wide = model.widened(torch.arange(36), **sizes, stream_vocab_size=36)
    assert (wide.parent.left.shape[1], len(wide.pruner.low_rank.down)) == (9, 12)
    frozen, at = model.frozen_states(torch.tensor([[5, 6, 7, 8, 9]])), torch.tensor([[2, 4]])
    found = wide.stream_states(frozen, at).streams[:, :, :2]
    torch.testing.assert_close(found, model.stream_states(frozen, at).streams)
    assert torch.equal(wide.stream_embeddings[3], model.stream_embeddings[1])
    assert torch.equal(wide.parent.gate[3, :4], model.parent.gate[1])
    rows = torch.randn(3, model.base.config.hidden_size)
    torch.testing.assert_close(wide.pruner.early_exit(rows), model.pruner.early_exit(rows))
    terms = [m.parent.left_rows(rows) * m.parent.gate[1] @ m.parent.right_rows(rows).T for m in (wide, model)]
    torch.testing.assert_close(*terms)


def test_the_first_rank_of_an_adapter_has_the_scale_of_a_new_one() -> None:
    model = tiny.fused(tiny.base(), adapter_rank=0)
    wide = model.widened(model.stream_vocab, adapter_rank=3)
    assert wide.streams_config.adapter_alpha == model.streams_config.adapter_alpha


def test_a_resumed_epoch_has_its_own_order() -> None:
    sampler = LengthGrouped([5] * 10, 4, seed=1)
    trainer, state = cast("StreamTrainer", SimpleNamespace(sampler=sampler)), TrainerState(global_step=7)
    SetsEpoch(trainer).on_epoch_begin(cast("TrainingArguments", None), state, TrainerControl())
    assert sampler.epoch == 2  # three steps each


def test_an_adapter_grows_downwards(trained_once: TrainConfig) -> None:
    base = load_base(trained_once.model)
    model = load_stream_fused(base, trained_once.adapter)
    old = model.streams_config.num_msa_layers
    wide = model.widened(model.stream_vocab, num_msa_layers=old + 1)
    names = ("adapters.0.q_proj.up", "adapters.1.q_proj.up")
    lowest, next_lowest = (wide.extra_state()[name] for name in names)
    assert not lowest.any()
    assert torch.equal(next_lowest, model.extra_state()[names[0]])
    with pytest.raises(ValueError, match=f"the base model has {base.config.num_layers} layers"):
        model.widened(model.stream_vocab, num_msa_layers=base.config.num_layers + 1)
    further = replace(
        trained_once,
        init_adapter=trained_once.adapter,
        adapter=trained_once.out_dir / "further.safetensors",
        epochs=1.0,
    )
    run(replace(further, out_dir=trained_once.out_dir / "further", widen={"num_msa_layers": old + 1}))
    assert read_adapter(further.adapter)[0].num_msa_layers == old + 1


def test_shared_mode_tunes_the_base_and_streams_together(config: TrainConfig) -> None:
    config = shared(config, task="e2e", evaluate_every=15)  # an evaluation generates texts
    result, losses = trained(config)
    assert losses[15] < losses[1]
    assert {"main_loss", "main_accuracy", "accuracy_stream_1"} <= metrics_of(config.out_dir)[0].keys()
    streams, state, facts = read_adapter(config.adapter)
    assert (streams.base_rank, facts["mode"], facts["chat_template"]) == (2, "shared", CHATML)
    assert {value.dtype for name, value in state.items() if name.startswith("base_adapters.")} == {torch.float16}
    base = load_base(config.model)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = load_stream_fused(base, config.adapter)
    assert model.streams_config.base_rank == 0
    changed = {name for name, value in model.base.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight") and not name.startswith("layers.0.")}
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())  # a copy was changed
    assert 1 <= result.metrics["eval_call_reduction_ratio"] < 3


def test_streams_can_be_trained_on_a_base_that_was_tuned_without_them(config: TrainConfig, tmp_path: Path) -> None:
    tuned = base_only(config)
    result, _ = trained(tuned)
    assert result.metrics == {}
    assert "accuracy_stream_1" not in metrics_of(tuned.out_dir)[0]
    streams, before, _ = read_adapter(tuned.adapter)
    assert (streams.num_streams, streams.base_rank) == (0, 2), "an export would have streams that nobody trained"
    for mode in ("lossless", "shared"):
        path = tmp_path / mode / "adapter.safetensors"
        further = replace(config, mode=mode, base_adapter=tuned.adapter, out_dir=path.parent, adapter=path, epochs=1.0)
        assert trained(further)[0].finished
        after = read_adapter(path)[1]
        same = all(torch.equal(v, after[n]) for n, v in before.items() if n.startswith("base_adapters."))
        assert same == (mode == "lossless")


def test_the_template_of_the_adapter_that_training_starts_from_is_kept(config: TrainConfig, tmp_path: Path) -> None:
    template = "{% for message in messages %}({{ message.content }}){% endfor %}"
    tuned = base_only(config)
    run(tuned)
    model = load_stream_fused(load_base(config.model), tuned.adapter, merge=False)
    begin = tmp_path / "begin.safetensors"
    save_adapter(model, begin, {"chat_template": template})
    for flag, task, expected in (("base_adapter", "chat", template), ("init_adapter", "sql", CHATML)):
        path = tmp_path / flag / "adapter.safetensors"
        mode = "base" if flag == "init_adapter" else "lossless"
        settings: dict[str, Any] = {"task": task, "mode": mode, flag: begin}
        run(replace(config, out_dir=path.parent, adapter=path, epochs=1.0, **settings))
        assert read_adapter(path)[2]["chat_template"] == expected


@pytest.mark.parametrize(
    ("mode", "facts", "words"),
    [
        ("shared", {}, "does not tune the base, which --mode shared trains"),
        ("base", {}, "does not tune the base, which --mode base trains"),
        ("lossless", {"num_streams": 0, "num_msa_layers": 0}, "has no streams, which --mode lossless trains"),
    ],
)
def test_an_init_adapter_without_what_is_trained_is_refused(
    mode: Any, facts: dict[str, int], words: str, config: TrainConfig, tmp_path: Path
) -> None:
    begin = tmp_path / "begin.safetensors"
    if facts:
        tuned = base_only(config)
        streams = StreamConfig.without(base_rank=2, base_layers=3)
        save_adapter(StreamFused(load_base(tuned.model), streams), begin)
    else:
        save_adapter(tiny.fused(load_base(config.model)), begin)
    with pytest.raises(CheckpointError, match=words):
        run(replace(config, mode=mode, init_adapter=begin))
    assert list(config.out_dir.glob("frozen-*")) == []


def test_prompts_that_are_held_out_are_not_trained_on(config: TrainConfig, tmp_path: Path) -> None:
    rows = Path(config.data[0]).read_text().splitlines()
    (tmp_path / "valid.jsonl").write_text("\n".join(rows[:4]))
    run(replace(config, valid=str(tmp_path / "valid.jsonl"), max_steps=1))
    assert read_adapter(config.adapter)[2]["examples"] == str(len(rows) - 4)
    with pytest.raises(DataError, match=r"no examples are left to train on, because --valid .* has all"):
        run(replace(config, valid=config.data[0], held_out=40), resume=False)


def test_without_different_prompts_only_held_out_examples_are_left_out() -> None:
    one, two, other = (Example([1, 2, last], 2) for last in (5, 6, 5))
    assert without_prompts_of([other], [one, two]) == [two]


def test_a_finished_run_writes_the_template_that_it_is_given_later(config: TrainConfig) -> None:
    config = replace(config, epochs=1.0)
    run(config)
    assert "chat_template" not in read_adapter(config.adapter)[2]
    assert trained(replace(config, task="sql"))[1] == {}
    assert read_adapter(config.adapter)[2]["chat_template"] == CHATML


def test_too_few_examples_and_values_out_of_range_are_refused(config: TrainConfig) -> None:
    with pytest.raises(
        DataError, match=r"data.jsonl: no examples are left to train on: there are 26, and --held-out takes"
    ):
        run(replace(config, held_out=40))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        replace(config, batch_size=0)
    with pytest.raises(ValueError, match="epochs must be above 0"):
        replace(config, epochs=0.0)
    with pytest.raises(ValueError, match="base_rank and base_layers must be positive"):
        replace(config, mode="shared")
    with pytest.raises(ValueError, match="mode must be one of lossless, shared, base"):
        replace(config, mode="tuned")


def test_a_model_without_an_end_token_is_trained_on_its_own_tokens(config: TrainConfig) -> None:
    tiny.write_base(config.model, load_base(config.model), eos_token_id=None)
    assert load_base(config.model).config.eos_token_ids == ()
    assert trained(replace(config, max_steps=1))[0].finished


def test_the_order_of_an_epoch_follows_from_seed_and_epoch() -> None:
    lengths = [5 + i % 7 for i in range(40)]
    orders = []
    for epoch in (0, 1, 2):
        sampler = LengthGrouped(lengths, 4, seed=0)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(40))
        assert list(sampler) == orders[-1]
    assert orders[0] != orders[1] != orders[2]


def test_a_run_of_dtype_auto_goes_on_in_the_dtype_that_it_began_with(
    trained_once: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads((trained_once.out_dir / "config.json").read_text())["dtype"]
    other = torch.float32 if before == "bfloat16" else torch.bfloat16
    monkeypatch.setattr(dtype, "fastest_dtype", lambda device: other)
    assert run(replace(trained_once, dtype="auto")).finished
    assert json.loads((trained_once.out_dir / "config.json").read_text())["dtype"] == before


def test_other_processes_of_a_machine_leave_the_folder_to_the_first_and_raise_its_errors(
    trained_once: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, found = (trained_once.out_dir / "config.json").read_bytes(), DataError("found by the first process")
    monkeypatch.setattr(TrainingArguments, "local_process_index", 1)
    monkeypatch.setattr(main, "checkpoint_digest", lambda folder: pytest.fail("the base is read again"))
    monkeypatch.setattr(main, "gather_object", lambda own: [own[0] or found, *own])
    with pytest.raises(DataError, match="found by the first process"):
        run(trained_once)
    monkeypatch.setattr(main, "gather_object", lambda own: [own[0], *own])
    result, losses = trained(replace(trained_once, epochs=2.0))
    assert (result.finished, min(losses)) == (True, STEPS_PER_EPOCH + 1), "from the checkpoint"
    assert (trained_once.out_dir / "config.json").read_bytes() == settings


def in_two_processes(code: str, folder: Path, *arguments: str) -> None:
    """Run the code by accelerate's launcher; it must end with exit code 0."""
    script = folder / "launched.py"
    script.write_text(code)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--mixed_precision", "no", "--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}  # accelerate has no --multi_cpu
    with (folder / "launched.txt").open("w+") as output:
        running = subprocess.Popen([*launch, script, *arguments], env=environment, stdout=output, stderr=output)
        try:
            running.wait(300)
        finally:
            running.terminate()  # the launcher ends its processes, if they wait for each other
            running.wait(60)
        output.seek(0)
        assert running.returncode == 0, output.read()[-3000:]


STOPPED_IN_ONE = """
import pickle, sys, threading
from pathlib import Path
from transformers import TrainerCallback
from streamfuse.train.main import run

stop = threading.Event()

class AskToStop(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == 1:
            stop.set()

result = run(pickle.loads(Path(sys.argv[1]).read_bytes()), stop=stop, callbacks=[AskToStop()])
assert (result.step, result.finished) == (2, False), result
"""


@pytest.mark.slow
def test_two_processes_stop_together_if_one_is_asked_to(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(pickle.dumps(replace(config, batch_size=2, dtype="float32")))
    in_two_processes(STOPPED_IN_ONE, tmp_path, str(tmp_path / "config"))
    assert [path.name for path in report.checkpoints(config.out_dir)] == ["checkpoint-2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["shared", pytest.param("lossless", marks=pytest.mark.full)]
)  # shared trains both parts
def test_two_processes_give_the_losses_of_one_with_the_same_global_batch(
    mode: str, config: TrainConfig, tmp_path: Path
) -> None:
    if mode == "shared":
        config = shared(config)
    _, expected = trained(replace(config, dtype="float32", epochs=1.0))
    without_flag = ("adapter_alpha", "base_alpha", "heads", "head_size")
    streams = {name: value for name, value in asdict(config.streams).items() if name not in without_flag}
    flags = {"mode": mode, "batch_size": 2, "epochs": 1, "held_out": 6, "log_every": 1, "dtype": "float32", **streams}
    command = ["train", "--data", config.data[0], "--model", str(config.model), "-o", str(tmp_path / "two")]
    command += [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), str(value))]
    no_plots = "from streamfuse.train import report\nreport.plot_metrics = lambda *_: None\n"  # as in the other tests
    in_two_processes(f"{no_plots}from streamfuse.cli import main\nmain()\n", tmp_path, *command)
    rows = metrics_of(tmp_path / "two")
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS_PER_EPOCH + 1))
    for row in rows:
        if "loss" in row:
            assert row["loss"] == pytest.approx(expected[row["step"]], rel=1e-4)
