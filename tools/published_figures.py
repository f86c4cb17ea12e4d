"""The tables of figures in README.md and docs/, each written from the results of one `streamfuse bench all`.

python tools/published_figures.py build/figures.json           # copies them to docs/figures.json, writes the tables
python tools/published_figures.py                              # writes the tables anew
python tools/published_figures.py --check                      # exit code 1 if a table differs from the results

Tables have the rows that were measured, and `-` for what a result has as null; benchmarks without results are listed.

It also lists the latest commits that have changed the measured code since; they fail nothing, as measuring takes
most of an hour. A test of tests/docs/test_published_figures.py warns of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from streamfuse.bench.shared.marked_text import update
from streamfuse.bench.suite import (
    BUNDLES,
    CODE,
    COLD,
    PEAK_MEMORY,
    REMEMBERED,
    SAMPLED,
    STREAMS_ALONE,
    WITH_MEMORY,
    benchmarks,
    memory_table,
)
from streamfuse.durable import write_text

ROOT = Path(__file__).parents[1]
FIGURES = Path("docs/figures.json")
# The code that figures depend on.
PACKAGES = ("adapters", "export", *CODE)
MEASURED = ("core", "kernels", "native", "text/src", *(f"src/streamfuse/{package}" for package in PACKAGES))
_MOST_LISTED = 5  # commits
_BEGIN = "<!-- table: {}, written by tools/published_figures.py -->"
_TITLES = {
    "chat": "Spec-Bench",
    "GSM8K": "GSM8K",
    "HumanEval": "HumanEval",
    "E2E": "E2E, fine-tuned",
    "SQL": "WikiSQL, fine-tuned",
}
_TASKS = {
    "function-calling": "function calling",
    "extraction": "extraction",
    "objects": "free JSON (`objects`)",
    "sql": "SQL, fine-tuned",
}
SOURCES = ("streams", "lookup", "table")
_MEMORY = [PEAK_MEMORY.format(bundle) for bundle in BUNDLES]
_DROPPED = {"parts", "time_ms", "problems", "mask_ms_per_token"}  # what no table shows

Document = Mapping[str, Any]  # a file of results: `processor`, and `benchmarks` by name


def compact(value: Any) -> Any:
    """What the tables need of a result, its numbers to five digits."""
    if isinstance(value, dict):
        return {name: compact(one) for name, one in value.items() if name not in _DROPPED}
    if isinstance(value, list):
        return [compact(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def table(columns: str, rows: list[list[str]]) -> str:
    """Markdown; `columns` are separated by bars, those after the first are numbers."""
    names = columns.split("|")
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def measured(document: Document, titles: Mapping[str, str], name: str = "{}") -> Iterator[tuple[str, Any]]:
    """Title and result of the benchmarks that were measured; `name` makes a benchmark's name of a key of `titles`."""
    for key, title in titles.items():
        if one := document["benchmarks"].get(name.format(key)):
            yield title, one["result"]


def of_sets(document: Document, names: Iterable[str] = tuple(_TITLES)) -> Iterator[tuple[str, Any, Any]]:
    """Title and result of the data sets that were measured, with that of cold caches, which may be {}."""
    titles = {name: _TITLES[name] for name in names}
    cold = dict(measured(document, titles, COLD))
    for title, warm in measured(document, titles):
        yield title, warm, cold.get(title, {})


def readme(document: Document) -> str:
    """Three rows: the speed-up with cold and with warm caches."""
    found = [
        [title, _speedup(cold), _speedup(warm), _per_pass(warm)]
        for title, warm, cold in of_sets(document, ("E2E", "SQL", "chat"))
    ]
    return table("data set | speed-up, cold caches | speed-up, warm caches | tokens per pass", found)


def speed(document: Document) -> str:
    """Per data set: speculative over plain decoding, with cold and with warm caches."""
    found = []
    for title, warm, cold in of_sets(document):
        plain = warm["systems"]["plain"]
        found.append([
            title, _speedup(cold), _speedup(warm), _per_pass(warm), _number(plain["decode_token_per_sec"], 0),
            str(warm["prompts"]), str(plain["ended"]),
        ])  # fmt: skip
    columns = "data set | over plain, cold caches | over plain, warm caches | tokens per pass"
    return table(f"{columns} | plain, tokens/s | prompts | ended", found)


def other_runtimes(document: Document) -> str:
    """Per data set and other program: its plain decoding, and both of ours over it."""
    found = []
    for title, result in measured(document, _TITLES):
        for program, ratios in result["over"].items():
            theirs = result["systems"][program]["decode_token_per_sec"]
            found.append(
                [title, program, _number(theirs, 0), *(_over(ratios, ours) for ours in ("plain", "speculative"))]
            )
    columns = "data set | program | tokens/s | streamfuse, plain, over it | streamfuse, speculative, over it"
    return table(columns, found)


