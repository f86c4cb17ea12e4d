"""External systems for a child process: one that answers, and those that die, fall silent or write what is no reply."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

from streamfuse.bench.shared.systems import Answer, Request

MS_PER_TOKEN = 8.0


class External:
    """Answers as `tests/bench/test_bench_tasks.py`'s systems do until it has given `good` answers; then `fault`."""

    def __init__(self, name: str, fault: str, good: int) -> None:
        self.name, self._fault, self._good = name, fault, good

    def answer(self, request: Request) -> Answer:
        self._good -= 1
        if self._good < 0:
            fail(self._fault)
        print("what a native library prints is no reply")
        return Answer((9,) * request.max_new_tokens, MS_PER_TOKEN * request.max_new_tokens, self._said())

    def _said(self) -> dict[str, Any] | None:
        return {"process": os.getpid(), "compile_ms": 0.0, "cpu_ms": 0.0}


def fail(fault: str) -> None:
    if fault == "SIGSEGV":
        ctypes.string_at(0)  # a native read of address 0, as in a faulty kernel
    if fault in ("SIGKILL", "SIGABRT"):
        os.kill(os.getpid(), signal.Signals[fault])
    if fault == "exit":
        print("the context is gone", file=sys.stderr, flush=True)
        os._exit(3)
    if fault == "silence":
        time.sleep(600)
    if fault == "sentence":
        raise ValueError("the file is no model")
    if fault == "garbage":
        os.write(int(sys.argv[1]), b"\xff\x00 no JSON\n")
    if fault == "list":
        os.write(int(sys.argv[1]), b"[1, 2]\n")
    if fault == "tokens":
        os.write(int(sys.argv[1]), b'{"token_ids": ["a"], "decode_ms": 1}\n')
    if fault == "time":
        os.write(int(sys.argv[1]), b'{"token_ids": [1], "decode_ms": NaN}\n')


def open_system(name: str, fault: str = "", good: int = 1_000_000) -> External:
    """`good` below 0: the fault comes while the system opens."""
    if good < 0:
        fail(fault)
    return External(name, fault, good)
