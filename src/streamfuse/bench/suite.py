"""All measurements of a release as a list of commands, and one file with what they printed.

A benchmark is a command of this program with `--json`. Its result is stored with a digest of all that it depends on; a
later run repeats only the benchmarks whose digest has changed. A file has the results of one processor.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from streamfuse.bench.shared.load import OtherLoad
from streamfuse.bench.shared.processes import ending
from streamfuse.bench.shared.systems import WITHOUT
from streamfuse.bundle.manifest import MANIFEST_NAME
from streamfuse.durable import write_text
from streamfuse.engines import processor
from streamfuse.native.library import find_core, find_library, find_text
from streamfuse.runtime.cores import cores

SETS: Final = {  # name: (bundle, data, tokens per answer)
    "chat": ("demo", "spec_bench/question.jsonl", 256),
    "GSM8K": ("demo", "gsm8k/question.jsonl", 256),
    "HumanEval": ("demo", "humaneval/question.jsonl", 256),
    "E2E": ("e2e", "e2e_nlg/test.jsonl", 64),
    "SQL": ("sql", "sql_context/test.jsonl", 64),
}
STRUCTURED: Final = {  # task: (bundle, data)
    "function-calling": ("demo", "function_calling/simple_python.jsonl"),
    "extraction": ("demo", "e2e_nlg/test.jsonl"),
    "sql": ("sql", "sql_context/test.jsonl"),
    "objects": ("demo", None),
}
BUNDLES: Final = {"demo": "chat", "e2e": "E2E", "sql": "SQL"}  # bundle: the data set that measures it
PEAK_MEMORY: Final = "peak memory of {}"  # the name of a bundle's benchmark of memory
COLD: Final = "{}, cold caches"  # the name of a data set's benchmark with evicted caches
STREAMS_ALONE: Final = "{}, streams alone"  # the name of a data set's benchmark of acceptance
STREAMS_ALONE_WIDTH: Final = 16  # nodes of its trees
REMEMBERED: Final = {  # kind of answer: the prompt that the base model answers about each row of E2E's test set
    "sentences": "Write one sentence about a restaurant with these attributes: {prompt}",
    "objects": "Read the text and write a JSON object with the keys name, food, area, price, rating, family_friendly. "
    "Text: {references[0]}",
}
WITH_MEMORY: Final = "memory of answers, {}"  # the name of a kind's benchmark
_PROGRAMS: Final = ("llama-cpp-python", "onnxruntime-genai")  # packages of other programs that benchmarks run
CODE: Final = ("api", "bench", "cli/bench", "cli/shared", "runtime")  # of the benchmarks, in the package
_END_S: Final = 60  # for an interrupted benchmark to end
SAMPLED: Final = "{}, temperature 0.7"  # the name of a data set's benchmark with sampled answers


class SuiteError(RuntimeError):
    """A benchmark failed, or the file of results is damaged; the message names it."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One command.

    Attributes:
        name: unique among those of a release.
        arguments: of `streamfuse`, without --json.
        bundle: the folder that is measured.
        data: the file of prompts; None: the command makes its own.
    """

    name: str
    arguments: tuple[str, ...]
    bundle: Path
    data: Path | None

    @property
    def command(self) -> str:
        return shlex.join(["streamfuse", *self.arguments])


def benchmarks(bundles: Path, data: Path, prompts: int, repetitions: int) -> list[Benchmark]:
    """Everything that can be measured with the bundles and data sets below these folders.

    Args:
        bundles: a folder with the bundles demo, e2e and sql (`make bundles`).
        data: the folder of `streamfuse data fetch`.
        prompts: of each data set, at most.
        repetitions: runs of each system per prompt.
    """
    found = []

    def add(name: str, kind: str, bundle: str, file: str | None, *arguments: object) -> None:
        folder = bundles / bundle
        command = ("bench", kind, str(folder), *map(str, arguments))
        found.append(Benchmark(name, command, folder, None if file is None else data / file))

    for name, (bundle, file, tokens) in SETS.items():
        sized = ("--data", data / file, "--limit", prompts, "--max-new-tokens", tokens)
        often = ("--repetitions", repetitions)
        add(name, "tasks", bundle, file, *sized, *often, "--sources")
        own, once = "plain,speculative", ("--repetitions", 1)
        add(COLD.format(name), "tasks", bundle, file, *sized, "--systems", f"{own},{WITHOUT['streams']}", *once,
            "--cold-caches")  # fmt: skip
        add(SAMPLED.format(name), "tasks", bundle, file, *sized, "--systems", own, *once, "--temperature", 0.7)
    for bundle, name in BUNDLES.items():
        _, file, tokens = SETS[name]
        add(STREAMS_ALONE.format(name), "acceptance", bundle, file, "--data", data / file, "--limit", prompts,
            "--max-new-tokens", tokens, "--width", STREAMS_ALONE_WIDTH)  # fmt: skip
    for kind, template in REMEMBERED.items():
        file = SETS["E2E"][1]
        add(WITH_MEMORY.format(kind), "tasks", "demo", file, "--data", data / file, "--limit", prompts,
            "--max-new-tokens", 96, "--systems", "plain,speculative", "--repetitions", 1, "--memory", "--template",
            template)  # fmt: skip
    for name, (bundle, of) in STRUCTURED.items():
        task = name if of is None else f"{name}={data / of}"
        add(f"structured, {name}", "structured", bundle, of, "--task", task, "--limit", prompts,
            "--repetitions", repetitions)  # fmt: skip
    for bundle in BUNDLES:
        add(f"passes of {bundle}", "latency", bundle, None)
    for bundle, name in BUNDLES.items():
        _, file, tokens = SETS[name]
        add(PEAK_MEMORY.format(bundle), "memory", bundle, file, "--data", data / file, "--limit", prompts,
            "--max-new-tokens", tokens)  # fmt: skip
    return found


def identity(benchmark: Benchmark) -> str:
    """SHA-256 of what the result depends on: the command, the cores and the instruction set in use, the other programs,
    the code of the benchmarks and the runtime, the native libraries, the data and the bundle (its manifest, which has
    the hashes of its files)."""
    programs = [f"{name} {_version(name)}" for name in _PROGRAMS]
    digest = hashlib.sha256(repr((benchmark.command, cores(), os.environ.get("STREAMFUSE_ISA"), programs)).encode())
    package = Path(__file__).parents[1]
    code = sorted(path for folder in CODE for path in (package / folder).rglob("*.py"))
    libraries = (find_core(), find_text(), find_library())
    for path in (*code, *libraries, benchmark.bundle / MANIFEST_NAME, benchmark.data):
        if path is not None:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    """None: not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Results:
    """The file of results.

    Attributes:
        rows: by name of a benchmark: command, identity, result (what it printed) and the facts of `measure`.

    Raises:
        SuiteError: the file is damaged, or was written on another processor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        path = self.path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows, measured_on = dict(found["benchmarks"]), found["processor"]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError):
            raise SuiteError(f"{path} is not a file of results; give another with --output, or delete it") from None
        if measured_on != processor():
            raise SuiteError(
                f"{path} has results of another processor ({measured_on}); give another file with --output"
            )
        return rows

    def has(self, benchmark: Benchmark) -> bool:
        return self.rows.get(benchmark.name, {}).get("identity") == identity(benchmark)

    def add(self, benchmark: Benchmark, measured: str, result: Mapping[str, Any], **facts: Any) -> None:
        """Store a result; `measured` is the benchmark's identity from before it ran."""
        self.rows |= self._read()  # another process may have added results since
        self.rows[benchmark.name] = {
            "command": benchmark.command,
            "identity": measured,
            **facts,
            "result": dict(result),
        }
        text = json.dumps({"processor": processor(), "benchmarks": self.rows}, indent=1) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, text)


