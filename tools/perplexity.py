"""Perplexity of texts through a bundle's own graphs: what the rounding of weights, activations and cache costs.

    python tools/perplexity.py build/demo --data dialogsum/train.jsonl --key dialogue --tokens 8000

Texts are read in passes of the widest method that prunes nothing, each row's logits against the token that follows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from streamfuse.api import load
from streamfuse.runtime.backends.executorch import ExecuTorchBackend


def log_probs_of(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Natural log-probabilities [n] of tokens [n] under logits [n, V]."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return shifted[np.arange(len(tokens)), tokens] - np.log(np.exp(shifted).sum(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="JSON lines")
    parser.add_argument("--key", required=True, help="of the text, or of token ids, in each line")
    parser.add_argument("--tokens", type=int, default=8000)
    given = parser.parse_args()
    with load(given.bundle) as model:
        text = model.tokenizer
    total, count, longest = 0.0, 0, 0
    with ExecuTorchBackend(given.bundle) as backend:
        spec = backend.spec
        whole = ((rows, name) for name, (rows, keep) in spec.widths.items() if rows == keep)
        rows, method = max(whole)
        for line in given.data.open(encoding="utf-8"):
            value = json.loads(line)[given.key]
            ids = np.array(value if isinstance(value, list) else text.encode(value), np.int64)[: spec.capacity]
            backend.truncate(0)
            for start in range(0, len(ids) - 1, rows):
                own = ids[start : min(start + rows, len(ids) - 1)]
                causal = np.tril(np.ones((len(own), len(own)), bool))
                out = backend.run(method, own, np.arange(start, start + len(own)), causal, want_logits=True)
                backend.commit(range(len(own)))
                total -= float(log_probs_of(out.logits, ids[start + 1 : start + 1 + len(own)]).sum())
                count += len(own)
            longest = max(longest, len(ids))
            if count >= given.tokens:
                break
    print(json.dumps({"perplexity": round(float(np.exp(total / count)), 4), "tokens": count, "longest": longest}))


if __name__ == "__main__":
    main()
