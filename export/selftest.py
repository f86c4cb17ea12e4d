"""The self-test of a bundle and the parity gate: the same passes on two backends, compared output by output.

Every pass is a call of the backend protocol (run, commit), so what is proven is what a runtime does. A pass of `prefill` shows in the
logits of those that read its cache rows. The inputs and the expected outputs go into the bundle as `selftest.npz`, for any runtime
in any language to repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import DECODE, PREFILL, Backend, ModelSpec
from streamfuse.runtime.draft import grow
from streamfuse.runtime.tree import Tree

WALK = "walk"  # the name of the pass over natural text among the results
_HEAD_TOKENS = 16  # of the text, by prefill

Arrays = dict[str, npt.NDArray[np.generic]]


class ParityError(RuntimeError):
    """An emitted graph is too far from the model; the message names method, figure and floor."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A named floor: signal-to-noise of centred logits in dB, and the share of rows whose best token is the same."""

    name: str
    snr_db: float
    top1_agreement: float


# One floor per precision, against the float32 model. Graphs with int8 activations cannot be held to more by comparing them with PyTorch
# running the same integers: a difference in the last bit flips a rounding, which flips more in the next layer, and after thirty layers two
# correct engines differ by as much as the rounding itself (docs/quantization.md). A single product agrees to 130 dB.
FLOORS = {"none": Floor("float32", 80.0, 1.0), "8da4w": Floor("8da4w", 15.0, 0.85)}


@dataclass
class PassResult:
    """What one pass said about its real nodes: logits by node number, streams likewise."""

    method: str
    logits: dict[int, npt.NDArray[np.float32]]
    streams: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = field(default_factory=dict)


def run_script(backend: Backend, text: list[int], trees: dict[str, Tree]) -> list[PassResult]:
    """Prefill a head of `text`, walk over the rest with chains, then run decode and every verify method over its end.

    The walk (`WALK`) gives one row per token of natural text, enough rows to say how often the best token agrees.
    """
    backend.truncate(0)
    tail = max(len(tree.tokens) for tree in trees.values()) + 1
    head, body = text[:_HEAD_TOKENS], text[_HEAD_TOKENS : len(text) - tail]
    for start in range(0, len(head), backend.spec.prefill_rows):
        part = head[start : start + backend.spec.prefill_rows]
        causal = np.tril(np.ones((len(part), len(part)), np.bool_))
        backend.run(PREFILL, np.array(part), np.arange(start, start + len(part)), causal)
        backend.commit(range(len(part)))
    unpruned = [(rows, name) for name, (rows, keep) in backend.spec.widths.items() if rows == keep]
    step, method = max(unpruned, default=(1, DECODE))
    walk = PassResult(WALK, {})
    for start in range(0, len(body), step):
        part = body[start : start + step]
        causal = np.tril(np.ones((len(part), len(part)), np.bool_))
        positions = np.arange(len(head) + start, len(head) + start + len(part))
        out = backend.run(method, np.array(part), positions, causal)
        assert out.logits is not None
        walk.logits.update({start + int(node): np.array(out.logits[i]) for i, node in enumerate(out.kept)})
        backend.commit(range(len(part)))
    return [walk, *(_run_tree(backend, method, tree, len(head) + len(body)) for method, tree in trees.items())]


def _run_tree(backend: Backend, method: str, tree: Tree, length: int) -> PassResult:
    backend.truncate(length)
    out = backend.run(method, tree.tokens, length + tree.depths, tree.ancestors())
    assert out.logits is not None
    kept = out.kept.tolist()
    result = PassResult(method, {node: np.array(out.logits[i]) for i, node in enumerate(kept)})
    if out.stream_ids is not None and out.stream_log_probs is not None and method != DECODE:
        for i, node in enumerate(kept):
            result.streams[node] = np.array(out.stream_ids[i]), np.array(out.stream_log_probs[i])
    return result