def times(document: Document) -> str:
    """Per data set: the first token, reading the prompt, whole answers, processor time and, if measured, energy."""
    sets, found = [], []
    for title, result in measured(document, _TITLES):
        plain, ours = (result["systems"][system] for system in ("plain", "speculative"))
        sets.append((title, plain, ours))
        whole = [_whole_answer_ms(one, result["prompts"]) for one in (plain, ours)]
        ratio = None if whole[0] is None or whole[1] is None else whole[0] / whole[1]
        cells = [_number(ours["first_token_ms"], 0), _number(ours["prefill_token_per_sec"], 0)]
        found.append([title, *cells, _number(ratio)])
    columns = "data set | first token, ms | prompt, tokens/s | whole answer, over plain"
    for key, title, digits in (
        ("cpu_ms_per_token", "processor time per token, plain, ms", 1),
        ("joules_per_token", "energy per token, plain, J", 3),
    ):
        if any(one[key] is not None for _, *systems in sets for one in systems):
            columns += f" | {title} | speculative | ratio"
            for row, (_, plain, ours) in zip(found, sets, strict=True):
                ratio = None if None in (plain[key], ours[key]) else ours[key] / plain[key]
                row += [_number(plain[key], digits), _number(ours[key], digits), _number(ratio)]
    return table(columns, found)


def _whole_answer_ms(system: Mapping[str, Any], answers: int) -> float | None:
    """Milliseconds: the median time to the first token, and the other tokens of an average answer at decode speed."""
    first, rate = system["first_token_ms"], system["decode_token_per_sec"]
    if first is None or rate is None:
        return None
    return float(first + 1000 * max(0.0, system["generated_tokens"] / answers - 1) / rate)


def sources(document: Document) -> str:
    """Per data set: gain and accepted tokens of each source of drafts."""
    found = []
    for title, result, cold in of_sets(document):
        gains = result["gains"]["all"]
        accepted = result["systems"]["speculative"]["accepted_by_source"]
        counts = ", ".join(str(accepted[source]) for source in SOURCES)
        from_memory = _gain(cold.get("gains", {}).get("all", {}), "streams")
        found.append([title, *(_gain(gains, source) for source in SOURCES), from_memory, counts])
    return table(
        "data set | gain from streams | gain from look-up | gain from the table "
        "| gain from streams, cold caches | accepted drafts from streams, look-up, table",
        found,
    )


def streams_alone(document: Document) -> str:
    """Per bundle, with streams as the only source of drafts."""
    titles = {name: _TITLES[name] for name in BUNDLES.values()}
    found = [
        [title, str(result["answers"]), _number(result["call_reduction_ratio"]),
         " ".join(_number(share) for share in result["acceptance_per_depth"])]
        for title, result in measured(document, titles, STREAMS_ALONE)
    ]  # fmt: skip
    return table("data set | answers | call-reduction ratio | accepted per depth", found)


def remembered(document: Document) -> str:
    """Per kind of answer, without and with a memory of the answers to earlier prompts."""
    found = []
    for title, result in measured(document, {kind: kind for kind in REMEMBERED}, WITH_MEMORY):
        memory = result["systems"]["with memory"]["mean_accepted_tokens"]
        found.append([title, _number(result["systems"]["plain"]["decode_token_per_sec"], 0), _speedup(result),
                      _per_pass(result), _estimate(result, "memory_speedup"), _number(memory)])  # fmt: skip
    columns = "answers | plain, tokens/s | over plain | tokens per pass | with a memory, over plain"
    return table(f"{columns} | with a memory, tokens per pass", found)


def categories(document: Document) -> str:
    """Spec-Bench by category: with warm and with cold caches, and at temperature 0.7."""
    of_all = {"result": {"gains": dict[str, Any]()}}
    warm, cold, hot = (
        document["benchmarks"].get(name.format("chat"), of_all)["result"]["gains"] for name in ("{}", COLD, SAMPLED)
    )
    kinds = sorted(warm.keys() - {"all"}, key=lambda kind: -(warm[kind]["plain"]["speedup"] or 0))
    found = [
        [kind]
        + [_over(gains.get(kind, {}), "plain") for gains in (cold, warm, hot)]
        + [_gain(cold.get(kind, {}), "streams")]
        + [_gain(warm[kind], source) for source in SOURCES]
        for kind in kinds
    ]
    columns = "category | over plain, cold caches | over plain, warm caches | over plain, temperature 0.7"
    gains = "gain from streams, cold caches | gain from streams | gain from look-up | gain from the table"
    return table(f"{columns} | {gains}", found)


