"""A small valid bundle for tests of the bundle and of the command line; no weights, no engine."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from streamfuse.bundle import Bundle, BundleWriter
from streamfuse.runtime.backend import PassOutput

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CAPACITY = 64
WIDTHS = (4, 8)
IM_START, IM_END = 256, 257
VOCAB_SIZE = 258


def byte_tokenizer() -> Tokenizer:
    """One token per byte, id = byte value in the order of the byte-level alphabet, then the two chat marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def list_file(bundle: Path, name: str, data: bytes) -> None:
    """Put a file into the bundle, and what the manifest says of it."""
    (bundle / name).write_bytes(data)
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: facts}))


def manifest_fields() -> dict[str, Any]:
    """Fields for `BundleWriter.write_manifest`."""

    def method(rows: int, keep: int | None) -> dict[str, Any]:
        return {
            "rows": rows,
            "keep": keep,
            "stream_nodes": keep,
            "inputs": [{"name": "input_ids", "dtype": "int64", "shape": [rows]}],
            "outputs": [{"name": "logits", "dtype": "float32", "shape": [keep or rows, VOCAB_SIZE]}],
        }

    plain = {"scheme": "float32", "bits": 32, "group_size": None, "symmetric": None}
    return copy.deepcopy(
        {
            "exporter_version": "0.1.0",
            "target": "executorch",
            "backend": "xnnpack",
            "kernels": True,
            "required_operators": ["streamfuse::tree_attention.out"],
            "model": {
                "name": "test/bytes",
                "architecture": "LlamaForCausalLM",
                "source": "made by a test",
                "license": "apache-2.0",
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 8,
                "hidden_size": 32,
                "vocab_size": VOCAB_SIZE,
                "parameters": 12345,
                "bos_token_id": None,
                "eos_token_ids": [IM_END],
                "chat_template": CHAT_TEMPLATE,
            },
            "methods": {
                "prefill": method(8, None),
                "decode": method(1, None),
                **{f"verify_{width}": method(width, width // 2 if width > 4 else None) for width in WIDTHS},
            },
            "speculation": {
                "num_streams": 2,
                "top_k": 3,
                "num_msa_layers": 1,
                "prune_layer": 1,
                "stream_vocab_size": VOCAB_SIZE,
                "parent_rank": 0,
                "adapter": None,
                "extra_parameters": 99,
                "default_width": 8,
                "schedule": "fused",
            },
            "cache": {"layout": "position_head_dim", "capacity": CAPACITY, "dtype": "float32"},
            "quantization": dict.fromkeys(("embedding", "attention", "mlp", "head", "streams"), plain),
            "sampling_defaults": {"temperature": 0.0, "max_new_tokens": 16},
            "parity": {
                name: {"floor": "float32", "metrics": {"max_abs_difference": 1e-5}}
                for name in ("decode", *(f"verify_{width}" for width in WIDTHS))
            },
        }
    )


def write_tokenizer(folder: Path) -> None:
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def write_bundle(path: Path, **changes: Any) -> Path:
    """A valid bundle at `path`; its graph is a few bytes of nothing."""
    with BundleWriter(path) as writer:
        (writer.folder / "model.pte").write_bytes(b"not a graph" * 100)
        write_tokenizer(writer.folder)
        writer.write_manifest(**{**manifest_fields(), **changes})
    return path


def edit_manifest(bundle: Path, edit: Any) -> None:
    """Change the manifest behind the writer's back; `edit` gets the dictionary and changes it in place."""
    path = bundle / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


LETTERS = [byte_tokenizer().token_to_id(letter) for letter in "abcdefgh"]


class PrintableBackend(fakes.ArithmeticBackend):
    """The arithmetic model over the letters of the byte tokenizer only, so that its text can be compared."""

    def run(self, *arguments: Any, **settings: Any) -> PassOutput:
        output = super().run(*arguments, **settings)
        if output.logits is None:
            return output
        logits = output.logits.copy()
        logits[:, LETTERS] += 100.0
        return replace(output, logits=logits, best=logits.argmax(axis=1))


class SavingBackend(PrintableBackend):
    """An engine whose cache can be saved: eight bytes a token."""

    def cache_bytes(self, length: int) -> int:
        return 8 * length

    def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
        for token in self.cache[:length]:
            write(token.to_bytes(8, "little"))

    def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
        self.cache = [int.from_bytes(read(8), "little") for _ in range(length)]


def fake_engines(
    kind: Callable[..., fakes.ArithmeticBackend] = fakes.ArithmeticBackend,
) -> tuple[list[fakes.ArithmeticBackend], Callable[..., Callable[[], fakes.ArithmeticBackend]]]:
    """The list of the engines that it makes, and a replacement for `streamfuse.engines.engines_of`."""
    made: list[fakes.ArithmeticBackend] = []

    def engine(bundle: Bundle) -> fakes.ArithmeticBackend:
        made.append(kind(bundle.spec()))
        return made[-1]

    return made, lambda bundle, *_: lambda bundle=bundle: engine(bundle)


def write_sized_bundle(path: Path, sizes: dict[str, int]) -> Path:
    """A bundle whose parts have these bytes and as many parameters, and whose verify_8 carries streams of two nodes."""

    def say_sizes(manifest: dict[str, Any]) -> None:
        for part, size in sizes.items():
            manifest["quantization"][part] |= {"bytes": size, "parameters": size}
        manifest["methods"]["verify_8"]["stream_nodes"] = 2

    edit_manifest(write_bundle(path), say_sizes)
    return path
