"""Speculative text against plain text, token for token, over many generations.

    PYTHONPATH=tests/helpers python tools/equality.py
    PYTHONPATH=tests/helpers python tools/equality.py --bundle build/demo --bundle build/sql
    PYTHONPATH=tests/helpers python tools/equality.py --soak 3600

Case N is derived from the seed and N: prompts, seed, temperature and filters, width or planner, thread counts, engine,
constraint, task adapter, drafting sources, memory of answers, and whether a text or a chat is saved at a random token
and restored in another session. Its texts are written plainly and speculatively. Tokens, texts and finish reasons must
be equal, and a restricted text that ends must satisfy its constraint by another library's judgement.

Each case is a line of a file, so the same command continues after Ctrl-C. The exit code is 1 if anything differs; the
command that repeats the case is printed. With --soak, new cases are written for a fifth of the time and repeated for
the rest, and the exit code is also 1 if memory in use grows meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from equality_cases import PROMPTS, Case, case_of
from equality_engines import BundleEngine, Engine, Written
from equality_results import Record, Results, ResultsError, Summary
from equality_soak import Soak, can_measure

from streamfuse.bench.structured.questions import problem_of
from streamfuse.bundle import open_bundle

TINY_SHARES = {
    "arithmetic": 4, "reference": 1, "tiny-fused": 4, "tiny-deferred": 4, "tiny-both": 2, "tiny-tasks": 4,
    "tiny-onnx": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """The engines of a run and what share of the cases each has."""

    engines: Mapping[str, Engine]
    shares: Sequence[float]
    seed: int
    prompts: int  # how many there are

    def prepare(self) -> None:
        """Load all that any case may need, which would otherwise grow the memory at its first use."""
        for engine in self.engines.values():
            engine.prepare()

    def trim(self) -> None:
        """Drop the caches of all engines."""
        for engine in self.engines.values():
            engine.trim()

    def case(self, number: int) -> Case:
        facts = {name: engine.facts for name, engine in self.engines.items()}
        return case_of(number, self.seed, facts, self.shares, self.prompts)


def compare(engine: Engine, case: Case) -> dict[str, Any]:
    """Write a case; its line of the results. `difference` is None where the texts are equal."""
    try:
        plain, drafted = engine.write(case)
        difference = difference_of(engine, case, plain, drafted)
    except Exception as error:  # an engine's failure is a finding, and the other cases go on
        plain = drafted = Written(())
        difference = f"{type(error).__name__}: {error}"
    return {
        **case.to_dict(),
        "finish": "+".join(text.reason for text in drafted.texts),
        "tokens": sum(len(text.tokens) for text in drafted.texts),
        "passes": sum(text.passes for text in drafted.texts),
        "plain_passes": sum(text.passes for text in plain.texts),
        "generations": len(plain.texts) + len(drafted.texts) + (drafted.restores if case.way == "saved" else 0),
        "restored": drafted.restores,
        "delivered_by": dict(sum((text.drafted for text in drafted.texts), Counter[str]())),
        "difference": difference,
    }


def difference_of(engine: Engine, case: Case, plain: Written, drafted: Written) -> str | None:
    """The first one, in one sentence."""
    for place, (one, other) in enumerate(zip(plain.texts, drafted.texts, strict=True)):
        turn = f"turn {place + 1}: " if len(plain.texts) > 1 else ""
        if one.tokens != other.tokens:
            pairs = zip(one.tokens, other.tokens, strict=False)
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens)))
            texts = [engine.decode(case, text.tokens) for text in (one, other)]
            return f"{turn}token {first} differs: plain {texts[0]!r}, speculative {texts[1]!r}"
        pairs = zip_longest(one.log_probs, other.log_probs, fillvalue=math.inf)
        if not all(math.isclose(a, b, rel_tol=0, abs_tol=1e-3) for a, b in pairs):  # ONNX Runtime rounds differently
            return f"{turn}log-probabilities: plain {one.log_probs}, speculative {other.log_probs}"
        if one.reason != other.reason:
            return f"{turn}finish reason: plain {one.reason}, speculative {other.reason}"
        if None not in (one.text, other.text) and one.text != other.text:
            return f"{turn}the same tokens as text: plain {one.text!r}, speculative {other.text!r}"
        if case.constraint is not None and one.reason == "stop":
            text = engine.decode(case, one.tokens)
            if problem := problem_of(engine.facts.constraints[case.constraint], text):
                return f"{turn}{text!r} is not valid: {problem}"
    return None


def run(
    plan: Plan,
    numbers: Iterable[int],
    results: Results | None = None,
    show: Callable[[Record, Summary], object] = lambda record, summary: None,
) -> Summary:
    """Write the cases that the results do not have yet. `show` is called after each."""
    summary = Summary()
    for number in numbers:
        record = results.find(number) if results else None
        if record is None:
            case = plan.case(number)
            record = compare(plan.engines[case.engine], case)
            if results:
                results.add(record)
        summary.add(record)
        show(record, summary)
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--results", type=Path, default=Path("build/equality.jsonl"), help="a line per case; appended")
    parser.add_argument("--prompts", help="data in any format of `streamfuse train`; default: built-in prompts")
    parser.add_argument("--engine", action="append", choices=TINY_SHARES, help="only this one; repeat it")
    parser.add_argument("--bundle", type=Path, action="append", default=[], help="a bundle of a real model; repeat it")
    parser.add_argument("--bundle-share", type=float, default=0.05, help="of the cases, for all --bundle together")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="thread counts of the engines")
    parser.add_argument("--case", type=_numbers, metavar="N", help="only this one, or N-M, without the file of results")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="watch the memory for so long, without the file")
    parser.add_argument("--most-growth", type=float, default=4.0, help="MB by which memory may grow in a soak")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args(arguments)
    prompts = _read_prompts(args.prompts)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        os.environ["STREAMFUSE_HOME"] = temporary  # measured latencies of this run
        try:
            plan = _open(args, prompts, Path(temporary), stack)
            if args.soak is not None:
                return _soak(args, plan)
            if args.case is not None:
                show = (lambda record, _: None) if args.json else _print
                return _report(args, run(plan, args.case, show=show))
            return _run_all(args, plan, _settings(args, plan, prompts))
        except (ResultsError, ValueError) as error:
            parser.error(str(error))


def _numbers(text: str) -> range:
    """N, or N-M."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _read_prompts(source: str | None) -> Sequence[str]:
    """The last message of the user in each row."""
    if source is None:
        return PROMPTS
    from streamfuse.train.readers import read_samples

    return [sample.turns[-1] for sample in read_samples(source) if sample.turns]


