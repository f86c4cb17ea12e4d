"""ONNX bundles on WebGPU, by a GPU in software, and on QNN, by the vendor's simulator: every node, the plain text.

Run: pytest --slow tests/end_to_end/test_onnx_accelerators.py. What is of WebGPU is skipped where the software GPU
cannot be fetched (tests/helpers/software_gpu.py), what is of QNN where its package is not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import export_samples
import pytest
import software_gpu
import torch
from native_samples import output_of

from streamfuse.export.pipeline import run_export

pytestmark = [pytest.mark.slow, pytest.mark.network]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
WHOLE = "session.disable_cpu_ep_fallback=1"
CONVOLUTIONS: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "num_key_value_heads": 1,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
# By how much logits of up to 14 may differ between methods: float32 sums of another order by 1e-5, float16 by 0.02.
NEAR_TIE = {"webgpu": 1e-4, "qnn": 0.05}
PACKAGE = {"webgpu": software_gpu.PACKAGE.replace("==", " "), "qnn": "onnxruntime "}

GENERATE = """
import json, sys
import numpy as np
import streamfuse
from streamfuse.runtime.backends import onnx_providers

def gap(model, tokens, one, other):
    "Between the logits of two tokens after others, by plain decoding."
    with model.session(text=False) as session:
        backend = session.backend
        for at, token in enumerate(tokens):
            out = backend.run("decode", np.array([token]), np.array([at]), np.ones((1, 1), bool), at + 1 == len(tokens))
            backend.commit([0])
        return abs(float(out.logits[0, one] - out.logits[0, other]))

