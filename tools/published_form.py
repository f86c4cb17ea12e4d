"""Tokens per call by candidates per stream, with pruning and without, as Speculative Streaming reports them.

An exact replay of an adapter's own greedy answers, in PyTorch. With k candidates a tree is the full one, of
1 + k + k^2 + ... nodes, or the most probable `--most-nodes` of them.

    python tools/published_form.py e2e-published --data e2e_nlg/test.jsonl --limit 60 --top-k 1 2 3 4 \\
        --prune-threshold 0 0.01 0.1

Streams that are told the next token, as a pass of streams alone tells them and as a pass that verifies cannot:

    python tools/published_form.py sql-both --data sql_context/test.jsonl --limit 60 --top-k 32 --most-nodes 16 --untold
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from streamfuse.adapters import find
from streamfuse.bench.ablations.measures import PrunedTree
from streamfuse.bench.quality.scores import quality
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter
from streamfuse.model.pull import resolve_model
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.reference.tree import Tree
from streamfuse.train.evaluate import Proposals, draft_tables, own_text, proposals, replay_proposals
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


def rows(
    model: StreamFused, found: Sequence[Proposals], top_ks: Sequence[int], most: int, thresholds: Sequence[float]
) -> list[dict[str, Any]]:
    """A row per k and threshold."""
    result, tables = [], draft_tables(model)
    for top_k in top_ks:
        width = min(most, full_tree(top_k, model.streams_config.num_streams))
        best = [replace(one, stream_ids=one.stream_ids[..., :top_k], stream_log_probs=one.stream_log_probs[..., :top_k])
                for one in found]  # fmt: skip
        for threshold in thresholds:
            cut = Counted(PrunedTree(model, width, threshold)) if threshold else None
            one = replay_proposals(best, tables, (width,), cut)[width]
            result.append({
                "top_k": top_k, "nodes": width, "prune_threshold": threshold,
                "kept": round(cut.nodes / cut.trees, 1) if cut else width,
                "call_reduction_ratio": round(one.call_reduction_ratio, 3),
                "acceptance_per_depth": [round(share, 2) for share in one.acceptance_per_depth],
            })  # fmt: skip
            print(json.dumps(result[-1]), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", help="name of a shipped one, or a file")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--top-k", type=int, nargs="+", default=[3])
    parser.add_argument("--most-nodes", type=int, default=64)
    parser.add_argument("--prune-threshold", type=float, nargs="+", default=[0.0])
    parser.add_argument("--untold", action="store_true", help="do not tell the streams the next token")
    args = parser.parse_args()
    folder = resolve_model(DEFAULT_MODEL)
    adapter = find(args.adapter)
    model = load_stream_fused(load_base(folder), adapter)
    text = open_text(folder, read_adapter(adapter)[2].get("chat_template"))
    samples = spread(merged(read_samples(args.data)), args.limit)
    answers = own_text(model, [encode_prompt(sample, text) for sample in samples], args.max_new_tokens)
    words = [text.decode(answer.input_ids[answer.start :]) for answer in answers]
    print(json.dumps({"answers": len(answers), "quality": quality(samples, words)}), flush=True)
    most = max(args.top_k)
    with torch.inference_mode():
        found = list(proposals(model, answers, most, told=not args.untold))
        rows(model, found, args.top_k, args.most_nodes, args.prune_threshold)


if __name__ == "__main__":
    main()
