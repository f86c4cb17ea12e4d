"""Bundles of tiny models with random weights for tools/equality.py; they disagree with most drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from bundle_samples import CHAT_TEMPLATE, byte_tokenizer, edit_manifest
from equality_constraints import CONSTRAINTS
from equality_engines import BundleEngine
from export_samples import STREAM_VOCAB, config_for, tiny_model, write_checkpoint
from tiny import fused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from streamfuse.export.pipeline import run_export
from streamfuse.model.checkpoint import save_adapter
from streamfuse.model.config import StreamConfig


def tiny_engine(name: str, folder: Path, prompts: Sequence[str], threads: Sequence[int]) -> BundleEngine:
    """Exports the bundle `name` of `TINY` into a new folder; this takes seconds."""
    return BundleEngine(
        name, TINY[name](folder), folder, prompts, threads, token_limits=(1, 2, 5, 20, 60, 150), constrained_limit=120
    )


def _export(folder: Path, seed: int, merges: int, tasks: bool = False, layers: int = 3, **changes: Any) -> Path:
    """A bundle; tokens are bytes, and `merges` frequent strings of JSON."""
    torch.manual_seed(seed)
    tokenizer = json_tokenizer(merges)
    size = tokenizer.get_vocab_size()
    sizes = {"vocab_size": size, "eos_token_id": [3, size - 1], "max_position_embeddings": 512}
    sizes["num_hidden_layers"] = layers
    model = tiny_model(**sizes)
    checkpoint = write_checkpoint(folder / "checkpoint", model, **sizes)
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    if tasks:
        changes["task"] = _tasks(folder, model)
    config = config_for(checkpoint, folder / "bundle", **changes)
    run_export(config, lambda word: None)
    edit_manifest(config.output_dir, lambda manifest: manifest["model"].update(chat_template=CHAT_TEMPLATE))
    return config.output_dir


def _tasks(folder: Path, model: Any) -> dict[str, Path]:
    """Adapters: streams alone, streams of a model that is tuned too, and a tuned model without streams."""
    streams = {"num_streams": 2, "num_msa_layers": 1, "pruner_rank": 2, "parent_rank": 4}
    tasks = {
        "frozen": streams,
        "tuned": {**streams, "base_rank": 2, "base_layers": 2, "next_token_rank": 2},
        "lora": asdict(StreamConfig.without(base_rank=2, base_layers=1)),
    }
    for name, settings in tasks.items():
        vocabulary = STREAM_VOCAB if settings["num_streams"] else STREAM_VOCAB[:0]
        template = CHAT_TEMPLATE.replace("assistant", name)
        save_adapter(fused(model.base, vocabulary, **settings), folder / f"{name}.safetensors",
                     {"chat_template": template})  # fmt: skip
    return {name: folder / f"{name}.safetensors" for name in tasks}


def json_tokenizer(merges: int) -> Any:
    """The byte tokenizer of the tests, with `merges` merges that are learnt on the constraints themselves."""
    if not merges:
        return byte_tokenizer()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([constraint.text for constraint in CONSTRAINTS], trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


TINY: dict[str, Callable[[Path], Path]] = {
    "tiny-fused": lambda folder: _export(folder, 5, 0, schedule="fused", max_context_len=256),
    "tiny-deferred": lambda folder: _export(folder, 8, 500, schedule="deferred", max_context_len=512),
    "tiny-both": lambda folder: _export(folder, 9, 200, schedule="both", max_context_len=384),
    # Each task has graphs of its own, so fewer layers.
    "tiny-tasks": lambda folder: _export(folder, 7, 0, tasks=True, layers=2, schedule="deferred", max_context_len=320),
    "tiny-onnx": lambda folder: _export(
        folder, 6, 0, schedule="deferred", max_context_len=256, target="onnx", dtype="float32", quantize="int4"
    ),
}
