"""Bundles for engines that a test brings: 64 letters are the vocabulary, and turns follow each other in the context.

Run: PYTHONPATH=src:tests/helpers python tests/helpers/letters_samples.py FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from bundle_samples import manifest_fields
from tokenizers import Tokenizer, decoders, models

from streamfuse.bundle import BundleWriter

LETTERS = [chr(ord("0") + i) for i in range(64)]
KEPT = {2: 2, 4: 4, 8: 6}  # nodes that survive, by width


def write_letters_bundle(path: Path, schedule: str) -> Path:
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    fields = manifest_fields()
    fields["model"].update(
        vocab_size=len(LETTERS), eos_token_ids=[],
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )  # fmt: skip
    fields["speculation"].update(num_streams=3, top_k=3, stream_vocab_size=len(LETTERS), schedule=schedule)
    fields["cache"].update(capacity=96)
    methods = {"prefill": (8, None), "decode": (1, None), **{f"verify_{rows}": (rows, KEPT[rows]) for rows in KEPT}}
    if schedule == "deferred":
        methods["streams"] = (1, None)
    fields["methods"] = {name: _method(*rows, schedule) for name, rows in methods.items()}
    fields["parity"] = dict.fromkeys((name for name in methods if name != "prefill"), fields["parity"]["decode"])
    with BundleWriter(path) as writer:
        (writer.folder / "model.pte").write_bytes(b"no graph")
        tokenizer.save(str(writer.folder / "tokenizer.json"))
        writer.write_manifest(**fields)
    return path


def _method(rows: int, keep: int | None, schedule: str) -> dict[str, Any]:
    return {
        "rows": rows, "keep": keep, "stream_nodes": keep if schedule == "fused" else None,
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": [rows]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [keep or rows, len(LETTERS)]}],
    }  # fmt: skip


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    Path(sys.argv[1]).mkdir(parents=True)
    for kind in ("fused", "deferred"):
        write_letters_bundle(Path(sys.argv[1], kind), kind)
