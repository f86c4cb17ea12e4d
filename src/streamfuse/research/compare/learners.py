"""The drafters of the comparison that learn online, each with its frozen twin, on engines of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from streamfuse.adapters import find
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bundle import Bundle
from streamfuse.research.acceptors import NamedAcceptor
from streamfuse.research.drafters.model import DraftModel
from streamfuse.research.files import adapter
from streamfuse.research.online import DraftModelStudent, Learner, Schedule, StreamsStudent
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.text import Tokenizer

from .bundles import DRAFT_LAYERS, Opened
from .measure import DataSet
from .methods import DRAFT, METHODS, ONLINE, ONLINE_DRAFT, ONLINE_STREAMS, Method, Parts
from .online import Pair, plain_answers, row, shifting
from .system import plain_system, system_of

SCHEDULES = dict.fromkeys((ONLINE_STREAMS, ONLINE_DRAFT), Schedule(every=4, replayed=2))  # few answers: learn often


def able(target: Bundle) -> list[str]:
    """The rows of `ONLINE` that this target can have: streams learn where their adapter leaves the base as it is."""
    from streamfuse.model.checkpoint import read_adapter

    manifest = target.manifest
    if (manifest.target, manifest.backend) != ("executorch", "kernels"):
        return []
    try:
        config = read_adapter(find(manifest.speculation.adapter or ""))[0]
    except FileNotFoundError:
        return [ONLINE_DRAFT]
    return [name for name in ONLINE if name != ONLINE_STREAMS or (config.adapter_rank and not config.base_rank)]


def rows(
    names: Sequence[str],
    target: Bundle,
    bundles: Path,
    here: Opened,
    data: Sequence[DataSet],
    settings: TaskSettings,
    text: Tokenizer,
    threads: int | None,
    costs: Mapping[str, Mapping[str, float]],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The rows of these names: what learns over a mix of prompts that shifts, each with its frozen twin."""
    visits = shifting(data)
    plain = plain_answers(plain_system(here.parts), visits, settings, progress)
    found = {}
    for name in names:
        with opened(name, target, bundles, here.parts, threads) as pair:
            found[name] = row(pair, visits, plain, settings, text, costs, here.extra[ONLINE[name]], progress)
    return found


@contextmanager
def opened(name: str, target: Bundle, bundles: Path, parts: Parts, threads: int | None) -> Iterator[Pair]:
    """One row of `ONLINE`, ready to learn; its files and engines live as long as the block.

    Args:
        bundles: folder of the other methods' bundles.
        parts: those of the run; its drafters are the frozen ones, and its target verifies what the draft model drafts.
    """
    method = next(one for one in METHODS if one.name == ONLINE[name])
    with tempfile.TemporaryDirectory(prefix="streamfuse-online-") as folder:
        make = _draft_model if name == ONLINE_DRAFT else _streams
        with make(method, target, bundles, Path(folder), parts, threads) as (learner, learning):
            yield Pair(name, method, learning, system_of(method, parts), learner.note, lambda: learner.updates)


@contextmanager
def _draft_model(
    method: Method, target: Bundle, bundles: Path, folder: Path, parts: Parts, threads: int | None
) -> Iterator[tuple[Learner, Any]]:
    from streamfuse.model.pull import resolve_model
    from streamfuse.research.first_layers import write_first_layers

    write_first_layers(resolve_model(target.manifest.model.name), DRAFT_LAYERS, folder / "checkpoint")
    student = DraftModelStudent(_model(folder / "checkpoint", adapter(DRAFT)))
    program, open_backend = bundles / DRAFT / "model.pte", partial(ExecuTorchBackend, num_threads=threads)
    own = DraftModel(open_backend(program))
    try:
        learner = Learner(student, program, folder, own.use, SCHEDULES[ONLINE_DRAFT], open_backend)
        mine = Parts(parts.backends, parts.tables, own)
        yield learner, lambda see: system_of(method, mine, acceptor=_asking(method), observe=see)
    finally:
        own.backend.close()


@contextmanager
def _streams(
    method: Method, target: Bundle, bundles: Path, folder: Path, parts: Parts, threads: int | None
) -> Iterator[tuple[Learner, Any]]:
    from streamfuse.model.pull import resolve_model

    student = StreamsStudent(
        _model(resolve_model(target.manifest.model.name), find(target.manifest.speculation.adapter or ""))
    )
    # The manifest's facts, as a program alone does not know which tokens end a text.
    open_backend = partial(ExecuTorchBackend, spec=target.spec(), num_threads=threads)
    engine = _Engine(open_backend(target.graph))
    try:
        learner = Learner(student, target.graph, folder, engine.use, SCHEDULES[ONLINE_STREAMS], open_backend)
        yield learner, lambda see: system_of(method, parts, engine.backend, _asking(method), see)
    finally:
        engine.backend.close()


class _Engine:
    """The target whose streams learn."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def use(self, backend: Backend) -> None:
        self.backend.close()
        self.backend = backend


def _model(checkpoint: Path, streams: Path) -> Any:
    from streamfuse.model.checkpoint import load_base, load_stream_fused

    return load_stream_fused(load_base(checkpoint), streams, merge=False)


def _asking(method: Method) -> NamedAcceptor:
    """The method's acceptor, asking for logits: what the target says where a draft is rejected is what is learnt."""
    acceptor: Any = method.acceptor()
    acceptor.needs_logits = True
    return cast("NamedAcceptor", acceptor)
