"""Perplexity of texts through a bundle's own graphs: what the rounding of weights, activations and cache costs.

    python tools/perplexity.py build/demo --data dialogsum/train.jsonl --key dialogue --tokens 8000

A bundle's texts are scored by `Model.score`. A checkpoint folder in place of the bundle is read in PyTorch in float32,
a .gguf file by llama.cpp (llama-cpp-python).
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
Score = Callable[[np.ndarray], float]  # token ids [n] -> log-probability of all but the first, each after those before


def log_probs_of(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Natural log-probabilities [n] of tokens [n] under logits [n, V]."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return shifted[np.arange(len(tokens)), tokens] - np.log(np.exp(shifted).sum(1))


def score_of(logits: Iterator[np.ndarray], ids: np.ndarray) -> float:
    """The log-probability of ids[1:] under their logits, in parts [rows, V]."""
    total, at = 0.0, 1
    for part in logits:
        total += float(log_probs_of(part, ids[at : at + len(part)]).sum())
        at += len(part)
    return total


@contextmanager
def of_bundle(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Score]]:
    """Tokenizer, longest text, and score."""
    from streamfuse.api import load

    with load(path) as model:
        yield model.tokenizer.encode, model.context_length, lambda ids: model.score(ids[:1], ids[1:]).log_prob


@contextmanager
def of_checkpoint(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Score]]:
    import torch

    from streamfuse.model.checkpoint import load_base
    from streamfuse.train.prompts import open_text

    model = load_base(path)

    def score(ids: np.ndarray) -> float:
        with torch.inference_mode():
            logits = model(torch.from_numpy(ids[None, :-1]))[0]
        return score_of((part.numpy() for part in logits.split(_ROWS)), ids)

    yield open_text(path, raw=True).encode, model.config.max_position_embeddings, score


@contextmanager
def of_gguf(path: Path) -> Iterator[tuple[Callable[[str], list[int]], int, Score]]:
    import llama_cpp

    llama: Any = llama_cpp.Llama(str(path), n_ctx=1024, n_batch=_ROWS, logits_all=True, verbose=False)

    def score(ids: np.ndarray) -> float:
        llama.reset()
        llama.eval(ids[:-1].tolist())
        scores = llama.scores[: len(ids) - 1]
        return score_of((scores[start : start + _ROWS] for start in range(0, len(scores), _ROWS)), ids)

    yield lambda text: llama.tokenize(text.encode(), special=False), llama.n_ctx(), score


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
    with opened(given.model) as (encode, capacity, score), given.data.open(encoding="utf-8") as lines:
        for text in texts_of(lines, given.key, encode, given.join):
            ids = np.array(text, np.int64)[:capacity]
            if len(ids) < 2:  # the first token follows nothing
                continue
            total -= score(ids)
            count += len(ids) - 1
            longest = max(longest, len(ids))
            if count >= given.tokens:
                break
    print(json.dumps({"perplexity": round(float(np.exp(total / count)), 4), "tokens": count, "longest": longest}))


if __name__ == "__main__":
    main()
