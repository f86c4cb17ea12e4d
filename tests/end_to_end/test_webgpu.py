"""ONNX bundles on WebGPU, by a GPU in software: every node, caches on the device, and the text of plain decoding.

Run: pytest tests/end_to_end/test_webgpu.py. Skipped where the software GPU cannot be fetched (tests/software_gpu.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import export_samples
import software_gpu
from native_samples import said_by
from streamfuse.export.pipeline import export_bundle
from streamfuse.export.plan import Schedule

pytestmark = [pytest.mark.slow, pytest.mark.network]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
WHOLE = "webgpu:session.disable_cpu_ep_fallback=1"
# float32 sums on the provider differ in the order of their terms alone: by up to 1e-5 of logits up to 12.
NEAR_TIE = 1e-4

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

bundle, provider, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
said = {"package": onnx_providers.installed(), "texts": [], "chats": [], "gaps": []}
options = {"max_new_tokens": 24, "ignore_eos": True}
with streamfuse.open(bundle, provider=provider, cost_cache=False) as model:
    for sampling in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 5}):
        prompt = model.encode("the keeper climbed", raw=True)
        plain = model.generate(prompt, speculative=False, **options, **sampling)
        drafted = model.generate(prompt, width=width, **options, **sampling)
        said["texts"].append([plain.tokens, drafted.tokens, drafted.statistics])
        if plain.tokens != drafted.tokens:
            at = next(i for i, pair in enumerate(zip(plain.tokens, drafted.tokens)) if pair[0] != pair[1])
            said["gaps"].append(gap(model, [*prompt, *plain.tokens[:at]], plain.tokens[at], drafted.tokens[at]))
    for how in ({"speculative": False}, {"width": width}):
        with model.chat(max_new_tokens=10, ignore_eos=True, **how) as chat:
            said["chats"].append([chat.send(words).tokens for words in ("Hello", "And now?")])
    with model.session(text=False) as session:
        backend = session.backend
        said["description"] = backend.description
        said["first"] = backend.run("decode", np.array([7]), np.array([0]), np.ones((1, 1), bool), True).logits.tolist()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def gpu() -> dict[str, str]:
    try:
        return software_gpu.environment()
    except software_gpu.NoGpu as reason:
        pytest.skip(f"no software GPU for WebGPU: {reason}")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of both schedules, in the form for WebGPU; and one for the CPU."""
    pytest.importorskip("onnx")
    made = {}
    for name, provider, schedule in (
        ("fused", "webgpu", Schedule.FUSED), ("deferred", "webgpu", Schedule.DEFERRED), ("cpu", "cpu", Schedule.FUSED)
    ):  # fmt: skip
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(1)
        checkpoint = export_samples.write_checkpoint(folder, export_samples.tiny_model())
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        made[name] = folder / "bundle"
        export_bundle(
            export_samples.plan_for(checkpoint, made[name], target="onnx", provider=provider, schedule=schedule)
        )
    return made


def generated(bundle: Path, provider: str, width: int, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", GENERATE, bundle, provider, str(width)]
    said: dict[str, Any] = json.loads(said_by(command, **environment))
    return said


@pytest.mark.parametrize(("schedule", "width"), [("fused", 12), ("deferred", 4)])
def test_drafting_and_pruning_on_webgpu_changes_no_token_but_in_a_near_tie(
    bundles: dict[str, Path], gpu: dict[str, str], schedule: str, width: int
) -> None:
    said = generated(bundles[schedule], WHOLE, width, gpu)
    assert said["package"] == software_gpu.PACKAGE.replace("==", " ")
    assert said["description"]["provider"] == "webgpu"
    assert said["description"]["nodes"] > 150
    assert said["description"]["nodes_on_cpu"] == 0
    for plain, drafted, statistics in said["texts"]:
        assert len(plain) == len(drafted) == 24
        assert statistics["accepted_by_source"]["streams"] > 0
        assert set(statistics["widths"]) & {"verify_4", "verify_12"}
    assert len(said["gaps"]) <= 1
    assert all(gap < NEAR_TIE for gap in said["gaps"])
    plain, drafted = said["chats"]
    assert plain == drafted
    assert [len(answer) for answer in plain] == [10, 10]
    assert max(said["first"][0]) - min(said["first"][0]) > 1


def test_what_webgpu_leaves_to_the_processor_is_said_or_refused(bundles: dict[str, Path], gpu: dict[str, str]) -> None:
    command = [sys.executable, "-m", "streamfuse", "run", str(bundles["cpu"]), "the keeper", "--raw",
               "--max-new-tokens", "2", "--no-speculation", "--provider"]  # fmt: skip
    environment = {**os.environ, **gpu}
    done = subprocess.run([*command, "webgpu", "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["nodes_on_cpu"] < found["nodes"]
    assert "MatMul" in found["operators_on_cpu"]
    done = subprocess.run([*command, WHOLE], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "it does not take these operators as they are there: " in done.stderr


def test_without_a_gpu_nothing_else_takes_its_place(bundles: dict[str, Path], gpu: dict[str, str]) -> None:
    blind = {**gpu, "VK_DRIVER_FILES": "/nowhere.json"}
    command = [sys.executable, "-m", "streamfuse", "run", bundles["fused"], "the keeper", "--provider", "webgpu"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **blind})
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))  # the driver has lines too
    assert "decode.onnx: Failed to get a WebGPU adapter" in error
    assert error.endswith("; --provider cpu runs the bundle on the processor")
