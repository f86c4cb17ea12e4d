"""Fuzz constraints: python tests/fuzz/grammars.py [--seconds 300 | --count N]

Grammars come from tests/helpers/hostile_grammars.py, by number. Each is refused in one line or makes a constraint; that
one is walked at random, where masks, single tokens, forced tokens and rollback must agree. All of it within a time and
little memory, on a small stack. Prints each finding, and exits with 1 where there is one.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from streamfuse.runtime.text import Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import fuzz_batches

_SECONDS = 60  # for one grammar, until its process is ended
_CALL = 1.0  # seconds of this process for one call
_MEMORY = 256 << 20  # beyond what a process has when it begins
_STACK = 256 << 10  # of the thread that calls, as small as an app's may be
_BATCH = 50  # grammars of one process
_STEPS = 12
T = TypeVar("T")


class Finding(Exception):
    pass


def within(what: str, body: Callable[[], T]) -> T:
    began = time.process_time()
    try:
        return body()
    finally:  # also where it refuses
        took = time.process_time() - began
        if took > _CALL * float(os.environ.get("STREAMFUSE_FUZZ_SLOWNESS", "1")):
            raise Finding(f"{what} takes {took:.1f} s")


def try_one(tokenizer: Tokenizer, number: int) -> None:
    import numpy as np
    from hostile_grammars import grammar

    from streamfuse.runtime.constraint import MAY_END, MUST_END
    from streamfuse.runtime.text import GrammarError, TextError

    rng = random.Random(number)
    kind, text = grammar(rng)

    def constraint():  # type: ignore[no-untyped-def]
        return tokenizer.constraint(**{kind: text})  # type: ignore[arg-type]

    def refused(message: str) -> None:
        if "\n" in message or "internal check" in message or "report this" in message or len(message) > 2_000:
            raise Finding(f"an unclear message: {message[:300]!r}")

    try:
        made = within("compiling", constraint)
        taken: list[int] = []
        for _ in range(_STEPS):
            state = within("state", made.state)
            forced = within("forced", lambda: made.forced(16))
            for place, token in enumerate(forced):
                if not made.allows([token])[0]:
                    raise Finding(f"forced token {place} is not allowed")
                made.accept(token)
            made.rollback(len(forced))
            few = np.array([rng.randrange(made.vocab_size) for _ in range(20)])
            alone = within("allows", lambda few=few: made.allows(few))
            mask = within("mask", made.mask)
            if (mask[few] != alone).any():
                raise Finding(f"mask and single tokens differ: {few[mask[few] != alone].tolist()} after {taken}")
            if state & MUST_END and mask.any():
                raise Finding("a text that must end goes on")
            if forced and (state & MAY_END or not mask[forced[0]]):
                raise Finding("a choice is called forced")
            allowed = np.flatnonzero(mask)
            if not len(allowed):
                break
            token = int(rng.choice(allowed))
            within("accept", lambda token=token: made.accept(token))
            taken.append(token)
            if rng.random() < 0.3:
                n = rng.randint(0, len(taken))
                within("rollback", lambda n=n: made.rollback(n))
                del taken[len(taken) - n :]
        again = constraint()
        for token in taken:
            again.accept(token)
        if again.state() != made.state() or (again.mask() != made.mask()).any():
            raise Finding(f"a rollback left something behind {taken}")
    except (GrammarError, TextError) as error:
        refused(str(error))


def work(first: int, count: int) -> None:
    from tokenizer_samples import llama_like, opened

    tokenizer = opened(llama_like(), eos=[2])
    tokenizer.constraint(regex="a").mask()
    fuzz_batches.limit_memory(_MEMORY + (64 << 20))  # the stack of the thread that compiles, and one that calls

    def finding(number: int) -> str | None:
        try:
            try_one(tokenizer, number)
        except Finding as finding:
            return str(finding)
        except Exception as error:
            return f"{type(error).__name__} {error}"[:500]
        return None

    threading.stack_size(_STACK)
    thread = threading.Thread(target=fuzz_batches.try_each, args=(first, count, _SECONDS, finding))
    thread.start()
    thread.join()


if __name__ == "__main__":
    sys.exit(fuzz_batches.run(__file__, __doc__, "grammars", _BATCH, work))