bundle, provider, width, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
report = {"package": onnx_providers.installed(), "texts": [], "chats": [], "gaps": []}
options = {"max_new_tokens": tokens, "ignore_eos": True}
with streamfuse.load(bundle, provider=provider, cost_cache=False) as model:
    for sampling in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 5}):
        prompt = model.encode("the keeper climbed", raw=True)
        plain = model.generate(prompt, speculative=False, **options, **sampling)
        drafted = model.generate(prompt, width=width, **options, **sampling)
        report["texts"].append([plain.tokens, drafted.tokens, drafted.statistics.to_dict()])
        if plain.tokens != drafted.tokens:
            at = next(i for i, pair in enumerate(zip(plain.tokens, drafted.tokens)) if pair[0] != pair[1])
            report["gaps"].append(gap(model, [*prompt, *plain.tokens[:at]], plain.tokens[at], drafted.tokens[at]))
    for how in ({"speculative": False}, {"width": width}):
        with model.chat(max_new_tokens=4, ignore_eos=True, **how) as chat:
            report["chats"].append([chat.send(words).tokens for words in ("Hello", "And now?")])
    with model.session(text=False) as session:
        backend = session.backend
        report["description"] = backend.description
        first = backend.run("decode", np.array([7]), np.array([0]), np.ones((1, 1), bool), True)
        report["first"] = first.logits.tolist()
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def gpu() -> dict[str, str]:
    try:
        return software_gpu.environment()
    except software_gpu.NoGpu as reason:
        pytest.skip(f"no software GPU for WebGPU: {reason}")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a bundle for a provider and a schedule, with convolutions or without, once."""
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'streamfuse[onnx]'")

    @cache
    def make(provider: str, schedule: str, convolves: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(provider)
        torch.manual_seed(1)
        # One layer where nothing is compared: sooner exported, and sooner loaded by a GPU in software.
        layers = 1 if provider == "cpu" else 3
        changes = {"num_hidden_layers": layers, **(CONVOLUTIONS if convolves else {})}
        model = export_samples.tiny_model({"num_msa_layers": min(layers, 2)}, **changes)
        checkpoint = export_samples.write_checkpoint(folder, model, **changes)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        plan = export_samples.config_for(
            checkpoint, folder / "bundle", target="onnx", provider=provider, schedule=schedule,
            **({"quantize": "none"} if convolves else {}),  # in 64 random channels, errors of k and v multiply
        )  # fmt: skip
        run_export(plan)
        return plan.output_dir

    return make


@pytest.fixture
def environment(request: pytest.FixtureRequest, provider: str) -> dict[str, str]:
    if provider == "webgpu":
        found: dict[str, str] = request.getfixturevalue("gpu")
        return found
    if find_spec("onnxruntime_qnn") is None:
        pytest.skip(
            "onnxruntime-qnn is not installed: pip install 'streamfuse[qnn]' (x86-64 Linux, Python 3.11 or newer)"
        )
    return {}


def generated(bundle: Path, provider: str, width: int, tokens: int, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", GENERATE, bundle, provider, str(width), str(tokens)]
    report: dict[str, Any] = json.loads(output_of(command, **environment))
    return report


@pytest.mark.parametrize(
    ("provider", "schedule", "width", "convolves"),
    [
        ("webgpu", "fused", 12, False),
        ("qnn", "deferred", 4, False),
        pytest.param("webgpu", "deferred", 4, False, marks=pytest.mark.full),
        pytest.param("webgpu", "deferred", 4, True, marks=pytest.mark.full),
        pytest.param("qnn", "fused", 12, False, marks=pytest.mark.full),
        pytest.param("qnn", "deferred", 4, True, marks=pytest.mark.full),
    ],
)
def test_drafting_and_pruning_on_an_accelerator_changes_no_token_but_in_a_near_tie(
    bundle: Callable[..., Path],
    environment: dict[str, str],
    provider: str,
    schedule: str,
    width: int,
    convolves: bool,
) -> None:
    tokens = 16 if provider == "webgpu" else 24  # a GPU in software takes 0.3 s for a pass
    report = generated(bundle(provider, schedule, convolves), f"{provider}:{WHOLE}", width, tokens, environment)
    assert report["package"].startswith(PACKAGE[provider])
    assert report["description"]["provider"] == provider
    assert report["description"]["nodes"] > 150
    assert report["description"]["nodes_on_cpu"] == 0
    for plain, drafted, statistics in report["texts"]:
        assert len(plain) == len(drafted) == tokens
        assert set(statistics["widths"]) & {"verify_4", "verify_12"}
    assert sum(statistics["accepted_by_source"]["streams"] for _, _, statistics in report["texts"]) > 0
    assert len(report["gaps"]) <= 1
    assert all(gap < NEAR_TIE[provider] for gap in report["gaps"])
    plain, drafted = report["chats"]
    assert plain == drafted
    assert [len(answer) for answer in plain] == [4, 4]
    assert max(report["first"][0]) - min(report["first"][0]) > 1


def test_what_webgpu_leaves_to_the_processor_is_said_or_refused(
    bundle: Callable[..., Path], gpu: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "streamfuse", "run", str(bundle("cpu", "fused")), "the keeper", "--raw",
               "--max-new-tokens", "2", "--no-speculation", "--provider"]  # fmt: skip
    environment = {**os.environ, **gpu}
    done = subprocess.run([*command, "webgpu", "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["nodes_on_cpu"] < found["nodes"]
    assert "MatMul" in found["operators_on_cpu"]
    done = subprocess.run([*command, f"webgpu:{WHOLE}"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "it does not take these operators as they are there: " in done.stderr


def test_without_a_gpu_nothing_else_takes_its_place(bundle: Callable[..., Path], gpu: dict[str, str]) -> None:
    blind = {**gpu, "VK_DRIVER_FILES": "/nowhere.json"}
    command = [
        sys.executable,
        "-m",
        "streamfuse",
        "run",
        str(bundle("webgpu", "fused")),
        "the keeper",
        "--provider",
        "webgpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **blind})
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))  # the driver has lines too
    assert "decode.onnx: Failed to get a WebGPU adapter" in error
    assert error.endswith("; --provider cpu runs the bundle on the processor")
