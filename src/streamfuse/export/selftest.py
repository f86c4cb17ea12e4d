"""The self-test of a bundle and the parity gate: the same passes on two backends, compared output by output.

Every pass is a call of the backend protocol (run, commit), as in a runtime. A `prefill` is checked through the logits
of the methods that read its cache rows. The inputs and expected outputs are stored in the bundle as `selftest.npz`, so
that a runtime in any language can repeat the test.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.options import NamesOptions
from streamfuse.runtime.backend import DECODE, PREFILL, STREAMS, Backend, ModelSpec
from streamfuse.runtime.reference.draft import grow
from streamfuse.runtime.reference.tree import Tree

TEXT = (
    "The lighthouse stood at the edge of the cliff, and every evening the keeper climbed the one hundred and twelve "
    "steps to light the lamp. Ships far out at sea counted the seconds between its flashes: 3, 2, 1, and then the "
    "light again. One winter the lamp went dark, and the whole village walked up the hill with lanterns in their hands "
    "until the keeper found the broken gear and mended it. Nobody in the harbour forgot that night, and when the "
    "keeper grew old the children took turns on the stairs, because a light that goes out once may go out again."
)
WALK = "walk"  # name of the passes over natural text in the results
HEAD_TOKENS = 16  # tokens of the text for prefill
_KEPT = 0.5  # a pruner must keep this share of the reference's nodes; the others may differ where scores are close
WALK_TOKENS = 64  # with fewer rows, a share of best tokens would be too noisy for a floor

Logits = npt.NDArray[np.float32]


class ParityError(NamesOptions):
    """An emitted graph differs too much from the model; the message names method, value and floor."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A named floor: SNR of centred logits in dB, and the share of rows with the same best token."""

    name: str
    snr_db: float
    top1_agreement: float


# Floors for lowering, compared with PyTorch on the same weights; and for integer weights, compared with the float32
# model ("int8" is both, "int4" the latter). The loss of integer weights depends on the checkpoint: one that was on an
# int4 grid before (a GGUF) loses little, any other loses what four bits cost, so "int4" only distinguishes a model from
# noise. XNNPACK's products with int8 activations cannot be held to more than 15 dB: a difference in the last bit
# changes how a value is rounded, which changes more in the next layer, and after thirty layers two correct engines
# differ by as much as the rounding itself (docs/export.md).
FLOORS = {
    floor.name: floor
    for floor in (
        Floor("float32", 80.0, 1.0),
        Floor("float16", 35.0, 0.95),
        Floor("16a8w", 30.0, 0.95),
        Floor("int8", 18.0, 0.9),
        Floor("int4", 5.0, 0.5),
        Floor("8da4w", 15.0, 0.85),
        Floor("kernels", 20.0, 0.9),
    )
}


@dataclass(frozen=True, slots=True)
class Miss:
    """A result below its floor."""

    method: str
    metric: str
    measured: float
    asked: float
    floor: str

    def __str__(self) -> str:
        return (
            f"{self.method}: {self.metric} is {self.measured:.3g}, the floor {self.floor!r} asks for {self.asked:.3g}"
        )


@dataclass
class PassResult:
    """The results of one pass for its real nodes: logits and best token by node number, and streams (ids,
    log-probabilities) too."""

    method: str
    logits: dict[int, Logits]
    best: dict[int, int] = field(default_factory=dict)
    streams: dict[int, tuple[npt.NDArray[np.int64], Logits]] = field(default_factory=dict)

    def numbers(self) -> list[Logits]:
        """All logits and log-probabilities."""
        return [*self.logits.values(), *(log_probs for _, log_probs in self.streams.values())]


