"""Perplexity of texts through a bundle's own graphs: what the rounding of weights, activations and cache costs.

    python tools/perplexity.py build/demo --data dialogsum/train.jsonl --key dialogue --tokens 8000

Texts are read in passes of the widest method that prunes nothing, each row's logits against the token that follows. A
checkpoint folder in place of the bundle is read in PyTorch in float32, a .gguf file by llama.cpp (llama-cpp-python).
`--join N` joins texts with an empty line as long as they have at most N tokens together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_ROWS = 128  # logits at a time
Read = Callable[[np.ndarray], Iterator[np.ndarray]]  # token ids [n] -> their logits, in parts, but for the last one's


def log_probs_of(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Natural log-probabilities [n] of tokens [n] under logits [n, V]."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return shifted[np.arange(len(tokens)), tokens] - np.log(np.exp(shifted).sum(1))


@contextmanager
def of_bundle(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Read]]:
    """Tokenizer, longest text, and logits."""
    from streamfuse.api import load
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    with load(path) as model:
        text = model.tokenizer
    with ExecuTorchBackend(path) as backend:
        whole = ((rows, name) for name, (rows, keep) in backend.spec.widths.items() if rows == keep)
        rows, method = max(whole)

        def read(ids: np.ndarray) -> Iterator[np.ndarray]:
            backend.truncate(0)
            for start in range(0, len(ids) - 1, rows):
                own = ids[start : min(start + rows, len(ids) - 1)]
                causal = np.tril(np.ones((len(own), len(own)), bool))
                out = backend.run(method, own, np.arange(start, start + len(own)), causal, want_logits=True)
                backend.commit(range(len(own)))
                assert out.logits is not None
                yield out.logits

        yield text.encode, backend.spec.capacity, read


@contextmanager
def of_checkpoint(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Read]]:
    import torch

    from streamfuse.model.checkpoint import load_base
    from streamfuse.train.prompts import open_text

    model = load_base(path)

    def read(ids: np.ndarray) -> Iterator[np.ndarray]:
        with torch.inference_mode():
            yield from (part.numpy() for part in model(torch.from_numpy(ids[None, :-1]))[0].split(_ROWS))

    yield open_text(path, raw=True).encode, model.config.max_position_embeddings, read


@contextmanager
def of_gguf(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Read]]:
    import llama_cpp

    llama: Any = llama_cpp.Llama(str(path), n_ctx=1024, n_batch=_ROWS, logits_all=True, verbose=False)

    def read(ids: np.ndarray) -> Iterator[np.ndarray]:
        llama.reset()
        llama.eval(ids[:-1].tolist())
        scores = llama.scores[: len(ids) - 1]
        yield from (scores[start : start + _ROWS] for start in range(0, len(scores), _ROWS))

    yield lambda text: llama.tokenize(text.encode(), special=False), llama.n_ctx(), read


def texts_of(lines: Iterator[str], key: str, encode: Callable[[str], list[int]], longest: int) -> Iterator[list[int]]:
    """Token ids of each line's text, or of lines together that have at most `longest` tokens (0: of each)."""
    before: str | None = None
    for line in lines:
        value = json.loads(line)[key]
        if isinstance(value, list) or not longest:
            yield value if isinstance(value, list) else encode(value)
            continue
        joined = value if before is None else f"{before}\n\n{value}"
        if before is not None and len(encode(joined)) > longest:
            yield encode(before)
            joined = value
        before = joined
    if before is not None:
        yield encode(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a bundle, a checkpoint folder or a .gguf file")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines")
    parser.add_argument("--key", required=True, help="of the text, or of token ids, in each line")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--join", type=int, default=0, metavar="N")
    given = parser.parse_args()
    is_bundle = (given.model / "manifest.json").is_file()
    opened = of_gguf if given.model.suffix == ".gguf" else of_bundle if is_bundle else of_checkpoint
    total, count, longest = 0.0, 0, 0
    with opened(given.model) as (encode, capacity, read), given.data.open(encoding="utf-8") as lines:
        for text in texts_of(lines, given.key, encode, given.join):
            ids = np.array(text, np.int64)[:capacity]
            at = 1
            for logits in read(ids):
                total -= float(log_probs_of(logits, ids[at : at + len(logits)]).sum())
                at += len(logits)
            count += len(ids) - 1
            longest = max(longest, len(ids))
            if count >= given.tokens:
                break
    print(json.dumps({"perplexity": round(float(np.exp(total / count)), 4), "tokens": count, "longest": longest}))


if __name__ == "__main__":
    main()
