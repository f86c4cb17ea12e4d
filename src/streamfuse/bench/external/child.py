"""Systems in a process of their own: native code of others that crashes must not take the run with it, and what memory
a system takes is that of its process.

`python -m streamfuse.bench.external.child` is that process. It reads a line of JSON per request from standard input
and writes a line per reply to a pipe of its own, because native libraries print what they like to standard output.
Times are taken in the child around the work itself, so that no figure contains the pipe.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from streamfuse.bench.shared.machine import peak_resident_bytes
from streamfuse.bench.shared.processes import end_with_parent, ending
from streamfuse.bench.shared.systems import Answer, ExternalSystemDied, ExternalSystemError, Request, System

_ANSWER_S, _OPEN_S, _STOP_S = 600.0, 1800.0, 10.0  # opening may quantize or load gigabytes
_MOST_BYTES = 64 << 20  # of a reply
_MOST_WORDS = 200  # characters of what a child wrote last


class Child:
    """A process that opens systems and answers with them; a context manager that ends it.

    Once it has ended, every system in it raises the same `ExternalSystemDied`.

    Args:
        name: of the program, for errors.
        answer_s: seconds for one answer.
        open_s: seconds to open one system.
    """

    def __init__(self, name: str, answer_s: float = _ANSWER_S, open_s: float = _OPEN_S) -> None:
        self._name, self._answer_s, self._open_s = name, answer_s, open_s
        self._process: subprocess.Popen[bytes] | None = None
        self._replies = -1
        self._rest = b""
        self._reason: str | None = None

    def __enter__(self) -> Child:
        self._said = tempfile.TemporaryFile()
        self._replies, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs)], stdin=subprocess.PIPE, stdout=self._said,
                stderr=self._said, pass_fds=(theirs,), preexec_fn=end_with_parent(),
                start_new_session=True,  # a terminal's Ctrl-C is for the bench, which ends the child itself
            )  # fmt: skip
        finally:
            os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._end()
        os.close(self._replies)
        self._said.close()

    def run(self, function: str, /, **arguments: Any) -> None:
        """Call a "module:function" in the child. Arguments are JSON.

        Raises:
            ExternalSystemError: the function's own sentence.
            ExternalSystemDied: the process ended, or did not reply as agreed.
        """
        self._ask({"run": function, "arguments": arguments}, self._open_s)

    def open(self, name: str, function: str, /, **arguments: Any) -> ChildSystem:
        """The system of this name, which the function returns in the child. Raises as `run` does."""
        self._ask({"open": name, "run": function, "arguments": arguments}, self._open_s)
        return ChildSystem(name, self)

    def answer(self, name: str, request: Request) -> Answer:
        """Raises as `run` does."""
        plain = asdict(request) | {"prompt_ids": [int(token) for token in request.prompt_ids]}
        reply = self._ask({"answer": name, "request": plain}, self._answer_s)
        tokens, ms, statistics = reply.get("token_ids"), reply.get("decode_ms"), reply.get("statistics")
        if (
            not isinstance(tokens, list)
            or not all(type(token) is int for token in tokens)
            or not isinstance(ms, (int, float))
            or not (math.isfinite(ms) and ms >= 0)
            or not (statistics is None or isinstance(statistics, dict))
        ):
            self._fail("replied with something that is no answer")
        return Answer(tuple(tokens), float(ms), statistics)

    def peak_bytes(self) -> int:
        """The largest resident memory of the process so far, including mapped files. Raises as `run` does."""
        peak = self._ask({"peak": True}, self._answer_s).get("peak_bytes")
        if type(peak) is not int:
            self._fail("replied with something that is no size")
        return peak

    def _ask(self, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if self._reason is not None:
            raise ExternalSystemDied(self._reason)
        assert self._process is not None, "asked inside the block"
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):  # it has ended, which the missing reply shows
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        line = self._line(seconds)
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self._fail("replied with something that is no JSON object")
        if "error" in reply:
            raise ExternalSystemError(str(reply["error"]))
        return reply

    def _line(self, seconds: float) -> bytes:
        """The next line of the child; ExternalSystemDied where it does not come."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self._fail(f"gave no reply within {seconds:g} s and was stopped")
            more = os.read(self._replies, 1 << 16)
            if not more:
                self._fail(None)
            self._rest += more
            if len(self._rest) > _MOST_BYTES:
                self._fail("replied without an end")
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _fail(self, what: str | None) -> NoReturn:
        """ExternalSystemDied with what it did, or None: with how it ended."""
        assert self._process is not None, "it was asked something"
        if what is None:
            try:
                what = ending(self._process.wait(_STOP_S))
            except subprocess.TimeoutExpired:
                what = "closed its pipe and was stopped"
        words = self._last_words()
        self._end()
        self._reason = f"{self._name} {what}" + (f" ({words})" if words else "")
        raise ExternalSystemDied(self._reason)

    def _end(self) -> None:
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):  # what was still to be written to a process that has ended
            self._process.stdin.close()
        self._process.kill()  # it holds nothing that must be put away
        self._process.wait()

    def _last_words(self) -> str:
        """The last line that the child wrote to standard output or error."""
        self._said.seek(0)
        lines = [line for line in self._said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip()[:_MOST_WORDS] if lines else ""


class ChildSystem:
    """One way to answer, of those that a child opened."""

    def __init__(self, name: str, child: Child) -> None:
        self.name, self._child = name, child

    def answer(self, request: Request) -> Answer:
        return self._child.answer(self.name, request)


def _serve(systems: dict[str, System], asked: Mapping[str, Any]) -> dict[str, Any]:
    if "run" in asked:
        module, _, function = asked["run"].partition(":")
        made = getattr(import_module(module), function)(**asked["arguments"])
        if "open" in asked:
            systems[asked["open"]] = made
        return {}
    if "peak" in asked:
        return {"peak_bytes": peak_resident_bytes()}
    answer = systems[asked["answer"]].answer(Request(**asked["request"]))
    return {**asdict(answer), "token_ids": [int(token) for token in answer.token_ids]}


def main() -> None:
    systems: dict[str, System] = {}
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as replies:
        for line in sys.stdin:
            try:
                reply = _serve(systems, json.loads(line))
            except Exception as error:  # any error of external code is reported to the benchmark
                known = isinstance(error, (ValueError, ImportError, OSError))
                reply = {"error": str(error) if known else f"{type(error).__name__}: {error}"}
            print(json.dumps(reply, default=_number), file=replies, flush=True)


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


if __name__ == "__main__":
    main()
