"""Static trees from measured acceptance: what a bundle's streams or heads propose along its own greedy texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamfuse.research.trees import Float64Array, Shape, medusa_shape, rank_accuracy, sized_shape
from streamfuse.runtime.backend import DECODE, Backend, BoolArray
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.loop import Loop

from .methods import MEDUSA, STREAMS, STREAMS_OF, TARGET, Parts

_NEW_TOKENS, _RANKS = 48, 8
_ITSELF: BoolArray = np.ones((1, 1), np.bool_)


def accuracy(
    backend: Backend, prompts: Sequence[Sequence[int]], given_parent: bool, new_tokens: int = _NEW_TOKENS
) -> Float64Array:
    """float64 [G, 8]: how often the candidate of each stream and rank is the text's token (`trees.rank_accuracy`).

    The texts are the model's own greedy answers, decoded plainly with the streams of every token. ValueError where no
    text is longer than the streams reach.
    """
    reach = backend.spec.num_streams
    candidates, truth = [], []
    for prompt in prompts:
        backend.truncate(0)
        Loop(backend, list(prompt), GenerationConfig(new_tokens, speculative=False)).prefill()
        tokens, ids = [int(prompt[-1])], []
        for _ in range(min(new_tokens, backend.spec.capacity - len(prompt))):
            out = backend.run(DECODE, np.array(tokens[-1:]), np.array([backend.length]), _ITSELF)
            backend.commit([0])
            ids.append(np.array(backend.streams(0, int(out.best[0])).stream_ids[0][:, :_RANKS]))
            tokens.append(int(out.best[0]))
            if tokens[-1] in backend.spec.eos_token_ids:
                break
        # Streams of the token at place p propose those at p + 2 and on; the one at p + 1 is the root of their tree.
        for place in range(len(tokens) - 1 - reach):
            candidates.append(ids[place])
            truth.append(tokens[place + 2 : place + 2 + reach])
    backend.truncate(0)
    if not candidates:
        raise ValueError(f"no answer to calibrate with is longer than {reach} tokens")
    return rank_accuracy(np.stack(candidates), np.array(truth, np.int64), given_parent)


def shapes(parts: Parts, prompts: Sequence[Sequence[int]], nodes: int, costs: Mapping[str, float]) -> dict[str, Shape]:
    """By bundle: Medusa's greedy rule for its heads, of `nodes` nodes; Sequoia's dynamic programme for streams.

    The size of Sequoia's is the one that pays best by `costs` (`costs.measured`), among the verify methods of
    at most `nodes` nodes. Those that prune are left out, as the programme counts every node as verified.
    """
    backend, streams = parts.backends[STREAMS], costs[STREAMS_OF[STREAMS]]
    verify = {
        rows: costs[f"{TARGET}: {method}"]
        for method, (rows, keep) in backend.spec.widths.items()
        if rows <= nodes and keep == rows
    }
    found = {STREAMS: sized_shape(accuracy(backend, prompts, given_parent=True), verify, lambda depth: streams)}
    if MEDUSA in parts.backends:
        found[MEDUSA] = medusa_shape(accuracy(parts.backends[MEDUSA], prompts, given_parent=False), nodes)
    return found
