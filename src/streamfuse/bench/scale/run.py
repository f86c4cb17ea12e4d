"""One bundle, measured behind longer and longer contexts: `python -m streamfuse.bench.scale.run BUNDLE ...`.

Prints a line of JSON for the opened bundle and one per context. It is a process of its own, without PyTorch, so that
the memory it counts is that of running a bundle from Python.
"""

from __future__ import annotations

import argparse
import signal
import time
from typing import Any

from streamfuse.api import load
from streamfuse.bench.latency.measure import LatencySettings, measure
from streamfuse.bench.shared.machine import ReadBandwidth, engine_facts, engine_threads, resident_bytes
from streamfuse.bundle.manifest import PREFILL
from streamfuse.json_text import dump_strict


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m streamfuse.bench.scale.run", description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--contexts", type=int, nargs="+", required=True, help="ascending")
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--threads", type=int)
    flags = parser.parse_args()
    # Python does not listen where it was started to ignore Ctrl-C, as a shell's background jobs are; the bench asks so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.perf_counter()
    with load(flags.bundle, threads=flags.threads, cost_cache=False) as model:
        session = model.session(text=False)
        load_ms = 1000 * (time.perf_counter() - started)
        _say({"load_ms": load_ms, "resident_bytes": resident_bytes(), **engine_facts(session.backend)})
        for context in flags.contexts:
            machine = ReadBandwidth(engine_threads(session.backend))
            facts = {"core_distance_ns": machine.core_distance_ns}
            settings = LatencySettings(flags.repetitions, context)
            found = measure(session.backend, model.manifest, settings, machine, None, {}, facts)
            prefill = 1000 * model.manifest.methods[PREFILL].rows / found.methods[PREFILL].pass_ms.median
            _say({**found.to_dict(), "prefill_token_per_sec": prefill, "resident_bytes": resident_bytes()})


def _say(facts: dict[str, Any]) -> None:
    print(dump_strict(facts), flush=True)


if __name__ == "__main__":
    main()