def sampled(document: Document) -> str:
    """Per data set, greedy and at temperature 0.7: tokens per pass and the speed-up."""
    hot = dict(measured(document, _TITLES, SAMPLED))
    found = [
        [title, _per_pass(greedy), _speedup(greedy), _per_pass(hot[title]), _speedup(hot[title])]
        for title, greedy in measured(document, _TITLES)
        if title in hot
    ]
    columns = "data set | tokens per pass, greedy | over plain, greedy | tokens per pass, temperature 0.7"
    return table(f"{columns} | over plain, temperature 0.7", found)


def structured(document: Document) -> str:
    """Per task of structured output."""
    found = []
    for title, of_task in measured(document, _TASKS, "structured, {}"):
        (result,) = of_task["tasks"].values()
        match = result["quality"].get("exact_match")
        found.append([
            title, str(result["answers"]), _speedup(result), _number(result["tokens_per_pass"]),
            _percent(result["grammar_share"]),
            _estimate(result, "constrained_over_free"),
            _percent(result["finished"]), _percent(result["valid"]), "" if match is None else f"{match:.0f} %",
        ])  # fmt: skip
    columns = "task | questions | over plain | tokens per pass | drafted from the grammar"
    return table(f"{columns} | constrained plain over free plain | ended | valid | exact match", found)


def others(document: Document) -> str:
    """Per task of structured output: both of ours, and other programs over our constrained plain decoding."""
    found = []
    for title, of_task in measured(document, _TASKS, "structured, {}"):
        (result,) = of_task["tasks"].values()

        def row(system: str, ratio: str, facts: Mapping[str, Any], title: str = title) -> list[str]:
            match = facts["quality"].get("exact_match")
            tokens = facts["tokens"] / facts["answers"]
            return [title, system, _number(facts["decode_token_per_sec"], 0), ratio, _number(facts["ms_per_answer"], 0),
                    f"{tokens:.0f}", _percent(facts["finished"]), _percent(facts["valid"]),
                    "" if match is None else f"{match:.0f} %"]  # fmt: skip

        for system, ratio in (("plain", "1"), ("speculative", _speedup(result))):
            own = {key: result[key][system] for key in ("decode_token_per_sec", "ms_per_answer")}
            found.append(row(f"streamfuse, {system}", ratio, {**result, **own}))
        for system, facts in result.get("external", {}).items():
            if facts["answers"]:
                found.append(row(system, _estimate(facts, "over_plain"), facts))
    columns = "task | system | tokens/s | ratio | ms per answer | tokens per answer | ended | valid | exact match"
    return table(columns, found)


def passes(document: Document) -> str:
    """Milliseconds of each method, by bundle, with its cost in plain passes."""
    names = ("decode", "verify_4", "verify_8", "verify_16", "streams", "prefill")
    found = []
    for bundle, result in measured(document, {name: name for name in BUNDLES}, "passes of {}"):
        methods = {name: one["ms"] for name, one in result["methods"].items()}
        cells = [
            f"{methods[name]:.2f} ({methods[name] / methods['decode']:.2f})" if name in methods else ""
            for name in names
        ]
        found.append([bundle, *cells, _number(result["decode_roofline_fraction"])])
    return table("bundle | " + " | ".join(names) + " | decode, of the roofline", found)


def memory(document: Document) -> str:
    """Peak memory per bundle and system, and its commit: it may be of another run, as other load does not change it.
    Bundles without it are left out."""
    columns, rows = memory_table(document["benchmarks"])
    found = [document["benchmarks"][name] for name in _MEMORY if name in document["benchmarks"]]
    commits = ", ".join(dict.fromkeys(str(one["commit"]) for one in found)) or "none"
    return f"{table(' | '.join(columns), rows)}\n\nMeasured with commit {commits}."


def machine(document: Document) -> str:
    """A sentence: where, with what and when everything was measured."""
    rows = [one for name, one in document["benchmarks"].items() if name not in _MEMORY]
    if not rows:
        return f"On {document['processor']} nothing was measured but memory."
    commits = list(dict.fromkeys(str(one["commit"]) for one in rows))
    minutes, day = sum(one["seconds"] for one in rows) / 60, min(one["began"] for one in rows)[:10]
    words = (
        f"Measured by `streamfuse bench all` in {minutes:.0f} minutes ({day}) with commit {', '.join(commits)} on "
        f"{document['processor']}"
    )
    sets = [result for name in ("{}", COLD) for _, result in measured(document, _TITLES, name)]
    if not sets:
        return f"{words}."
    rates: dict[int, list[float]] = {}  # GB/s by the size of the block
    for one in (row["result"] for row in rows):
        if "read_bandwidth_gb_s" in one:
            rates.setdefault(one["read_bandwidth_bytes"], []).append(one["read_bandwidth_gb_s"])
    read = [
        f"{min(found):.0f} to {max(found):.0f} GB/s for a block of {size >> 20:,} MiB"
        for size, found in sorted(rates.items())
    ]
    distance = [ns for one in sets for ns in one["core_distance_ns"]]
    found = (
        f"{words}, {sets[0]['threads']} threads, instruction set {sets[0]['instruction_set']}. Read bandwidth: "
        f"{', '.join(read)}; latency from core to core: {min(distance):.0f} to {max(distance):.0f} ns."
    )
    loads = [(one["other_load_cores"], one["seconds"]) for one in rows if one.get("other_load_cores") is not None]
    if not loads:
        return found
    mean = sum(load * seconds for load, seconds in loads) / max(1, sum(seconds for _, seconds in loads))
    most = max(load for load, _ in loads)
    return f"{found} Other work used {mean:.2f} cores on average, at most {most:.2f} in any benchmark."