@dataclass(frozen=True, slots=True)
class Script:
    """The passes: prefill the beginning of `text`, chains over its middle, then one tree per method at its end."""

    text: list[int]
    trees: dict[str, Tree]

    @classmethod
    def of(cls, spec: ModelSpec, text: list[int]) -> Script:
        """A root for decode; for each verify method a full tree over the end of `text`, `text` itself its best path.

        Raises:
            ValueError: the text is empty.
        """
        if not text:
            raise ValueError("the tokenizer returns no tokens for the self-test's text")
        longest = max(rows for rows, _ in spec.widths.values())
        wanted = min(HEAD_TOKENS + WALK_TOKENS + longest + 1, spec.capacity)
        text = (text * (wanted // len(text) + 1))[:wanted]
        tail = text[len(text) - longest - 1 :]
        depth = min(4, longest - 1)
        wrong = [
            [tail[1 + d], *((tail[1 + d] + 7 * (i + 1)) % spec.vocab_size for i in range(7))] for d in range(depth)
        ]
        ids = np.array(wrong, np.int64)
        scores = np.tile(np.log(np.linspace(0.5, 0.05, 8)), (depth, 1)).astype(np.float32)
        trees = {DECODE: Tree.root(tail[0])}
        for method, (rows, _) in spec.widths.items():
            trees[method] = grow(tail[0], ids, scores, rows, depth, None)
        return cls(text, trees)

    def run(self, backend: Backend) -> list[PassResult]:
        """Run all passes. The walk has one row per token of natural text, enough to measure how often the best token
        agrees."""
        tail = max(len(tree.tokens) for tree in self.trees.values()) + 1
        head = min(HEAD_TOKENS, (len(self.text) - tail) // 2)
        end = len(self.text) - tail
        backend.truncate(0)
        for start in range(0, head, backend.spec.prefill_rows):
            _run_chain(backend, PREFILL, self.text[start : min(start + backend.spec.prefill_rows, head)])
        walk = PassResult(WALK, {})
        unpruned = [(rows, name) for name, (rows, keep) in backend.spec.widths.items() if rows == keep]
        step, method = max(unpruned, default=(1, DECODE))
        for start in range(head, end, step):
            logits = _run_chain(backend, method, self.text[start : min(start + step, end)])
            walk.logits.update({start + i: row for i, row in enumerate(logits)})
        results = [walk]
        for method, tree in self.trees.items():
            results.append(_run_tree(backend, method, tree, end))
            if method == DECODE and backend.spec.deferred:
                backend.commit([0])
                out = backend.streams(0, self.text[end + 1])
                streams = {0: (out.stream_ids[0].copy(), out.stream_log_probs[0].copy())}
                results.append(PassResult(STREAMS, {}, streams=streams))
        return results

    def to_arrays(self, results: list[PassResult]) -> dict[str, Any]:
        """The contents of selftest.npz: arrays `text` and, per method M, `M.tokens, M.parents, M.nodes, M.logits` and,
        with streams, `M.stream_nodes, M.stream_ids, M.stream_log_probs`.

        The walk is not included: its megabytes of logits would add nothing.
        """
        arrays: dict[str, Any] = {"text": np.array(self.text, np.int64)}
        for result in results:
            if result.method == WALK:
                continue
            nodes = sorted(result.logits or result.streams)
            arrays[f"{result.method}.nodes"] = np.array(nodes, np.int64)
            if result.method in self.trees:
                arrays[f"{result.method}.tokens"] = self.trees[result.method].tokens
                arrays[f"{result.method}.parents"] = self.trees[result.method].parents
                arrays[f"{result.method}.logits"] = np.stack([result.logits[n] for n in nodes])
            if result.streams:
                carriers = sorted(result.streams)
                arrays[f"{result.method}.stream_nodes"] = np.array(carriers, np.int64)
                arrays[f"{result.method}.stream_ids"] = np.stack([result.streams[n][0] for n in carriers])
                arrays[f"{result.method}.stream_log_probs"] = np.stack([result.streams[n][1] for n in carriers])
        return arrays


def _run_chain(backend: Backend, method: str, tokens: list[int]) -> Logits:
    """Run a chain of tokens after the committed ones, and commit them; logits [n, V], none for prefill."""
    positions = np.arange(backend.length, backend.length + len(tokens))
    causal = np.tril(np.ones((len(tokens), len(tokens)), np.bool_))
    out = backend.run(method, np.array(tokens), positions, causal, want_logits=True)
    logits = np.zeros((0, 0), np.float32) if out.logits is None else np.zeros((len(tokens), out.logits.shape[1]))
    if out.logits is not None:
        logits[out.kept] = out.logits
    backend.commit(range(len(tokens)))
    return logits.astype(np.float32)


def _run_tree(backend: Backend, method: str, tree: Tree, length: int) -> PassResult:
    backend.truncate(length)
    out = backend.run(method, tree.tokens, length + tree.depths, tree.ancestors(), want_logits=True)
    result = PassResult(method, {})
    for i, node in enumerate(out.kept.tolist()):
        if out.logits is not None:
            result.logits[node], result.best[node] = np.array(out.logits[i]), int(out.best[i])
        if i < len(out.stream_ids) and method != DECODE:
            result.streams[node] = np.array(out.stream_ids[i]), np.array(out.stream_log_probs[i])
    return result


def compare(results: list[PassResult], reference: list[PassResult]) -> dict[str, dict[str, float]]:
    """Per method: SNR in dB of centred logits (of log-probabilities for `streams`), maximum difference, agreement of
    the best token, and the share of rows whose `best` is the argmax of the engine's own logits. For streams: SNR in
    dB of their log-probabilities and agreement of their best token.

    If scores are close, a pruner may keep other nodes; nodes that both sides keep are compared.
    """
    figures = {}
    for ours, theirs in zip(results, reference, strict=True):
        carriers = sorted(set(ours.streams) & set(theirs.streams))
        if ours.method == STREAMS:
            row = _signal([ours.streams[n][1] for n in carriers], [theirs.streams[n][1] for n in carriers])
        else:
            nodes = sorted(set(ours.logits) & set(theirs.logits))
            row = _signal([ours.logits[n] for n in nodes], [theirs.logits[n] for n in nodes])
            row["nodes"], row["kept_agreement"] = float(len(nodes)), len(nodes) / len(theirs.logits)
            if ours.best:  # compares values, not ids: rounding can cause ties
                row["own_best"] = float(np.mean([ours.logits[n][ours.best[n]] == ours.logits[n].max() for n in nodes]))
        if carriers:
            row["stream_snr_db"] = _signal(
                [ours.streams[n][1] for n in carriers], [theirs.streams[n][1] for n in carriers]
            )["snr_db"]
            same = [ours.streams[n][0][:, 0] == theirs.streams[n][0][:, 0] for n in carriers]
            row["stream_top1_agreement"] = float(np.mean(same))
            if not all(np.isfinite(ours.streams[n][1]).all() for n in carriers):
                row["snr_db"] = math.nan  # fails every floor in `check`
        figures[ours.method] = row
    return figures


def _signal(ours: list[Logits], theirs: list[Logits]) -> dict[str, float]:
    """Statistics of rows [..., V], each centred by its mean."""
    a, b = (np.stack(rows).astype(np.float64) for rows in (ours, theirs))
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    noise = float(((a - b) ** 2).sum())
    return {
        "snr_db": round(min(10 * float(np.log10((b**2).sum() / noise)), 200.0), 1) if noise else 200.0,
        "max_abs_difference": float(np.abs(a - b).max()),
        "top1_agreement": float((a.argmax(-1) == b.argmax(-1)).mean()),
    }


def check(figures: dict[str, dict[str, float]], floor: Floor, allow_parity_below: Collection[str] = ()) -> list[Miss]:
    """Compare results with the floor: SNR for every method and its streams; top-1 agreement for the walk only, because
    a tree has too few rows for it. The engine's best token must be the argmax of its own logits, and a pruner must keep
    at least half of the nodes that the reference keeps.

    Args:
        allow_parity_below: names of floors whose misses are returned. A result that is not finite is never accepted.

    Raises:
        ParityError: below the floor.
    """
    least = {"snr_db": floor.snr_db, "stream_snr_db": floor.snr_db, "own_best": 1.0, "kept_agreement": _KEPT}
    asked = {method: {name: value for name, value in least.items() if name in row} for method, row in figures.items()}
    results = [(method, metric, value) for method, metrics in asked.items() for metric, value in metrics.items()]
    results.append((WALK, "top1_agreement", floor.top1_agreement))
    missed = [
        Miss(method, metric, figures[method][metric], value, floor.name)
        for method, metric, value in results
        if not figures[method][metric] >= value  # written so that NaN fails
    ]
    for miss in missed:
        if not math.isfinite(miss.measured):
            raise ParityError(str(miss))
        if floor.name not in allow_parity_below:
            raise ParityError(f"{miss}; --allow-parity-below {floor.name} exports the bundle anyway and records this")
    return missed
