"""Open damaged bundles and run what opens: python tests/helpers/fuzz_bundle.py FIRST COUNT

Number n is always the same damage. Each must end in one sentence of ours that names a file, or run. Prints one JSON
object per finding, `{"number", "damage", "found"}`; while it works, the number at hand is in standard error, for a
process that dies.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import bundle_mutations
import numpy as np
from bundle_samples import PrintableBackend

from streamfuse.bundle import BundleError, open_bundle
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.core import CoreError
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import TextError

_SECONDS = 10  # for one bundle
_MOST_MEMORY = 1 << 30  # beyond what the process has when it begins


class Hangs(BaseException):
    """No OSError, as TimeoutError is: that would be taken for a file that cannot be read."""


def main(arguments: list[str]) -> int:
    first, count = map(int, arguments)
    warnings.simplefilter("error")  # a warning of numpy is no sentence of ours
    memory = "/dev/shm"  # where there is one: a damaged bundle lives for milliseconds
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        seed = bundle_mutations.seed_bundle(Path(folder) / "seed")
        sentence_of(seed)  # loads what there is to load
        _bound_memory()
        for number in range(first, first + count):
            print(number, file=sys.stderr, flush=True)
            mutations = bundle_mutations.random_damage(np.random.default_rng(number), seed)
            found = finding(seed, mutations)
            if found is not None:
                print(json.dumps({"number": number, "damage": mutations, "found": found}), flush=True)
    return 0


def _bound_memory() -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MOST_MEMORY, now + _MOST_MEMORY))


def finding(seed: Path, mutations: list[list[Any]]) -> str | None:
    """What is wrong with how a damaged copy of `seed` is taken; None where all is well."""
    bundle = _copy(seed)
    try:
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(_SECONDS)
        try:
            bundle_mutations.damage(bundle, mutations)
        except Exception:
            return None  # the second mutation may not fit after the first
        problem = sentence_of(bundle)
        if problem is None or (problem.startswith(str(bundle)) and "\n" not in problem and len(problem) < 1000):
            return None
        return f"a sentence that names no file, or no single one: {problem}"
    except BaseException as error:
        signal.alarm(0)
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        _remove(bundle)


def sentence_of(folder: Path) -> str | None:
    """The error message of a bundle that cannot be used; None for one that was read whole, and drafted with."""
    try:
        bundle = open_bundle(folder)
        text, tables, spec = bundle.tokenizer, bundle.tables, bundle.spec()
    except BundleError as error:
        return _named(str(error), folder, "chat template")
    if spec.vocab_size > 4096 or spec.capacity > 4096 or spec.num_streams * spec.top_k > 4096:
        return None  # too much for the arithmetic model, and nothing that the reader could know to be wrong
    try:
        ids = text.encode_chat([{"role": "user", "content": "hi"}]) if text.can_chat else text.encode("hi")
    except TextError as error:
        return _named(str(error), folder, "chat template", "no chat template")
    refused = _draft(PrintableBackend(spec), tables, ids[-8:], spec.vocab_size)
    return refused and f"{folder}: {refused}"


def _named(sentence: str, folder: Path, *topics: str) -> str:
    """Sentences about the template name that, and not its file, which is the manifest."""
    if "internal check" in sentence or len(sentence) > 1000 or "\n" in sentence:
        raise AssertionError(f"text/ says: {sentence}")
    return f"{folder}: {sentence}" if any(topic in sentence for topic in topics) else sentence


def _draft(engine: Any, tables: Any, ids: list[int], vocab_size: int) -> str | None:
    """Generate a little, so that the tables are used; what the core refuses is its sentence."""
    prompt = [token % vocab_size for token in ids] or [0]
    try:
        with Session(engine, tables) as session:
            methods = ("decode", *engine.spec.widths, *(("streams",) if engine.spec.deferred else ()))
            session.core.set_costs(dict.fromkeys(methods, 1.0), frozen=True)
            session.generate(prompt, GenerationConfig(max_new_tokens=12)).finish()
    except CoreError as error:  # tables that do not fit the manifest, or streams that do not fit the tables
        return str(error)
    return None


def _copy(seed: Path) -> Path:
    bundle = seed.with_name("damaged")
    bundle.mkdir()
    for file in seed.iterdir():
        (bundle / file.name).write_bytes(file.read_bytes())
    return bundle


def _remove(bundle: Path) -> None:
    for file in bundle.iterdir():
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    bundle.rmdir()


def _late(*_: object) -> None:
    raise Hangs(f"nothing after {_SECONDS} seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
