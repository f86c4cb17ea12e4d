"""The core over the engines of golden traces, for tests of other languages, whose sessions drive it.

Run: PYTHONPATH=src:tests/helpers:tools python tests/helpers/trace_peer.py

Reads one request per line, and writes one line for each:

    open NAME      {}, with the trace tests/traces/NAME.json
    start CONFIG   {}: a text after the trace's prompt begins; CONFIG is a JSON object with options of a generation
    next           {"token", "source"}; {} at the end
    finish         {}
    statistics     the statistics of the text

Before each pass of the engine it writes `pass`, and waits for `go`. The line `stop`, instead of a request or before
`go`, stops the text at its next token; it has no answer.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from fakes import ArithmeticBackend

import make_traces
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.session import Generation, Session

TRACES = Path(__file__).parents[1] / "traces"


class Watched(ArithmeticBackend):
    """Waits before each pass."""

    generation: Generation

    def run(self, *inputs: Any) -> PassOutput:
        print("pass", flush=True)
        while sys.stdin.readline().strip() == "stop":
            self.generation.stop()
        return super().run(*inputs)


def read(name: str) -> dict[str, Any]:
    return make_traces.read_loop(TRACES / f"{name}.json")


def config_of(given: dict[str, Any]) -> GenerationConfig:
    names = {one.name for one in fields(SamplingConfig)}
    sampling = {name: value for name, value in given.items() if name in names}
    sampling["seed"] %= 1 << 64  # other languages have signed numbers
    return GenerationConfig(
        given["max_new_tokens"],
        SamplingConfig(**sampling),
        stop_token_ids=tuple(given["stop_token_ids"]),
        ignore_eos=given["ignore_eos"],
        speculative=given["speculative"],
        width=given.get("width"),
    )


def serve(trace: dict[str, Any]) -> str:
    """Answers requests until another trace is to be opened; its name, empty at the end."""
    spec = make_traces.spec_of(trace)
    engine = Watched(spec, trace["accuracy"], mixed=spec.deferred)
    with Session(engine) as session:
        for line in sys.stdin:
            request, _, given = line.strip().partition(" ")
            reply: dict[str, Any] = {}
            if request == "open":
                return given
            if request == "stop":
                engine.generation.stop()
                continue
            if request == "start":
                constraint = make_traces.constraint_of(trace)
                config = config_of(json.loads(given))
                engine.generation = session.generate(trace["prompt"], config, constraint=constraint)
            elif request == "next":
                piece = next(engine.generation, None)
                reply = {} if piece is None else {"token": piece.token, "source": piece.source}
            elif request == "finish":
                engine.generation.close()
            elif request == "statistics":
                reply = engine.generation.statistics.to_dict()
            else:
                raise ValueError(f"the peer has no request {request!r}")
            print(json.dumps(reply), flush=True)
    return ""


def main() -> None:
    name = sys.stdin.readline().strip().partition(" ")[2]
    while name:
        print("{}", flush=True)
        name = serve(read(name))


if __name__ == "__main__":
    main()
