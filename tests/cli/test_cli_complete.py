"""What the shell offers: values of flags, adapters, recipes, data sets and bundles; and that they are those that work.

Run: python -m pytest tests/cli/test_cli_complete.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from bundle_samples import write_bundle

from streamfuse.adapters import shipped
from streamfuse.cli import app
from streamfuse.cli.shared import complete
from streamfuse.export.capabilities import BACKENDS
from streamfuse.runtime.backends.onnx_providers import PROVIDERS
from streamfuse.train.config import Mode, Task
from streamfuse.train.dtype import NAMES as DTYPES
from streamfuse.train.formats import NAMES as FORMATS
from streamfuse.train.public import SOURCES
from streamfuse.train.recipe import names
from streamfuse.train.templates import TEMPLATES


def offered(line: str, folder: Path) -> list[str]:
    """What bash gets for a line whose last word is being written."""
    words = line.split(" ")
    settings = {"_STREAMFUSE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    main = "import sys; sys.argv[0] = 'streamfuse'; from streamfuse.__main__ import main; main()"
    command, environment = [sys.executable, "-c", main], {**os.environ, **settings}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("streamfuse export --target ", ["executorch", "coreml", "onnx"]),
        ("streamfuse bench tasks demo --systems plain,sp", ["plain,speculative"]),
        ("streamfuse run ", ["demo", "build/e2e"]),
    ],
)
def test_the_shell_offers_values(line: str, found: list[str], tmp_path: Path) -> None:
    write_bundle(tmp_path / "demo")
    (tmp_path / "build").mkdir()
    write_bundle(tmp_path / "build" / "e2e")
    (tmp_path / "empty").mkdir()
    assert offered(line, tmp_path) == found


def test_files_are_offered_beside_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.safetensors").touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "mine.toml").touch()
    assert complete.export_adapters("") == ["auto", "none", *complete.adapters("")]
    assert complete.adapters("chat") == ["chat-lossless", "chat-small", "chats.safetensors"]
    assert complete.recipes("more/") == ["more/mine.toml"]
    (tmp_path / "build").mkdir()
    write_bundle(tmp_path / "build" / "demo")
    assert complete.bundles("build/") == ["build/demo"]
    assert complete.data_sets("d") == ["dialogsum"]
    assert complete.adapters("nowhere/") == complete.bundles("nowhere/") == []
    assert complete.adapters("") == [*shipped(), "chats.safetensors"]
    assert complete.recipes("") == names()
    assert complete.data_sets("") == list(SOURCES)


def values(command: str, flag: str) -> list[str]:
    """What is offered for a flag with nothing written yet."""
    root: Any = typer.main.get_command(app)
    (option,) = [one for one in root.commands[command].params if flag in one.opts]
    return [item.value for item in option.shell_complete(typer.Context(root.commands[command]), "")]


def test_the_values_are_those_that_the_commands_take() -> None:
    assert values("export", "--target") == list(BACKENDS)
    assert values("export", "--backend") == [name for backends in BACKENDS.values() for name in backends]
    assert values("export", "--layout") == ["plain", "ane"]
    assert values("export", "--compute-units") == ["all", "cpu_and_ne", "cpu_and_gpu", "cpu_only"]
    assert values("export", "--provider") == list(PROVIDERS)
    backends = [choices for backends in BACKENDS.values() for choices in backends.values()]
    assert set(values("export", "--quantize")) == {word for choices in backends for word in choices.quantize}
    assert values("export", "--schedule") == ["fused", "deferred", "both"]
    assert values("train", "--mode") == list(get_args(Mode))
    assert values("train", "--task") == list(get_args(Task))
    assert set(get_args(Task)) == set(TEMPLATES)
    assert values("train", "--dtype") == list(DTYPES)
    assert values("train", "--format") == list(FORMATS)