PAGES: dict[str, dict[str, Callable[[Document], str]]] = {
    "README.md": {"readme": readme},
    "docs/figures.md": {
        "machine": machine,
        "speed": speed,
        "other runtimes": other_runtimes,
        "times": times,
        "sources": sources,
        "streams alone": streams_alone,
        "memory of answers": remembered,
        "categories": categories,
        "sampled": sampled,
        "structured": structured,
        "other programs": others,
        "passes": passes,
        "memory": memory,
    },
}


def missing(document: Document) -> list[str]:
    """Benchmarks without results."""
    names = (one.name for one in benchmarks(Path(), Path(), 1, 1))
    return [name for name in names if name not in document["benchmarks"]]


def take_over(results: Path, root: Path) -> None:
    """Copy results to FIGURES.

    Raises:
        ValueError: a benchmark stopped early, or a text differed.
    """
    document = json.loads(results.read_text(encoding="utf-8"))
    for name, one in document["benchmarks"].items():
        parts = [one["result"], *one["result"].get("tasks", {}).values()]
        # `equal` is a bool, or the share of equal answers.
        if not all(part.get("complete", True) and part.get("equal", True) == 1 for part in parts):
            raise ValueError(f"{results}: {name} stopped early, or its outputs differ")
    if names := missing(document):
        print(
            f"{results}: no results for {'; '.join(names)}; the tables lack them until `streamfuse bench all` has run"
        )
    write_text(root / FIGURES, json.dumps(compact(document), indent=1) + "\n")


def main(root: Path, check: bool) -> int:
    """Write the tables, or compare them; the exit code."""
    document = json.loads((root / FIGURES).read_text(encoding="utf-8"))
    code = 0
    for name, tables in PAGES.items():
        texts = {_BEGIN.format(title): f"\n{written(document)}\n" for title, written in tables.items()}
        if update(root / name, texts, check) and check:
            print(f"{name}: figures differ from the results in docs/; run python tools/published_figures.py")
            code = 1
    return code


def later_commits(root: Path) -> list[str]:
    """Commits since the measured one that changed the measured code; empty if this is no git checkout that has it."""
    document = json.loads((root / FIGURES).read_text(encoding="utf-8"))
    found: dict[str, None] = {}
    for measured in {one["commit"] for one in document["benchmarks"].values()}:
        since = f"{str(measured).removesuffix('-dirty')}..HEAD"
        command = ["git", "-C", str(root), "log", "--format=%h %s", since, "--", *MEASURED]
        done = subprocess.run(command, capture_output=True, text=True)
        found |= dict.fromkeys(done.stdout.splitlines() if done.returncode == 0 else [])
    return list(found)


def _per_pass(result: Mapping[str, Any]) -> str:
    return _number(result["systems"]["speculative"]["mean_accepted_tokens"])


def _speedup(result: Mapping[str, Any]) -> str:
    return _estimate(result, "speedup")


def _estimate(result: Mapping[str, Any], name: str) -> str:
    return _interval(result.get(name), result.get(f"{name}_interval"))


def _over(ratios: Mapping[str, Any], system: str) -> str:
    found = ratios.get(system, {})
    return _interval(found.get("speedup"), found.get("interval"))


def _gain(gains: Mapping[str, Any], source: str) -> str:
    return _over(gains, f"without {source}")


def _interval(value: float | None, interval: list[float | None] | None) -> str:
    low, high = interval or (None, None)
    if value is not None and low == high:  # one prompt, answered once, says nothing of chance
        return _number(value)
    return "-" if value is None else f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float | None, digits: int = 2) -> str:
    """None: not measured, or a ratio to empty answers, which JSON has as null."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", help="of `streamfuse bench all`")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    if arguments.results is not None:
        take_over(arguments.results, ROOT)
    commits = later_commits(ROOT)
    for line in commits[:_MOST_LISTED]:
        print(f"{FIGURES} is older than {line}")
    if len(commits) > _MOST_LISTED:
        print(f"{FIGURES} is older than {len(commits) - _MOST_LISTED} more commits")
    sys.exit(main(ROOT, arguments.check))
