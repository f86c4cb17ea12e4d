"""A tiny checkpoint with an adapter on disk, plans for it, and helpers that drive a backend row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiny
import torch
from bundle_samples import VOCAB_SIZE, byte_tokenizer
from torch import nn

from streamfuse.export.adapter import resolve_for_adapter
from streamfuse.export.config import ExportConfig
from streamfuse.export.integers import to_q4_1, to_q8_0
from streamfuse.export.resolve import resolve
from streamfuse.model.checkpoint import save_adapter
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import DECODE, PREFILL, Backend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.session import Generation, Session

GROUP = 32
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "eos_token_id": [3, 257],
    "bos_token_id": 1,
}
STREAMS: dict[str, Any] = {"num_streams": 3, "num_msa_layers": 2, "pruner_rank": 2, "parent_rank": 4}
STREAM_VOCAB = torch.arange(0, VOCAB_SIZE, 2)
TEXT = [int(id_) for id_ in byte_tokenizer().encode("the keeper climbed the steps to light the lamp again").ids]

Logits = npt.NDArray[np.float32]


def tiny_model(streams: dict[str, Any] | None = None, **changes: Any) -> StreamFused:
    """Random weights of a sensible size: norms near 1, products that keep the scale, on the grids of a GGUF."""
    base = tiny.base(**{**SIZES, **changes})
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if parameter.ndim == 1:
                near_one = "norm" in name or name.endswith("layer_scalar")
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter) if near_one else parameter * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * (0.4 if "embed" in name else parameter.shape[1] ** -0.5))
        for module in base.modules():
            if isinstance(module, nn.Linear) and module is not base.lm_head:
                module.weight.copy_(to_q4_1(module.weight).dequantized())
        for table in {id(t): t for t in (base.embed_tokens.weight, base.lm_head.weight)}.values():
            table.copy_(to_q8_0(table).dequantized())
    model = tiny.fused(base, STREAM_VOCAB, **{**STREAMS, **(streams or {})})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("base.") and parameter.ndim > 1:
                parameter.mul_(0.2)
    return model


def write_checkpoint(folder: Path, model: StreamFused, **changes: Any) -> tuple[Path, Path]:
    """A Hugging Face folder with a tokenizer, and an adapter file."""
    tiny.write_base(folder, model.base, **{**SIZES, **changes})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    adapter = folder / "tiny.safetensors"
    save_adapter(model, adapter, {"steps": "7"})
    return folder, adapter


# Generates in a process and in a fork of it, which prints what it raises; the argument is a bundle.
FORKED = """
import os, sys
import streamfuse

with streamfuse.load(sys.argv[1], threads=2) as model:
    model.generate([1, 2, 3], max_new_tokens=2)
    child = os.fork()
    if child == 0:
        try:
            model.generate([1, 2, 3], max_new_tokens=2)
        except Exception as error:
            os.write(1, str(error).encode())
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
"""


def config_for(checkpoint: tuple[Path, Path | None], output_dir: Path, **changes: Any) -> ExportConfig:
    """All kinds of methods: kept whole, and pruned from 12 nodes to 6, of which 3 carry streams."""
    settings: dict[str, Any] = {
        "max_context_len": 128,
        "prefill_len": 8,
        "widths": (4, 12),
        "prune_keep": 6,
        "schedule": "fused",
        "stream_nodes": {12: 3},
        "top_k": 5,
        "default_width": 12,
    }
    if changes.get("schedule") == "deferred":
        del settings["stream_nodes"]
    folder, adapter = checkpoint
    config = ExportConfig(folder, adapter, output_dir, **{**settings, **changes})
    is_read = config.task or (adapter is not None and adapter.is_file())
    return resolve_for_adapter(config) if is_read else resolve(config)


def prefill(backend: Backend, tokens: Sequence[int]) -> None:
    """Commit `tokens` from an empty cache, by `prefill` alone."""
    backend.truncate(0)
    for start in range(0, len(tokens), backend.spec.prefill_rows):
        part = np.array(tokens[start : start + backend.spec.prefill_rows])
        causal = np.tril(np.ones((len(part), len(part)), np.bool_))
        backend.run(PREFILL, part, np.arange(start, start + len(part)), causal)
        backend.commit(range(len(part)))


def decode_rows(backend: Backend, tokens: Sequence[int], start: int = 0) -> Logits:
    """Logits [len(tokens), V] of plain decoding from cache position `start` on."""
    backend.truncate(start)
    rows = []
    for token in tokens:
        out = backend.run(DECODE, np.array([token]), np.array([backend.length]), np.ones((1, 1), np.bool_), True)
        rows.append(np.array(out.logits[0]))
        backend.commit([0])
    return np.stack(rows)


def verify_rows(backend: Backend, method: str, tokens: Sequence[int], start: int = 0) -> Logits:
    """The same through a verify method.

    Every pass takes a tree of the next tokens with a wrong sibling beside each, as a drafter would propose; of a pruned
    tree as many tokens count as survive on the right path.
    """
    backend.truncate(start)
    rows: list[Logits] = []
    width = backend.spec.rows(method)
    while len(rows) < len(tokens):
        tree, path = _tree(tokens[len(rows) :], width, backend.spec.vocab_size)
        out = backend.run(method, tree.tokens, backend.length + tree.depths, tree.ancestors(), True)
        places = {node: i for i, node in enumerate(out.kept.tolist())}
        survived = [node for node in path if node in places]
        assert survived == path[: len(survived)]
        assert survived[0] == 0
        rows += [np.array(out.logits[places[node]]) for node in survived]
        backend.commit(survived)
    return np.stack(rows)


def text_of(session: Session, prompt: Sequence[int], count: int, **settings: Any) -> Generation:
    """`count` tokens after the prompt; `settings` are fields of GenerationConfig."""
    generation = session.generate(prompt, GenerationConfig(count, ignore_eos=True, **settings))
    generation.finish()
    return generation


def _tree(tokens: Sequence[int], width: int, vocab_size: int) -> tuple[Tree, list[int]]:
    """A chain of the next tokens, each (the root excepted) followed by a wrong sibling while there is room."""
    nodes, parents, path = [tokens[0]], [-1], [0]
    for token in tokens[1:]:
        if len(nodes) == width:
            break
        parent = path[-1]
        path.append(len(nodes))
        nodes.append(token)
        parents.append(parent)
        if len(nodes) < width:
            nodes.append((token + 1) % vocab_size)
            parents.append(parent)
    return Tree.of(nodes, parents), path
