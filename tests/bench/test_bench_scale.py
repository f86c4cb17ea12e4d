"""The scale bench: on a tiny shape with real processes, and with processes that only pretend.

Run: python -m pytest tests/bench/test_bench_scale.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from typer.testing import CliRunner

from streamfuse.bench.scale import measure as scale
from streamfuse.bench.scale.measure import CONTEXTS, SIZES, LeftOut, Record, Scale, ScaleSettings, lines_of, rows
from streamfuse.bench.shared.children import ChildError, ChildKilled, Usage, run_module
from streamfuse.bench.shared.machine import available_bytes
from streamfuse.cli import app
from streamfuse.model.random_model import SHAPES

TINY: dict[str, Any] = {
    **tiny.CONFIG,
    "vocab_size": 258,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
METHODS = ("prefill", "decode", "verify_4", "verify_8", "verify_16", "streams")


@pytest.fixture(autouse=True)
def _tiny_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", "tiny")
    monkeypatch.setitem(SHAPES, "tiny", TINY)


class Pretended:
    """Processes that take no time: an export leaves a manifest, a run says plausible figures."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.ran: list[str] = []
        self.fails = fails

    def __call__(self, *words: str, line: Callable[[str], None]) -> Usage:
        self.ran.append("export" if "export" in words else "run")
        if self.fails is not None:
            raise self.fails
        if "export" in words:
            assert (Path(words[words.index("--model") + 1]) / "model.safetensors.index.json").is_file()
            bundle = Path(words[words.index("--output-dir") + 1])
            bundle.mkdir(exist_ok=True)
            (bundle / "manifest.json").write_text("{}")
        else:
            line(json.dumps({"load_ms": 1.0, "resident_bytes": 1000}))
            places = words[words.index("--contexts") + 1 : words.index("--repetitions")]
            for context in map(int, places):
                line(json.dumps(pretended_context(context)))
        return Usage(2.0, 3.0, 4_000_000_000)


def pretended_context(context: int) -> dict[str, Any]:
    return {
        "context": context,
        "methods": {name: {"ms": 4.0 + context / 64} for name in METHODS},
        "weight_bytes": 80_000_000,
        "decode_roofline_fraction": 0.5,
        "verify_8_cost": 2.0,
        "prefill_token_per_sec": 1000.0,
        "resident_bytes": 100_000_000 + 1_000_000 * context,
    }


def bench(work: Path, run: Pretended, notices: list[str] | None = None, **changes: Any) -> Scale:
    settings = ScaleSettings(**{"contexts": (4, 64), "repetitions": 2, **changes.pop("settings", {})})
    return Scale(work, settings, [].append if notices is None else notices.append, run=run, **changes)


@pytest.mark.full
def test_a_tiny_shape_through_the_command_twice(tmp_path: Path) -> None:
    """Exported once, measured twice; gone at the end."""
    flags = ["bench", "scale", "--shapes", "tiny", "--contexts", "70,4", "--repetitions", "2", "--threads", "1"]
    flags += ["--work", str(tmp_path / "work"), "--json"]
    first = CliRunner().invoke(app, [*flags, "--keep"])
    assert first.exit_code == 0, first.stderr
    found = json.loads(first.stdout)
    assert found.keys() == {"shapes", "left_out", "repetitions"}
    one = found["shapes"]["tiny"]
    assert one.keys() == {
        "shape", "parameters", "bundle_bytes", "weight_bytes", "export", "opened", "contexts", "growth",
    }  # fmt: skip
    assert one["export"].keys() == {"seconds", "cpu_seconds", "peak_bytes"}
    assert one["export"]["peak_bytes"] > 100_000_000, "PyTorch was in it"
    assert one["opened"]["threads"] == 1
    assert [context["context"] for context in one["contexts"]] == [4, 70]
    for context in one["contexts"]:
        assert set(context["methods"]) == {*METHODS, "verify_1"}
        assert context["decode_roofline_fraction"] > 0
        assert context["verify_8_cost"] > 0
        assert context["prefill_token_per_sec"] > 0
    assert one["growth"]["contexts"] == [4, 70]
    assert {path.name for path in (tmp_path / "work" / "tiny").iterdir()} == {"bundle", "export.json"}

    second = CliRunner().invoke(app, flags)
    assert second.exit_code == 0, second.stderr
    assert "is used again" in second.stderr
    assert json.loads(second.stdout)["shapes"]["tiny"]["export"] == one["export"]
    assert not (tmp_path / "work").exists()


