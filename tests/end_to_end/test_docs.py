"""The samples of README and docs run: Python against the demo bundle, C against the core, exports as dry runs.

Run: python -m pytest tests/end_to_end/test_docs.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from pages import ROOT, Sample, commands, samples
from typer.testing import CliRunner

from streamfuse.adapters import find
from streamfuse.cli import app

BUNDLE, NATIVE = ROOT / "build" / "demo", ROOT / "build" / "native"
MAX_NEW_TOKENS = 12  # where a sample leaves it to the bundle
SERVED = "http://127.0.0.1:8000/v1"

pytestmark = pytest.mark.skipif(
    not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has made the demo bundle; its answers are short."""
    bundle = tmp_path_factory.mktemp("reader") / "build" / "demo"
    shutil.copytree(BUNDLE, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    manifest["sampling_defaults"]["max_new_tokens"] = MAX_NEW_TOKENS
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return bundle.parents[1]


def whole(language: str) -> list[Sample]:
    return [sample for sample in samples(language) if not sample.fragment]


def environment() -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths}


@contextmanager
def served(reader: Path) -> Iterator[str]:
    """The URL of a server, which the reader has started on a free port instead of the usual one."""
    command = [sys.executable, "-m", "streamfuse", "serve", "build/demo", "--port", "0"]
    with subprocess.Popen(command, cwd=reader, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@pytest.mark.parametrize("sample", whole("python"), ids=lambda sample: sample.name)
def test_python_samples_run_and_print_an_answer(sample: Sample, reader: Path) -> None:
    with served(reader) if SERVED in sample.text else nullcontext(SERVED) as url:
        done = subprocess.run(
            [sys.executable, "-c", sample.text.replace(SERVED, url)],
            cwd=reader, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) >= 5


def test_the_c_sample_of_the_core_prints_what_its_page_says(tmp_path: Path) -> None:
    (sample,) = (one for one in whole("c") if one.page.name == "core.md" and "sf_core_model_open" in one.text)
    (tmp_path / "sample.c").write_text(sample.text, encoding="utf-8")
    compiler = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "core")]
    library = ["-L", str(NATIVE), "-lstreamfuse_core", f"-Wl,-rpath,{NATIVE}"]
    subprocess.run([*compiler, "sample.c", *library, "-o", "sample"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "sample"], capture_output=True, text=True, check=True)
    promised = re.search(r"It prints `([^`]+)`", sample.page.read_text(encoding="utf-8"))
    assert promised is not None
    assert done.stdout.splitlines()[0].split() == promised[1].split()


def exports() -> list[tuple[str, ...]]:
    """Flags of the samples' exports of the default model, each once and without the folder."""
    found = {}
    for command in (command for sample in samples("sh") for command in commands(sample.text)):
        if command[:2] == ["streamfuse", "export"]:
            place = next(command.index(flag) for flag in ("-o", "--output-dir") if flag in command)
            flags = (*command[2:place], *command[place + 2 :])
            if not {"--model", "--config", "--sign-key"} & set(flags) and _ships(flags):
                found[flags] = None
    return list(found)


def _ships(flags: tuple[str, ...]) -> bool:
    """Whether all its adapters do; the others are a reader's own."""
    named = [value for flag, value in pairwise(flags) if flag in ("--adapter", "--task") and value != "none"]
    try:
        return all(find(value.partition("=")[2] or value).is_file() for value in named)
    except FileNotFoundError:
        return False


def test_export_samples_are_plans_that_fit_the_default_model(tmp_path: Path) -> None:
    assert len(exports()) >= 10
    for flags in exports():
        place = ("--output-dir", str(tmp_path / "bundle"))
        result = CliRunner().invoke(app, ["export", *flags, *place, "--dry-run", "--offline", "--json"])
        assert result.exit_code == 0, (flags, result.stderr)
        assert json.loads(result.stdout)["export_cost"]["cpu_seconds"] > 0, flags
    assert list(tmp_path.iterdir()) == []
