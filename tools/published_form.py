"""Tokens per call by candidates per stream, with pruning and without, as Speculative Streaming reports them.

An exact replay of an adapter's own greedy answers, in PyTorch. With k candidates a tree is the full one, of
1 + k + k^2 + ... nodes, or the most probable `--most-nodes` of them.

    python tools/published_form.py e2e-published --data e2e_nlg/test.jsonl --limit 60 --top-k 1 2 3 4 \\
        --prune-threshold 0 0.01 0.1

Streams that are told the next token, as a pass of streams alone tells them, and not told, as in a pass that verifies:

    python tools/published_form.py sql-lossless --data sql_context/test.jsonl --limit 60 --top-k 32 --most-nodes 16 \\
        --untold

The same on a tuned base whose weights are merged and quantized again, as bundles of the fused schedule have them:

    python tools/published_form.py sql-lossless --data sql_context/test.jsonl --limit 60 --top-k 32 --most-nodes 16 \\
        --untold --requantized q4_1

Speed over plain decoding, streams alone, always in the widest verify pass of bundles of that adapter:

    streamfuse export -o build/k3 --adapter e2e-published --top-k 3 --widths 40 --prune-keep 40:40 --schedule fused \\
        --stream-nodes all --max-context-len 512
    python tools/published_form.py e2e-published --data e2e_nlg/test.jsonl --limit 8 --clock build/k3
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from streamfuse import load
from streamfuse.adapters import find
from streamfuse.bench.ablations.measures import PrunedTree
from streamfuse.bench.quality.scores import quality
from streamfuse.bench.quantization import rounded
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.export.schemes import GRIDS
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.model.low_rank import projection, projections_of
from streamfuse.model.pull import resolve_model
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.reference.tree import Tree
from streamfuse.train.evaluate import draft_tables, own_text, proposals, replay_proposals
from streamfuse.train.formats import Example
from streamfuse.train.prompts import open_text
from streamfuse.train.readers import encode_prompt, merged, read_samples, spread


class Counted:
    """A pruner that counts the nodes it leaves."""

    def __init__(self, pruned: PrunedTree) -> None:
        self.pruned, self.nodes, self.trees = pruned, 0, 0

    def __call__(self, example: Example, root: int, tree: Tree) -> Tree:
        left = self.pruned(example, root, tree)
        self.nodes, self.trees = self.nodes + len(left), self.trees + 1
        return left


def full_tree(top_k: int, streams: int) -> int:
    """Nodes of the tree of all combinations, the root counted."""
    return sum(top_k**depth for depth in range(streams + 1))


def requantized(model: StreamFused, grid: str) -> StreamFused:
    """This model with the base's adapters merged and the weights of all layers on a grid of the kernels."""
    model = model.merged()
    for block in model.base.blocks:
        for name in projections_of(block):
            layer = projection(block, name)
            layer.weight = nn.Parameter(rounded(layer.weight, grid)[0], requires_grad=False)
    return model


def rows(
    model: StreamFused, answers: Sequence[Example], top_ks: Sequence[int], most: int, thresholds: Sequence[float],
    told: bool,
) -> None:  # fmt: skip
    """Print a row per k and threshold."""
    found, tables = list(proposals(model, answers, max(top_ks), told=told)), draft_tables(model)
    for top_k in top_ks:
        width = min(most, full_tree(top_k, model.streams_config.num_streams))
        best = [replace(one, stream_ids=one.stream_ids[..., :top_k], stream_log_probs=one.stream_log_probs[..., :top_k])
                for one in found]  # fmt: skip
        for threshold in thresholds:
            cut = Counted(PrunedTree(model, width, threshold)) if threshold else None
            one = replay_proposals(best, tables, (width,), cut)[width]
            row = {
                "told": told, "top_k": top_k, "nodes": width, "prune_threshold": threshold,
                "kept": round(cut.nodes / cut.trees, 1) if cut else width,
                "call_reduction_ratio": round(one.call_reduction_ratio, 3),
                "acceptance_per_depth": [round(share, 2) for share in one.acceptance_per_depth],
            }  # fmt: skip
            print(json.dumps(row), flush=True)


def by_the_clock(bundle: str, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> dict[str, Any]:
    """Tokens per second of plain and of speculative decoding, which take turns, and tokens per pass."""
    tokens, ms, passes = 0, {True: 0.0, False: 0.0}, 0
    with load(bundle) as model:
        width = max(method.rows for method in model.manifest.verify_methods.values())
        for prompt in prompts:
            ids = {}
            for speculative in (True, False):
                model.reset()
                generation = model.stream(prompt, max_new_tokens=max_new_tokens, temperature=0.0, width=width,
                                          speculative=speculative, sources=["streams"])  # fmt: skip
                generation.finish()
                found, ids[speculative] = generation.statistics, generation.token_ids
                ms[speculative] += sum(took for phase, took in found.time_ms.items() if phase != "prefill")
                passes += found.target_forward_passes if speculative else 0
            if ids[True] != ids[False]:
                raise RuntimeError(f"{bundle}: plain and speculative outputs differ")
            tokens += len(ids[True])
    return {
        "bundle": bundle, "width": width, "tokens_per_pass": round(tokens / passes, 2),
        "plain_token_per_sec": round(1000 * tokens / ms[False]), "over_plain": round(ms[False] / ms[True], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", help="name of a shipped one, or a file")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--top-k", type=int, nargs="+", default=[3])
    parser.add_argument("--most-nodes", type=int, default=64)
    parser.add_argument("--prune-threshold", type=float, nargs="+", default=[0.0])
    parser.add_argument("--clock", nargs="+", metavar="BUNDLE", help="measure the speed of these bundles only")
    parser.add_argument("--untold", action="store_true", help="measure streams that are not told the next token too")
    parser.add_argument("--requantized", choices=list(GRIDS), help="merge the base's adapters, then round to this grid")
    args = parser.parse_args()
    folder = resolve_model(DEFAULT_MODEL)
    adapter = find(args.adapter)
    if args.clock:
        text = open_text(folder, adapter)
        prompts = [encode_prompt(sample, text) for sample in spread(merged(read_samples(args.data)), args.limit)]
        for bundle in args.clock:
            print(json.dumps(by_the_clock(bundle, prompts, args.max_new_tokens)), flush=True)
        return
    model = load_stream_fused(load_base(folder), adapter)
    model = requantized(model, args.requantized) if args.requantized else model
    text = open_text(folder, adapter)
    samples = spread(merged(read_samples(args.data)), args.limit)
    answers = own_text(model, [encode_prompt(sample, text) for sample in samples], args.max_new_tokens)
    words = [text.decode(answer.input_ids[answer.start :]) for answer in answers]
    print(json.dumps({"answers": len(answers), "quality": quality(samples, words)}), flush=True)
    with torch.inference_mode():
        for told in (True, False) if args.untold else (True,):
            rows(model, answers, args.top_k, args.most_nodes, args.prune_threshold, told)


if __name__ == "__main__":
    main()
