"""Looking into the core, for tests, benches and experiments: core/streamfuse_low.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamfuse.runtime.core import SOURCES, CoreSession, view
from streamfuse.runtime.structures import Results


class _Tree(ctypes.Structure):
    _fields_ = [("n", c_int64), *((n, c_void_p) for n in ("tokens", "parents", "log_probs", "sources"))]


class _Pass(ctypes.Structure):
    _fields_ = [
        ("method", c_char_p),
        ("reason", c_char_p),
        ("tree", _Tree),
        ("results", POINTER(Results)),
        *((n, c_void_p) for n in ("walk_rows", "walk_tokens")),
        *((n, c_int64) for n in ("walk_n", "delivered", "cached")),
    ]


OBSERVER = ctypes.CFUNCTYPE(None, c_void_p, POINTER(_Pass))
STRUCTURES: dict[str, type[ctypes.Structure]] = {"sf_tree": _Tree, "sf_pass": _Pass}
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # as in runtime/core.py
    "sf_sequence_observe": (None, [c_void_p, OBSERVER, c_void_p]),
}


@dataclass(frozen=True, slots=True)
class Pass:
    """All that one pass did, copied: the drafted tree (rows, the root first) and the accepted path."""

    method: str
    reason: str | None
    tokens: list[int]
    parents: list[int]
    log_probs: list[float]
    sources: list[str]
    kept: list[int]
    walk_rows: list[int]
    walk_tokens: list[int]
    delivered: int
    cached: int

    @property
    def depths(self) -> list[int]:
        """Of each node; the root has 0."""
        depths = [0] * len(self.parents)
        for row, parent in enumerate(self.parents[1:], start=1):
            depths[row] = depths[parent] + 1
        return depths

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return max(self.depths)

    @classmethod
    def of(cls, one: _Pass) -> Pass:
        n, walk, results = one.tree.n, one.walk_n, one.results.contents
        kept = view(results.kept, np.int64, results.survivors).tolist() if results.kept else [0]
        return cls(
            one.method.decode(),
            one.reason.decode() if one.reason else None,
            view(one.tree.tokens, np.int64, n).tolist(),
            view(one.tree.parents, np.int64, n).tolist(),
            view(one.tree.log_probs, np.float64, n).tolist(),
            [SOURCES[source] for source in view(one.tree.sources, np.uint8, n).tolist()],
            kept,
            view(one.walk_rows, np.int32, walk).tolist(),
            view(one.walk_tokens, np.int64, walk).tolist(),
            one.delivered,
            one.cached,
        )


def observe(session: CoreSession, observer: Callable[[Pass], None] | None) -> None:
    """`observer` sees every pass after its commit; None ends it. What it raises, the session's next call raises."""

    def see(_: Any, one: Any) -> None:
        try:
            assert observer is not None
            observer(Pass.of(one.contents))
        except BaseException as error:  # nothing may cross C
            session.failure.append(error)

    function = OBSERVER() if observer is None else OBSERVER(see)
    with session.handle as handle:
        _typed(session.library, "sf_sequence_observe")(handle, function, None)
        session.kept["observer"] = function


def _typed(library: ctypes.CDLL, name: str) -> Callable[..., None]:
    function = getattr(library, name)
    function.restype, function.argtypes = SIGNATURES[name]
    found: Callable[..., None] = function
    return found