def commit() -> str | None:
    """The commit of this source tree, with "-dirty" if tracked files differ from it; None if it is no git checkout, for
    example an installed package, whatever repository its environment is in."""
    folder = Path(__file__).parent
    known = ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name]
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty"]
    try:
        if subprocess.run(known, capture_output=True).returncode != 0:
            return None
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def measure(benchmark: Benchmark) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a benchmark; its progress goes to standard error.

    Returns:
        What it printed, and the facts: the commit, when it began (UTC), how long it ran (seconds) and how many cores
        other work used meanwhile (None: unknown).

    Raises:
        SuiteError: it failed.
    """
    began = datetime.now(timezone.utc)
    start, load = time.monotonic(), OtherLoad()
    child = subprocess.Popen(
        [sys.executable, "-m", "streamfuse", *benchmark.arguments, "--json"], stdout=subprocess.PIPE
    )
    try:
        printed, _ = child.communicate()
    except KeyboardInterrupt:
        # The terminal interrupts the child too, which then ends the programs that it started.
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_END_S)
        raise
    finally:
        if child.poll() is None:
            child.terminate()
    if child.returncode != 0:
        raise SuiteError(f"{benchmark.name} {ending(child.returncode)}: {benchmark.command}")
    facts = {
        "commit": commit(),
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start),
        "other_load_cores": load.cores(),
    }
    return json.loads(printed), facts


def _ratio(value: float | None) -> str:
    """None: not measured, or a ratio to empty answers, which JSON has as null."""
    return "-" if value is None else f"{value:.2f}"


def speed_rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """A row per data set that was measured: its name, prompts, tokens per pass, speed-up over plain decoding, its 95 %
    interval, the speed-up with cold caches, and the gain from streams."""
    for name in SETS:
        if name not in found:
            continue
        result = found[name]["result"]
        cold = found.get(COLD.format(name), {}).get("result")
        streams = result["gains"].get("all", {}).get("without streams")
        low, high = result["speedup_interval"]
        yield [
            name,
            str(result["prompts"]),
            f"{result['systems']['speculative']['mean_accepted_tokens']:.2f}",
            _ratio(result["speedup"]),
            f"{_ratio(low)}-{_ratio(high)}",
            _ratio(cold["speedup"] if cold else None),
            _ratio(streams["speedup"] if streams else None),
        ]


def memory_table(found: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the peak memory: a row per bundle that was measured, with the tokens of the prompt and the
    megabytes of each system that any of them ran."""
    results = {name: found[PEAK_MEMORY.format(name)]["result"] for name in BUNDLES if PEAK_MEMORY.format(name) in found}
    systems = list(dict.fromkeys(name for result in results.values() for name in result["systems"]))
    rows = [
        [bundle, str(result["prompt_tokens"])]
        + [_megabytes(result["systems"].get(name, {}).get("peak_memory_mb")) for name in systems]
        for bundle, result in results.items()
    ]
    return ["bundle", "prompt tokens", *(f"{name}, MB" for name in systems)], rows


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
