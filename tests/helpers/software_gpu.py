"""A GPU in software for WebGPU: SwiftShader out of Debian's chromium-common, and ONNX Runtime's package for WebGPU.

Neither is installed. Both lie in build/webgpu, where they are made once.
Run: python tests/helpers/software_gpu.py, which prints where.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from beside import made_once

PACKAGE = "onnxruntime-webgpu==1.27.0"
FOLDER = Path(__file__).parents[2] / "build" / "webgpu"
_DEBIAN = "chromium-common"
_FILES = ("libvk_swiftshader.so", "libvulkan.so.1", "vk_swiftshader_icd.json")


class NoGpu(Exception):
    """Why there is none here."""


def environment() -> dict[str, str]:
    """What a process needs to find both, beside this one's own.

    Raises:
        NoGpu: this machine has no such packages, or they cannot be fetched.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoGpu("SwiftShader comes from Debian's package for x86-64")
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise NoGpu(f"no {tool} to unpack SwiftShader with")
    FOLDER.parent.mkdir(exist_ok=True)
    made_once(FOLDER, _make)
    site, gpu = FOLDER / "site", FOLDER / "gpu"
    found = {"VK_DRIVER_FILES": str(gpu / _FILES[2]), "XDG_RUNTIME_DIR": str(FOLDER)}
    for name, folder in (("PYTHONPATH", site), ("LD_LIBRARY_PATH", gpu)):
        found[name] = os.pathsep.join(filter(None, [str(folder), os.environ.get(name)]))
    return found


def _make(folder: Path) -> None:
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target",
          str(folder / "site"), PACKAGE], folder)  # fmt: skip
    try:
        _run(["apt-get", "download", _DEBIAN], folder)
    except NoGpu:  # no package lists here, or old ones: make some in this folder
        own = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        _run(["apt-get", *own, "update"], folder)
        _run(["apt-get", *own, "download", _DEBIAN], folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg-deb", "--extract", str(archive), str(folder / "unpacked")], folder)
    (folder / "gpu").mkdir()
    for name in _FILES:
        shutil.move(folder / "unpacked" / "usr" / "lib" / "chromium" / name, folder / "gpu" / name)
    for rest in ("unpacked", "lists", "cache"):
        shutil.rmtree(folder / rest, ignore_errors=True)
    archive.unlink()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise NoGpu(f"`{' '.join(command[:2])} ... {command[-1]}` failed: {last}")


if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in environment().items()), sep="\n")