def _open(args: argparse.Namespace, prompts: Sequence[str], folder: Path, stack: ExitStack) -> Plan:
    engines: dict[str, Engine] = {}
    for name in args.engine or TINY_SHARES:
        if not args.json:
            print(f"making {name}", file=sys.stderr, flush=True)
        engine = _tiny(name, folder / name, prompts, args.threads)
        stack.callback(engine.close)
        engines[name] = engine
    tiny = sum(TINY_SHARES[name] for name in engines)
    share = args.bundle_share if args.bundle else 0.0
    shares = [TINY_SHARES[name] / tiny * (1 - share) for name in engines]
    for path in args.bundle:
        engine = BundleEngine(path.name, path, folder, prompts, args.threads)
        stack.callback(engine.close)
        if engine.name in engines:
            raise ValueError(f"--bundle {path}: there is another engine {engine.name}; rename the folder")
        engines[engine.name] = engine
        shares.append(share / len(args.bundle))
    return Plan(engines, shares, args.seed, len(prompts))


def _tiny(name: str, folder: Path, prompts: Sequence[str], threads: Sequence[int]) -> Engine:
    """Imports what the engine needs: only an export needs PyTorch."""
    if name.startswith("tiny"):
        from equality_bundles import tiny_engine

        return tiny_engine(name, folder, prompts, threads)
    from equality_fakes import ArithmeticEngine, ReferenceEngine

    return ArithmeticEngine(folder) if name == "arithmetic" else ReferenceEngine(folder)


def _settings(args: argparse.Namespace, plan: Plan, prompts: Sequence[str]) -> dict[str, Any]:
    """What a file of results belongs to."""
    bundles = [open_bundle(path).identity for path in args.bundle]
    digest = hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()
    return {
        "seed": args.seed,
        "engines": [f"{name} {share:.6g}" for name, share in zip(plan.engines, plan.shares, strict=True)],
        "bundles": bundles, "threads": args.threads, "prompts": digest,
    }  # fmt: skip


def _run_all(args: argparse.Namespace, plan: Plan, settings: Mapping[str, Any]) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Results(args.results, settings) as results:
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=args.json) as bar:
            task = bar.add_task("0 differences", total=args.cases)

            def show(_: Record, summary: Summary) -> None:
                bar.update(task, completed=summary.cases, description=f"{len(summary.differences)} differences")

            try:
                summary = run(plan, range(args.cases), results, show)
            except KeyboardInterrupt:
                print(f"stopped; the same command continues {args.results}", file=sys.stderr)
                return 130
    return _report(args, summary)


def _print(record: Record, _: Summary) -> None:
    print(json.dumps(record, ensure_ascii=False), flush=True)


def _report(args: argparse.Namespace, summary: Summary, **more: Any) -> int:
    """The exit code."""
    if args.json:
        print(json.dumps({**summary.to_dict(_command(args)), **more}, ensure_ascii=False))
    else:
        print(*summary.lines(_command(args)), sep="\n")
    return 1 if summary.differences else 0


def _soak(args: argparse.Namespace, plan: Plan) -> int:
    if not can_measure():
        raise ValueError("--soak needs Linux with glibc, which report the memory in use; leave it out")
    plan.prepare()
    soak, summary, number = Soak(args.soak, args.most_growth, plan.trim), Summary(), 0
    while soak.goes_on(now := time.monotonic()):
        case = plan.case(soak.case(number, now))
        summary.add(compare(plan.engines[case.engine], case))
        number += 1
        if (line := soak.sample(time.monotonic(), summary.generations)) and not args.json:
            print(line, file=sys.stderr, flush=True)
    code = _report(args, summary, soak=soak.to_dict())
    if not args.json:
        print(soak.line())
    return 1 if soak.grows else code


def _command(args: argparse.Namespace) -> str:
    """What repeats a case, but for its number."""
    words = ["python", "tools/equality.py", "--seed", str(args.seed)]
    words += [word for name in args.engine or () for word in ("--engine", name)]
    words += [word for path in args.bundle for word in ("--bundle", str(path))]
    words += ["--bundle-share", str(args.bundle_share)] if args.bundle else []
    words += ["--prompts", args.prompts] if args.prompts else []
    words += ["--threads", *map(str, args.threads)]
    return f"PYTHONPATH=tests/helpers {shlex.join(words)} --case"


if __name__ == "__main__":
    sys.exit(main())