def script_trees(spec: ModelSpec, text: list[int]) -> dict[str, Tree]:
    """Trees for the end of `text`. For decode a root; for each verify method a full tree whose best path is the text itself, with wrong siblings beside it."""
    longest = max(rows for rows, _ in spec.widths.values())
    tail = text[len(text) - longest - 1 :]
    trees = {DECODE: Tree.root(tail[0])}
    depth = min(4, longest - 1)
    wrong = [[tail[1 + d], *((tail[1 + d] + 7 * (i + 1)) % spec.vocab_size for i in range(7))] for d in range(depth)]
    ids = np.array(wrong, np.int64)
    scores = np.tile(np.log(np.linspace(0.5, 0.05, 8)), (depth, 1)).astype(np.float32)
    for method, (rows, _) in spec.widths.items():
        trees[method] = grow(tail[0], ids, scores, rows, depth, None)
    return trees


def compare(results: list[PassResult], reference: list[PassResult]) -> dict[str, dict[str, float]]:
    """Per method: SNR of the centred logits in dB, greatest difference, agreement of the best token, agreement of the streams' best.

    A pruner may keep other nodes where scores are close; nodes kept by both sides are compared, their share is reported.
    """
    figures = {}
    for ours, theirs in zip(results, reference, strict=True):
        nodes = sorted(set(ours.logits) & set(theirs.logits))
        a = np.stack([ours.logits[n] for n in nodes]).astype(np.float64)
        b = np.stack([theirs.logits[n] for n in nodes]).astype(np.float64)
        a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
        noise = float(((a - b) ** 2).sum())
        row = {
            "snr_db": round(min(10 * float(np.log10((b**2).sum() / noise)), 200.0), 1) if noise else 200.0,
            "max_abs_difference": float(np.abs(a - b).max()),
            "top1_agreement": float((a.argmax(1) == b.argmax(1)).mean()),
            "nodes": float(len(nodes)),
            "kept_agreement": len(nodes) / len(theirs.logits),
        }
        if ours.streams and theirs.streams:
            same = [ours.streams[n][0][:, 0] == theirs.streams[n][0][:, 0] for n in nodes]
            row["stream_top1_agreement"] = float(np.mean(same))
        figures[ours.method] = row
    return figures


def check(figures: dict[str, dict[str, float]], floor: Floor) -> None:
    """Raises ParityError below the floor: SNR for every method, agreement of the best token over the walk (a few rows say little)."""
    for method, row in figures.items():
        if row["snr_db"] < floor.snr_db:
            raise ParityError(
                f"{method}: snr_db is {row['snr_db']:.3g}, the floor {floor.name!r} asks for {floor.snr_db:.3g}"
            )
    agreement = figures[WALK]["top1_agreement"]
    if agreement < floor.top1_agreement:
        raise ParityError(
            f"{WALK}: top1_agreement is {agreement:.3g}, the floor {floor.name!r} asks for {floor.top1_agreement:.3g}"
        )


def to_arrays(text: list[int], trees: dict[str, Tree], results: list[PassResult]) -> Arrays:
    """The content of selftest.npz: `text`, and per method `M.tokens, M.parents, M.nodes, M.logits, M.stream_ids, M.stream_log_probs`."""
    arrays: Arrays = {"text": np.array(text, np.int64)}
    for result in results:
        if result.method == WALK:  # twenty megabytes of logits would prove nothing more
            continue
        tree, nodes = trees[result.method], sorted(result.logits)
        arrays[f"{result.method}.tokens"] = tree.tokens
        arrays[f"{result.method}.parents"] = tree.parents
        arrays[f"{result.method}.nodes"] = np.array(nodes, np.int64)
        arrays[f"{result.method}.logits"] = np.stack([result.logits[n] for n in nodes])
        if result.streams:
            arrays[f"{result.method}.stream_ids"] = np.stack([result.streams[n][0] for n in nodes])
            arrays[f"{result.method}.stream_log_probs"] = np.stack([result.streams[n][1] for n in nodes])
    return arrays