def test_an_export_that_is_there_is_used_again(tmp_path: Path) -> None:
    run, notices = Pretended(), []
    first = bench(tmp_path, run, notices).measure("tiny")
    assert bench(tmp_path, run, notices).measure("tiny") == first
    assert run.ran == ["export", "run", "run"]
    assert notices[-3:] == [
        f"tiny: the export in {tmp_path / 'tiny'} is used again",
        "tiny: measuring behind 4 tokens",
        "tiny: measuring behind 64 tokens",
    ]


@pytest.mark.parametrize("change", ["longer", "other shape", "other version", "no bundle", "half a record"])
def test_what_does_not_fit_is_exported_again(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pretended()
    bench(tmp_path, run).measure("tiny")
    settings: dict[str, Any] = {}
    if change == "longer":
        settings = {"contexts": (65,)}
    elif change == "other shape":
        monkeypatch.setitem(SHAPES, "tiny", {**TINY, "intermediate_size": 128})
    elif change == "other version":
        monkeypatch.setattr(scale, "__version__", "0.0.0")
    elif change == "no bundle":
        (tmp_path / "tiny" / "bundle" / "manifest.json").unlink()
    else:
        record = tmp_path / "tiny" / "export.json"
        record.write_text(record.read_text()[:100])
    bench(tmp_path, run, settings=settings).measure("tiny")
    assert run.ran == ["export", "run", "export", "run"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ChildError("no")])
def test_an_export_that_ends_early_leaves_nothing_that_looks_whole(failure: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(failure)):
        bench(tmp_path, Pretended(failure)).measure("tiny")
    assert list((tmp_path / "tiny").iterdir()) == []
    run = Pretended()
    bench(tmp_path, run).measure("tiny")
    assert run.ran == ["export", "run"]


def test_a_shape_without_room_is_left_out_with_what_it_needs(tmp_path: Path) -> None:
    run = Pretended()
    with pytest.raises(LeftOut, match=r"^tiny is left out: exporting it needs about 1\.2 GB of memory, of which 0\.9"):
        bench(tmp_path, run, available=lambda: 900_000_000).measure("tiny")
    sentence = f"exporting it needs about 0.0 GB of disk in {tmp_path / 'tiny'}, of which 0.0 GB are free"
    with pytest.raises(LeftOut, match=re.escape(sentence)):
        bench(tmp_path, run, disk=lambda folder: 0).measure("tiny")
    assert run.ran == []
    assert list((tmp_path / "tiny").iterdir()) == []

    bench(tmp_path, run).measure("tiny")
    with pytest.raises(LeftOut, match=r"running it needs about 0\.4 GB of memory, of which 0\.0 GB are free"):
        bench(tmp_path, run, available=lambda: 0).measure("tiny")
    assert run.ran == ["export", "run"]


def test_a_child_that_the_system_ends_leaves_its_shape_out(tmp_path: Path) -> None:
    with pytest.raises(LeftOut, match=r"tiny is left out: its process was ended by SIGKILL"):
        bench(tmp_path, Pretended(ChildKilled("was ended by SIGKILL, as if"))).measure("tiny")


def test_the_largest_shape_needs_more_than_the_others() -> None:
    counts = [scale.count_parameters(scale.shape_of(name)) for name in ("135M", "360M", "1B", "3B")]
    assert [round(count / 1e6) for count in counts] == [135, 362, 1236, 3213]
    for name in ("135M", "360M", "1B", "3B"):
        ScaleSettings(CONTEXTS).check(name, scale.shape_of(name))


