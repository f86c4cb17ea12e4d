"""Commands that are killed, starved of disk, or raced: nothing half is taken for whole, and the next run goes on.

Run: python -m pytest tests/durable/test_crashes.py [--full]
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")

from bundle_samples import CHAT_TEMPLATE
from export_samples import tiny_model, write_checkpoint
from processes import Command, only_line

from streamfuse.bundle import open_bundle
from streamfuse.model.checkpoint import read_adapter
from streamfuse.model.pull import check_folder

MANY = pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(3600)])
KILLS = pytest.mark.parametrize("kills", [1, MANY])
SMALL: dict[str, Any] = {"num_hidden_layers": 1}  # and one width: sooner exported, in as many steps
EXPORT = ["--max-context-len", 128, "--prefill-len", 8, "--widths", 4, "--prune-keep", 4, "--default-width", 4,
          "--top-k", 5, "--overwrite"]  # fmt: skip
TRAIN = ["--num-streams", 2, "--num-msa-layers", 1, "--adapter-rank", 2, "--parent-rank", 4, "--stream-vocab-size", 30,
         "--batch-size", 4, "--held-out", 4, "--log-every", 1, "--evaluate-every", 3, "--max-steps", 12,
         "--dtype", "float32"]  # fmt: skip
DISTILL = ["--batch-size", 2, "--max-new-tokens", 16, "--max-prompt-tokens", 400, "--dtype", "float32"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model (base, its adapter, and as model.gguf), prompts.jsonl and answers.jsonl."""
    folder = tmp_path_factory.mktemp("samples")
    torch.manual_seed(1)
    base, _ = write_checkpoint(folder / "base", tiny_model({"num_msa_layers": 1}, **SMALL), **SMALL)
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    prompts = [{"prompt": f"Say the number {i}."} for i in range(16)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    draw = np.random.default_rng(3)
    with (folder / "answers.jsonl").open("w") as file:
        for i in range(24):
            ids = draw.integers(4, 250, 12 + i % 5).tolist()
            file.write(json.dumps({"id": i, "input_ids": ids[:4], "completion_ids": ids[4:]}) + "\n")
    return folder


@pytest.fixture(scope="module")
def gguf_file(samples: Path) -> Path:
    from gguf_samples import Source

    torch.manual_seed(1)
    return Source().write(samples / "model.gguf", {"token_embd.weight": gguf.GGMLQuantizationType.Q8_0})


class Kills:
    """Runs a command again and again, each time killed after a part of the seconds that a whole run takes."""

    def __init__(self, folder: Path, count: int, seed: int, *command: object, **environment: str) -> None:
        self.folder, self.command, self.environment = folder, command, environment
        self._count, self._draw = count, np.random.default_rng(seed)

    def run(self) -> Command:
        return Command(self.folder, *self.command, **self.environment)

    def __iter__(self) -> Iterator[bool]:
        """Whether the run had ended by itself."""
        Command(self.folder, "--version").wait()  # the server has loaded its libraries
        started = time.monotonic()
        assert self.run().wait() == 0
        whole = time.monotonic() - started
        yield True
        for _ in range(self._count):
            process = self.run()
            process.process.join(self._draw.uniform(0, whole))
            process.kill()
            yield process.process.exitcode == 0


@KILLS
def test_a_killed_pull_leaves_no_half_model(kills: int, gguf_file: Path, tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    killed = Kills(tmp_path / "out", kills, 1, "pull", gguf_file, "--cache-dir", tmp_path / "cache")
    for _ in killed:
        for made in models.glob("*/source.json"):
            if not made.parent.name.endswith(".partial"):
                check_folder(made.parent)
                shutil.rmtree(made.parent)
    assert killed.run().wait() == 0
    (folder,) = (path for path in models.iterdir() if path.is_dir())
    check_folder(folder)


@KILLS
def test_a_killed_distillation_loses_no_answer_and_writes_none_twice(kills: int, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    killed = Kills(
        tmp_path, kills, 2, "data", "distill", samples / "prompts.jsonl", out, "--model", samples / "base", *DISTILL
    )
    whole: list[str] = []
    for ended in killed:
        if ended and not whole:
            whole = sorted(out.read_text().splitlines())
        if ended:
            out.unlink()
    assert killed.run().wait() == 0, killed.run().stderr
    assert sorted(out.read_text().splitlines()) == whole
    assert len(whole) == 16


@KILLS
def test_a_killed_training_goes_on_and_ends_the_same(kills: int, samples: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", "--data", samples / "answers.jsonl", "--model", samples / "base", "-o", run, *TRAIN]
    killed = Kills(tmp_path, kills, 3, *command)
    whole: dict[str, torch.Tensor] = {}
    for ended in killed:
        if (run / "adapter.safetensors").exists():
            _, state, _ = read_adapter(run / "adapter.safetensors")
            whole = whole or state
        if ended:
            shutil.rmtree(run)
    last = killed.run()
    assert last.wait() == 0, last.stderr
    _, state, facts = read_adapter(run / "adapter.safetensors")
    assert facts["steps"] == "12"
    assert all(torch.equal(value, whole[name]) for name, value in state.items())


@KILLS
def test_a_killed_export_leaves_the_old_bundle_or_the_new_one(kills: int, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundles" / "bundle"
    command = ["export", "-o", out, "--model", samples / "base", "--adapter", samples / "base" / "tiny.safetensors"]
    killed = Kills(tmp_path / "out", kills, 4, *command, *EXPORT)
    for _ in killed:
        open_bundle(out)
    assert killed.run().wait() == 0
    assert [path.name for path in out.parent.iterdir()] == ["bundle"]


def commands(samples: Path, out: Path) -> dict[str, list[object]]:
    adapter = samples / "base" / "tiny.safetensors"
    return {
        "pull": ["pull", samples / "model.gguf", "--cache-dir", out / "cache"],
        "distill": [
            "data",
            "distill",
            samples / "prompts.jsonl",
            out / "out.jsonl",
            "--model",
            samples / "base",
            *DISTILL,
        ],
        "train": ["train", "--data", samples / "answers.jsonl", "--model", samples / "base", "-o", out / "run", *TRAIN],
        "export": ["export", "-o", out / "bundle", "--model", samples / "base", "--adapter", adapter, *EXPORT],
    }


def sound(out: Path) -> None:
    """What is there under a name for whole things is whole."""
    if (out / "bundle").exists():
        open_bundle(out / "bundle")
    if (out / "run" / "adapter.safetensors").exists():
        read_adapter(out / "run" / "adapter.safetensors")
    for made in out.glob("cache/models/*/source.json"):
        assert made.parent.name.endswith(".partial") or check_folder(made.parent) is None


ALL = pytest.mark.parametrize("name", ["pull", "distill", "train", "export"])


@ALL
@pytest.mark.parametrize("most_bytes", [2_000, pytest.param(60_000, marks=pytest.mark.full)])
def test_no_room_for_a_file_is_one_sentence(
    most_bytes: int, name: str, samples: Path, gguf_file: Path, tmp_path: Path
) -> None:
    """As on a full disk, but on every system: no file may grow longer."""
    command = commands(samples, tmp_path)[name]
    if name == "distill" and most_bytes > 2_000:
        pytest.skip("all answers fit")
    line = only_line(Command(tmp_path / "output", *command, most_bytes=most_bytes))
    assert "too large; make room" in line, line
    sound(tmp_path)
    assert Command(tmp_path / "output", *command).wait() == 0
    sound(tmp_path)


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small file system in memory."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# full: the test above tests their sentence with a limit of files, on every system
@pytest.mark.parametrize(
    "name", ["pull", "distill", *(pytest.param(name, marks=pytest.mark.full) for name in ("train", "export"))]
)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_one_sentence(name: str, samples: Path, gguf_file: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=128k") as small:
        (small / "ballast").write_bytes(bytes(124 << 10))
        line = only_line(Command(tmp_path / "output", *commands(samples, small)[name], TMPDIR=str(tmp_path)))
        assert "No space left on device; make room" in line, line
        sound(small)


@ALL
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_read_only_target_is_one_sentence(name: str, samples: Path, gguf_file: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "ro") as fixed:
        line = only_line(Command(tmp_path / "output", *commands(samples, fixed)[name]))
        assert "Read-only file system" in line, line
        assert str(fixed) in line


def test_two_pulls_at_once_make_one_model(gguf_file: Path, tmp_path: Path) -> None:
    command = ["pull", gguf_file, "--cache-dir", tmp_path / "cache"]
    both = [Command(tmp_path / str(number), *command) for number in range(2)]
    assert [each.wait() for each in both] == [0, 0], [each.stderr for each in both]
    assert both[0].stdout == both[1].stdout
    assert sum("Converting" in each.stderr for each in both) == 1
    check_folder(Path(both[0].stdout.strip()))


def test_two_exports_to_one_name_leave_one_bundle(samples: Path, tmp_path: Path) -> None:
    command = commands(samples, tmp_path)["export"]
    both = [Command(tmp_path / "output" / str(number), *command) for number in range(2)]
    assert [each.wait() for each in both] == [0, 0], [each.stderr for each in both]
    open_bundle(tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "output"]


def test_two_runs_share_one_cache_of_plans(chat_bundle: Path, tmp_path: Path) -> None:
    command = ["run", chat_bundle, "hello", "--max-new-tokens", 24]
    home = str(tmp_path / "home")
    both = [Command(tmp_path / "output" / str(number), *command, STREAMFUSE_HOME=home) for number in range(3)]
    assert [each.wait() for each in both] == [0, 0, 0], [each.stderr for each in both]
    assert len({each.stdout for each in both}) == 1
    assert len(list((tmp_path / "home" / "costs").glob("*.costs"))) == 1
    assert Command(tmp_path / "output" / "last", *command, STREAMFUSE_HOME=home).wait() == 0
