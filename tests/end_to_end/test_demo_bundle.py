"""The demo's own bundle through the command line: real model, real engine. `make bundle` makes it.

Run: python -m pytest tests/end_to_end
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamfuse
from streamfuse.bundle import open_bundle
from streamfuse.durable import flush, uncache
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "build" / "demo"
MEAN_ACCEPTED_FLOOR = 1.5  # of streams; plain decoding is 1.00

pytestmark = [
    pytest.mark.alone,  # the engine takes all cores
    pytest.mark.skipif(not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"),
]


def streamfuse_command(*arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from streamfuse.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, env=environment, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def comparison(prompt: str, *flags: str) -> dict[str, Any]:
    arguments = ("run", str(BUNDLE), prompt, "--compare", "--json", "--repeats", "1", *flags)
    return dict(json.loads(streamfuse_command(*arguments).stdout))


def test_the_demo_shows_equal_texts_of_three_kinds() -> None:
    facts = json.loads(streamfuse_command("demo", str(BUNDLE), "--repeats", "1", "--json").stdout)
    assert facts["equal"] is True
    assert sum(facts["accepted_by_source"].values()) > 0
    texts = {row["answer"]: row["text"] for row in facts["answers"]}
    assert list(texts) == ["chat", "code", "JSON"]
    assert "def " in texts["code"]
    assert json.loads(texts["JSON"]) == {"name": "Eiffel Tower", "city": "Paris", "year": 1889}


def test_streams_alone_are_accepted_and_change_no_token() -> None:
    # A fixed width: the plan may well decide on this machine, today, that drafting does not pay.
    facts = comparison("Explain why the sky is blue.", "--max-new-tokens", "96", "--width", "8")
    assert facts["equal"] is True
    assert facts["speculative"]["fallback_reason"] is None
    assert facts["plain"]["mean_accepted_tokens"] == 1.0
    assert facts["speculative"]["mean_accepted_tokens"] > MEAN_ACCEPTED_FLOOR
    assert len(facts["text"]) > 100


@pytest.mark.parametrize(("method", "few"), [("verify_8", 5), ("verify_16", 9)])
def test_padding_rows_cost_no_time(method: str, few: int) -> None:
    """A plan cuts its trees by what a row costs."""
    bundle = open_bundle(BUNDLE)
    rows = bundle.manifest.methods[method].rows
    best = {few: float("inf"), rows: float("inf")}
    with ExecuTorchBackend(bundle.graph, bundle.spec()) as backend:
        for turn in range(100):  # more turns under load; each can only come closer to what a pass costs
            if turn >= 15 and best[few] < 0.95 * best[rows]:
                break
            for count in best:
                start = time.perf_counter()
                backend.run(method, np.arange(count) + 100, np.arange(count), np.tri(count, dtype=np.bool_))
                best[count] = min(best[count], time.perf_counter() - start)
    assert best[few] < 0.95 * best[rows]


def large_pages(path: Path) -> int:
    """Bytes of a file that this process has mapped in pages of 2 MB."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(str(path))
        elif here and line.startswith("FilePmdMapped:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="large pages are asked for on Linux")
def test_weights_that_were_not_cached_lie_in_large_pages(tmp_path: Path) -> None:
    graph = open_bundle(BUNDLE).graph
    cold = [Path(shutil.copy(graph, tmp_path / name)).resolve() for name in ("control.pte", "model.pte")]
    for path in cold:
        flush(path)
        uncache(path)
    with cold[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as control:
        control.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(control), mmap.PAGESIZE):
            control[at]
        if large_pages(cold[0]) < len(control) / 2:
            pytest.skip("this file system caches files in small pages; ext4 from Linux 6.16 on and XFS have large ones")
    with ExecuTorchBackend(cold[1], open_bundle(BUNDLE).spec()) as backend:
        time.sleep(0.5)  # until the file has been read ahead
        backend.run("decode", np.array([1]), np.array([0]), np.ones((1, 1), np.bool_))
        assert large_pages(cold[1]) > graph.stat().st_size / 4  # the rest was read by whoever was first


PROMPTS = ["List the planets in order.", "Translate to French: the cat sleeps.", "2 + 2 ="]
FLAGS = [[], ["--temperature", "0.8", "--top-p", "0.95", "--seed", "7"], ["--repetition-penalty", "1.2"]]


@pytest.mark.parametrize(
    ("prompt", "flags"),
    [
        # Sampled and with a penalty by default; the demo above is greedy.
        pytest.param(prompt, flags, marks=[] if at == of > 0 else pytest.mark.full)
        for at, prompt in enumerate(PROMPTS)
        for of, flags in enumerate(FLAGS)
    ],
)
def test_speculation_changes_no_token(prompt: str, flags: list[str]) -> None:
    assert comparison(prompt, "--max-new-tokens", "40", *flags)["equal"] is True


def test_a_chat_takes_several_turns() -> None:
    done = streamfuse_command(
        "chat", str(BUNDLE), "--max-new-tokens", "24", stdin="My name is Ada.\nWhat is my name?\n/stats\n/exit\n"
    )
    assert len(done.stdout.split("mean accepted tokens")[0].strip()) > 20
    assert "mean accepted tokens" in done.stdout


def test_a_prompt_longer_than_the_context_is_one_line() -> None:
    done = streamfuse_command("run", str(BUNDLE), "-", stdin="word " * 20_000, code=1)
    assert done.stderr.count("\n") == 1
    assert "context holds" in done.stderr


def test_inspect_reads_it() -> None:
    assert json.loads(streamfuse_command("bundle", "inspect", str(BUNDLE), "--json").stdout)["format_version"] == 4


def test_methods_are_compared_on_the_real_model(tmp_path: Path) -> None:
    data = tmp_path / "asked.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    files = [
        "--markdown",
        str(tmp_path / "t.md"),
        "--answers",
        str(tmp_path / "a"),
        "--report",
        str(tmp_path / "p.html"),
    ]
    done = streamfuse_command(
        "research", "compare", str(BUNDLE), "--data", f"asked={data}", "--bundles", str(tmp_path / "lab"), "--methods",
        "streams, ours; streams, fixed 2x2 tree; prompt look-up; n-gram table", "--peers", "none", "--quick", "--json",
        *files,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert {"plain", "streams, ours", "n-gram table", "plain, core", "streamfuse, core"} <= found["methods"].keys()
    for name, method in found["methods"].items():
        assert method["results"]["asked"]["equal_texts"], name
    assert found["methods"]["streams, ours"]["results"]["asked"]["mean_accepted_tokens"] > 1.2
    assert "| streams, ours |" in (tmp_path / "t.md").read_text(encoding="utf-8")
    assert len((tmp_path / "a" / "asked" / "streams-ours.jsonl").read_text().splitlines()) == 2
    assert "streams, fixed 2x2 tree" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert not (tmp_path / "lab").exists(), "nothing is exported for methods that nobody asked for"


def anonymous_bytes() -> int | None:
    """Memory of this process that is in RAM and no file; None where the system does not report it."""
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.is_file() else ""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else None


@pytest.mark.skipif(
    anonymous_bytes() is None, reason="there is no RssAnon in /proc/self/status; run it on Linux 4.5 or newer"
)
def test_a_trimmed_chat_gives_the_memory_of_its_cache_back_and_goes_on() -> None:
    used = {"max_new_tokens": 4}
    with streamfuse.load(BUNDLE) as model, model.chat() as chat, model.chat() as other:
        for one in (chat, other):
            one.send("Tell a story. " * 100, **used)
        cache = streamfuse.estimate(BUNDLE).cache_bytes * chat.used_tokens // model.context_length
        before = anonymous_bytes()
        chat.trim()
        after = anonymous_bytes()
        assert before is not None
        assert after is not None
        assert before - after > 0.8 * cache
        assert chat.send("Go on.", **used).tokens == other.send("Go on.", **used).tokens
