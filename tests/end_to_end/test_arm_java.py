"""The Kotlin library on 64-bit ARM: cross-compiled by the CMake that Android uses, and run by that processor's Java
virtual machine under an emulator, token for token what Python gives here.

Run: pytest --slow --full tests/end_to_end/test_arm_java.py, or `make arm`. Skipped without cross compiler, qemu,
cargo, JDK or Maven.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peer
import pytest
from arm_java import ARM_TOOLS, emulated_java

from streamfuse.native.arm.mobile import build_mobile_arm, missing_for_java
from streamfuse.native.build import default_build_dir

if missing_for_java():
    pytest.skip(f"not installed: {', '.join(missing_for_java())} ({ARM_TOOLS})", allow_module_level=True)

# test_arm.py holds core and operators to the same bits there, test_aar.py runs this library on this machine.
pytestmark = pytest.mark.full
CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0"
ROOT = Path(__file__).parents[2]
PROMPTS = ["the keeper climbed the steps", "naïve 🙂 日本語"]
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.9, "seed": 7}}
SPECULATION: dict[str, dict[str, Any]] = {"drafted": {"width": 4}, "pruned": {"width": 12}, "planned": {}}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Kotlin's peer (Peer.kt) on an emulated processor without any extension but what every 64-bit ARM has."""
    folder = default_build_dir().with_name("arm")
    run = emulated_java(folder)
    library = build_mobile_arm(folder, profile="quick", quiet=True, jobs=2)
    paths = tmp_path_factory.mktemp("java") / "classpath"
    maven = ["mvn", "--batch-mode", "--quiet", "--file", str(ROOT / "android_demo" / "pom.xml"), "-pl", "streamfuse"]
    maven += ["test-compile", f"{CLASSPATH}:build-classpath", f"-Dmdep.outputFile={paths}"]
    subprocess.run(maven, check=True)
    built = ROOT / "build" / "android" / "streamfuse"
    classes = [str(built / "classes"), str(built / "test-classes"), paths.read_text()]
    command = [*run, "-XX:TieredStopAtLevel=1", f"-Dstreamfuse.library.path={library}"]
    command += ["-cp", ":".join(classes), "dev.streamfuse.PeerKt"]
    environment = os.environ | {"QEMU_CPU": "cortex-a53", "STREAMFUSE_ISA": "", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        yield running


def ask(java: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
    assert java.stdin
    assert java.stdout
    print(json.dumps(request), file=java.stdin, flush=True)
    reply: dict[str, Any] = json.loads(java.stdout.readline())
    assert not reply.get("error"), reply["error"]
    return reply


@pytest.mark.parametrize("speculation", [*SPECULATION, "plain"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_kotlin_on_arm_writes_what_python_writes_here(
    java: subprocess.Popen[str], tiny_graph: Path, sampling: str, speculation: str
) -> None:
    options = SPECULATION.get(speculation, {"speculative": False})
    config = {"max_new_tokens": 24, "ignore_eos": True, **SAMPLINGS[sampling], **options}
    request = {"bundle": str(tiny_graph.parent), "turns": PROMPTS, "config": config, "raw": True}
    theirs, ours = ask(java, request)["turns"], peer.answer(json.loads(json.dumps(request)))["turns"]
    for own, python in zip(theirs, ours, strict=True):
        assert own["tokens"] == python["tokens"]
        assert own["text"] == python["text"]
        if speculation != "planned":  # where measured costs decide
            assert own["sources"] == python["sources"]
