"""Files of Debian's packages for 64-bit ARM, unpacked into a folder: nothing is installed, and no root is needed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from streamfuse.native.command import BuildError


def unpack(packages: Sequence[str], folder: Path) -> Path:
    """Download these packages, without what they depend on, and return `folder` with their files, as under /.

    A folder that is there already is kept. BuildError where apt is missing or does not have them.
    """
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None:
        raise BuildError("there is no apt-get, which would download Debian's packages for ARM")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        state, root = Path(scratch, "apt"), Path(scratch, "root")
        for part in ("state/lists/partial", "cache/archives/partial", "debs"):
            (state / part).mkdir(parents=True)
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures": "arm64",
            "APT::Sandbox::User": "root",  # the folder is this user's
            "Dir::State": state / "state",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": state / "cache",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
        for command in ([*apt, "update"], [*apt, "download", *packages]):
            done = subprocess.run(command, cwd=state / "debs", capture_output=True, text=True)
            if done.returncode != 0:
                raise BuildError(f"apt-get does not give {', '.join(packages)} for arm64: {done.stderr.strip()}")
        root.mkdir()
        for package in sorted((state / "debs").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
        root.rename(folder)
    return folder
