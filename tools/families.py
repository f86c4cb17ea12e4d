"""The table of families in docs/model.md: random models with the shape of SmolLM2-135M, exported for the kernels.

    python tools/families.py --export-only            # a minute per family; what is exported is used again
    python tools/families.py -o build/families.json   # 15 seconds per family: keep the machine idle
    python tools/families.py --table build/families.json --page docs/model.md

Every model has 30 layers of width 576 with 9 query and 3 key heads (LFM2, LFM3: twice as many of half the width), an
MLP of 1536 and 49,152 tokens, so differences between families are those of their operators. Per family: the
signal-to-noise ratio of the exported graphs, the latency of passes (as in `streamfuse bench scale`), and tokens per
second of plain and speculative decoding, in turns.

A random model with tied embeddings soon repeats itself, and look-up drafts what it repeats. So the speed-up, which is
measured by the clock, is what this shape gains if nearly every draft is right, not what a trained model gains.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.api import load
from streamfuse.bench.scale.measure import LeftOut, Scale, ScaleSettings
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.machine import ReadBandwidth, engine_threads
from streamfuse.bench.shared.marked_text import update
from streamfuse.bench.shared.systems import PLAIN, SPECULATIVE, OwnRuntime
from streamfuse.bench.shared.work import weight_bytes
from streamfuse.bench.tasks.measure import compare
from streamfuse.engines import processor
from streamfuse.model.random_model import SHAPES

_SHAPE = SHAPES["smollm2-135m"]
_WINDOW = {"sliding_window": 256}
_GRANITE = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip
_GEMMA_4 = {
    **_WINDOW,
    "head_dim": 64,
    "global_head_dim": 128,
    "num_kv_shared_layers": 18,
    "hidden_size_per_layer_input": 64,
    "final_logit_softcapping": 30.0,
}
_LFM2 = {"layer_types": ["conv", "conv", "full_attention"] * 10, "block_auto_adjust_ff_dim": False}
_LFM3 = {"layer_types": ["conv", "sliding_attention", "full_attention"] * 10, **_WINDOW}
_LINEAR = {
    "full_attention_interval": 3,
    "linear_num_key_heads": 9,
    "linear_num_value_heads": 9,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
# Convolutions need an even number of heads.
_HALF_SIZE_HEADS = {"num_attention_heads": 18, "num_key_value_heads": 6, "head_dim": 32}
_YARN = {"rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 2048}
_MIXED = ["sliding_attention", "sliding_attention", "full_attention"] * 10
# By name, what differs from `_SHAPE`; the names are those of docs/model.md.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "gemma3_text": ("Gemma3ForCausalLM", {**_WINDOW, "query_pre_attn_scalar": 64, "rope_local_base_freq": 10000.0}),
    "gemma4_text": ("Gemma4ForCausalLM", _GEMMA_4),
    "smollm3": ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 4}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "granite": ("GraniteForCausalLM", _GRANITE),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, "num_local_experts": 0, "shared_intermediate_size": 1536, "position_embedding_type": "rope"},
    ),
    "mistral": ("MistralForCausalLM", _WINDOW),
    "ministral": ("MinistralForCausalLM", {**_WINDOW, "layer_types": _MIXED}),
    "phi3": ("Phi3ForCausalLM", {"partial_rotary_factor": 0.75}),
    "ministral3": ("Ministral3ForCausalLM", {"rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.1}}),
    "olmo3": ("Olmo3ForCausalLM", {**_WINDOW, "layer_types": _MIXED, "rope_local_base_freq": 100000.0}),
    "exaone4": ("Exaone4ForCausalLM", {**_WINDOW, "layer_types": _MIXED}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {}),
    "glm": ("GlmForCausalLM", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "helium": ("HeliumForCausalLM", {}),
    "minicpm": ("MiniCPMForCausalLM", {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", {}),
    "lfm2": ("Lfm2ForCausalLM", {**_LFM2, **_HALF_SIZE_HEADS}),
    "lfm3": ("Lfm3ForCausalLM", {**_LFM3, **_HALF_SIZE_HEADS}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", _LINEAR),
}
_CONTEXT, _PROMPTS, _NEW_TOKENS = 448, 2, 192
_MARK = "<!-- table: families, written by tools/families.py -->"


def shape_of(family: str) -> dict[str, Any]:
    """The config.json of a family's model."""
    architecture, own = FAMILIES[family]
    return {**_SHAPE, "architectures": [architecture], "model_type": family, **own}


