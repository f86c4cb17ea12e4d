"""Peak memory of each method: a process of its own opens what the method needs, answers one prompt, and says its most.

What is counted is the resident size: Python, numpy and the engine's library, caches, and the pages of mapped weights
that were touched. Plain decoding's own figure stands in the same table, so that the difference can be seen.

`python -m streamfuse.research.compare.memory` is that process: it reads a `Work` as JSON and prints bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.bench.shared.machine import peak_resident_bytes
from streamfuse.bench.shared.processes import ending
from streamfuse.bench.shared.systems import Request, System
from streamfuse.bundle import open_bundle
from streamfuse.engines import engines_of
from streamfuse.research.trees import Shape
from streamfuse.runtime.reference.draft import DraftTables
from streamfuse.runtime.session import Session

from .bundles import parts_of
from .core import CORE_OURS, CORE_PLAIN, CoreSystem
from .methods import DRAFT, STREAMS, TABLES, Method, named
from .system import system_of


@dataclass(frozen=True, slots=True)
class Work:
    """What a process is to do.

    Attributes:
        method: a name of `METHODS`, or of a system of the core.
        folders: bundles by name; `STREAMS` is the target's.
        shapes: static trees by bundle.
    """

    method: str
    folders: Mapping[str, str]
    threads: int | None
    shapes: Mapping[str, Shape]
    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int


def peak_memory(
    names: Sequence[str],
    folders: Mapping[str, Path],
    threads: int | None,
    shapes: Mapping[str, Shape],
    request: Request,
    progress: Callable[[str], None] = lambda line: None,
    without: Callable[[str], None] = lambda line: None,
) -> dict[str, int]:
    """Bytes by name of a method, or of a system of the core. `without` gets a sentence where one has none."""
    found = {}
    paths = {bundle: str(folder.resolve()) for bundle, folder in folders.items()}
    for name in names:
        progress(f"memory of {name}")
        asked = [int(token) for token in request.prompt_ids]
        work = Work(name, paths, threads, shapes, asked, request.max_new_tokens, request.temperature, request.seed)
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(asdict(work)), capture_output=True, text=True
        )
        last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
        if done.returncode == 0 and last and last[0].isdigit():
            found[name] = int(last[0])
        else:
            words = f" ({last[0]})" if last else ""
            without(f"Without the memory of {name}: its process {ending(done.returncode)}{words}")
    return found


def bundles_of(method: Method) -> set[str]:
    """The bundles whose engines a method runs."""
    return {method.bundle, *(name for name in method.needs if name == DRAFT)}


@contextmanager
def _system(work: Work) -> Iterator[System]:
    target = open_bundle(work.folders[STREAMS], verify=False)  # whoever asks has verified them
    if work.method in (CORE_PLAIN, CORE_OURS):
        with Session(engines_of(target, work.threads)(), target.tables) as session:
            yield CoreSystem(work.method, session, work.method == CORE_OURS)
        return
    method = named([work.method])[-1]
    opened = {name: open_bundle(work.folders[name], verify=False) for name in bundles_of(method)}
    # Reading the tables touches all of them, so methods without them get empty ones.
    tables = target.tables if TABLES in method.needs else None
    tables_of = DraftTables.load(tables, target.draft) if tables else _no_tables()
    with parts_of(opened, work.threads, tables_of) as parts:
        parts.shapes = {name: tuple(map(tuple, shape)) for name, shape in work.shapes.items()}
        yield system_of(method, parts)


def _no_tables() -> DraftTables:
    none: Any = np.zeros((0, 0), np.float32)
    return DraftTables.of(none.astype(np.float16), none, none, np.zeros(0, np.int32))


def main() -> None:
    work = Work(**json.load(sys.stdin))
    with _system(work) as system:
        system.answer(Request(work.prompt_ids, work.max_new_tokens, work.temperature, work.seed))
        print(peak_resident_bytes())


if __name__ == "__main__":
    main()