def test_the_table_has_a_row_per_context_and_the_lines_say_what_grows(tmp_path: Path) -> None:
    one = bench(tmp_path, Pretended()).measure("tiny")
    columns, table = rows({"tiny": one})
    assert [line[0] for line in table] == ["tiny    4", "tiny   64"]
    assert all(len(line) == len(columns) for line in table)
    assert table[1][columns.index("of its\nroof-\nline")] == "0.50"
    size, grows = lines_of("tiny", one)
    assert size == "tiny: 80 MB of weights per token; exported in 2 s (3 s of one core) with 4.0 GB"
    assert grows.startswith("tiny, 64 tokens over 4: decode 1.23, verify_8 1.23, streams 1.23, prefill 1.23, resident ")
    one["contexts"][0]["resident_bytes"] = None
    assert rows({"tiny": one})[1][0][columns.index("memory\nMB")] == "-", "where the system does not say"


def test_the_command_leaves_a_shape_out_and_takes_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tinier", "tiny")
    monkeypatch.setattr(scale, "available_bytes", lambda: 0)
    flags = ["--shapes", "tiny,tinier", "--contexts", "4", "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(app, ["bench", "scale", *flags])
    assert (result.exit_code, result.stdout) == (1, "")
    sentence = "is left out: exporting it needs about 1.2 GB of memory, of which 0.0 GB are free"
    assert result.stderr.splitlines() == [f"tiny {sentence}", f"tinier {sentence}"]
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (ChildError("no luck"), 1)])
def test_shapes_that_are_complete_are_reported_where_the_next_one_stops(
    stop: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tinier", "tiny")
    complete = bench(tmp_path, Pretended()).measure("tiny")

    def measure(self: Scale, name: str) -> dict[str, Any]:
        if name == "tinier":
            raise stop
        return complete

    monkeypatch.setattr(Scale, "measure", measure)
    flags = ["--shapes", "tiny,tinier", "--contexts", "4", "--work", str(tmp_path / "work"), "--json"]
    result = CliRunner().invoke(app, ["bench", "scale", *flags])
    assert result.exit_code == code
    assert json.loads(result.stdout)["shapes"] == {"tiny": json.loads(json.dumps(complete))}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--shapes 7B", "--shapes must be of 135M,360M,1B,3B,tiny, not 7B"),
        ("--shapes 135M --contexts 8192", "--contexts must be from 1 to 8128 for 135M, not 8192"),
        ("--contexts 0,64", "--contexts must be numbers from 1 on, not 0,64"),
        ("--contexts 64;512", "--contexts must be like 64,512, not 64;512"),
    ],
)
def test_bad_use_is_one_line(flags: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "scale", *flags.split()])
    assert result.exit_code == 2
    assert result.stderr == f"error: Invalid value: {line} (see streamfuse bench scale --help)\n"
    assert list(tmp_path.iterdir()) == []


def test_a_child_says_what_it_took() -> None:
    lines: list[str] = []
    usage = run_module("timeit", "-n1", "-r1", "print('a'); x = bytearray(200_000_000)", line=lines.append)
    assert lines[0] == "a\n"
    assert usage.peak_bytes > 200_000_000
    assert usage.seconds > 0


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(ChildError, match=r"^ValueError: no such luck$"):
        run_module("timeit", "-n1", "-r1", "raise ValueError('no such luck')", line=print)
    with pytest.raises(ChildKilled, match=r"^was ended by SIGKILL, as the system does where memory runs out$"):
        run_module("timeit", "-n1", "-r1", "import os; os.kill(os.getpid(), 9)", line=print)


def test_ctrl_c_reaches_the_child(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    mark = tmp_path / "cleaned"
    setup = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"try: print(1, flush=True); time.sleep(60)\nfinally: open({str(mark)!r}, 'w').close()"
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_module("timeit", "-n1", "-r1", "-s", setup, code, line=interrupt)
    assert time.perf_counter() - started < 20
    assert mark.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says less")
def test_memory_that_is_taken_is_counted() -> None:
    size = 256 << 20
    code = (  # in a process of its own: here other tests' memory may go back to the system meanwhile
        "import numpy as np\n"
        "from streamfuse.bench.shared.machine import resident_bytes\n"
        "resident = resident_bytes()\n"
        f"taken = np.ones({size}, np.int8)\n"
        "print(resident_bytes() - resident)"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(grown) == pytest.approx(size, rel=0.1)
    assert 0 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - size


def test_a_record_survives_as_it_was(tmp_path: Path) -> None:
    record = Record(TINY, 128, "1", 10, 20, 30, {"seconds": 1.0})
    record.write(tmp_path)
    assert Record.read(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["export.json"]