def by_the_clock(bundle: Path) -> dict[str, Any]:
    """Plain and speculative decoding after random tokens."""
    random = np.random.default_rng(0)
    with load(bundle, cost_cache=False) as model:
        sessions = {name: model.session(text=False) for name in (PLAIN, SPECULATIVE)}
        sessions[SPECULATIVE].prepare()
        ids = random.integers(model.manifest.model.vocab_size, size=(_PROMPTS, 64)).tolist()
        machine = ReadBandwidth(engine_threads(sessions[PLAIN].backend))
        systems = [OwnRuntime(model, name, session) for name, session in sessions.items()]
        settings = TaskSettings(_NEW_TOKENS, repetitions=2)
        return compare(systems, ids, settings, machine, weight_bytes(model.manifest)).to_dict()


def measured(scale: Scale, family: str) -> dict[str, Any]:
    """Parity, passes and speed of a family."""
    found = scale.measure(family)
    parity = json.loads((scale.bundle(family) / "export_report.json").read_text(encoding="utf-8"))["parity"]
    tasks = by_the_clock(scale.bundle(family))
    return {
        "architecture": FAMILIES[family][0],
        "parameters": found["parameters"],
        "parity_db": {kind: min(one["snr_db"] for one in methods.values()) for kind, methods in parity.items()},
        "passes": found["contexts"],
        "plain_token_per_sec": tasks["systems"][PLAIN]["decode_token_per_sec"],
        "speculative_token_per_sec": tasks["systems"][SPECULATIVE]["decode_token_per_sec"],
        "tokens_per_pass": tasks["systems"][SPECULATIVE]["mean_accepted_tokens"],
        "speedup": tasks["speedup"],
        "equal": tasks["equal"],
    }


def table(families: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown, a row per family."""
    lines = [
        "| family | parity with PyTorch, same weights, dB | with float32, dB | `verify_8`, in decodes "
        "| tokens per pass | speed-up |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family, one in families.items():
        parity, ms = one["parity_db"], {name: of["ms"] for name, of in one["passes"][0]["methods"].items()}
        cells = [
            f"{parity['lowering']:.1f}",
            f"{parity['float32']:.1f}",
            f"{ms['verify_8'] / ms['decode']:.2f}",
            f"{one['tokens_per_pass']:.1f}",
            f"{one['speedup']:.2f}" if one["equal"] else "the outputs differ",
        ]
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="repeatable; default: all")
    parser.add_argument("--work", type=Path, default=Path("build/families"), help="folder of the bundles")
    parser.add_argument("--export-only", action="store_true", help="measure nothing")
    parser.add_argument("--output", "-o", type=Path, help="file of results; families that it has are kept")
    parser.add_argument("--table", type=Path, help="only print the table of this file of results")
    parser.add_argument("--page", type=Path, help="with --table: replace the table of this page")
    flags = parser.parse_args()
    if flags.table is not None:
        text = table(json.loads(flags.table.read_text(encoding="utf-8"))["families"])
        update(flags.page, {_MARK: text}) if flags.page else print(text)
        return

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    scale = Scale(flags.work, ScaleSettings(contexts=(_CONTEXT,)), say, shapes=shape_of)
    output: Path | None = flags.output
    found: dict[str, Any] = {"processor": processor(), "families": {}}
    if output is not None and output.is_file():
        found = json.loads(output.read_text(encoding="utf-8"))
    for family in flags.family or FAMILIES:
        try:
            if flags.export_only:
                scale.export(family)
            elif family not in found["families"]:
                found["families"][family] = measured(scale, family)
        except LeftOut as error:
            say(str(error))
        if output is not None and not flags.export_only:
            output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if output is None and not flags.export_only:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
