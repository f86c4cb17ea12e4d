"""Puts the built native engine into wheels; everything else about the package is in pyproject.toml.

An editable install builds nothing here: it uses build/native (`python -m streamfuse.kernels.build`).
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "src"))  # a build backend runs without the project's own folder on its path

from streamfuse.kernels import build as native  # noqa: E402  it needs the standard library only


class BuildEngine(Command):
    """Compile the engine and lay it beside kernels/library.py, where that looks for it."""

    description = "compile the native engine"
    user_options = ()

    def initialize_options(self) -> None:
        self.editable_mode = False
        self.build_lib = self.build_temp = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))

    def executorch(self) -> Path:
        """The installed package, also behind the wall of an isolated build; else its wheel alone, downloaded."""
        installed = Path(sysconfig.get_path("platlib"), "executorch")
        if (installed / native.CMAKE_CONFIG).is_file():
            return installed
        requirement = next(line for line in self.distribution.install_requires if line.startswith("executorch"))
        return native.fetch_executorch(requirement, Path(self.build_temp).resolve() / "executorch")

    def run(self) -> None:
        if self.editable_mode:
            return
        build_dir = Path(self.build_temp).resolve() / "engine"
        try:
            native.build(build_dir, executorch=self.executorch(), targets=["streamfuse_engine"])
        except native.BuildError as error:
            sys.exit(f"error: the native engine is not built: {error}")
        target = Path(self.build_lib).resolve() / "streamfuse" / "kernels" / "lib"
        install = [native.cmake_program(), "--install", str(build_dir), "--prefix", str(target), "--strip"]
        subprocess.run(install, check=True)

    def get_source_files(self) -> list[str]:
        return []  # package data of streamfuse.kernels

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # so that the wheel is one of this platform


class EngineWheel(bdist_wheel):
    """One wheel per platform serves every Python version: the engine is loaded by ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


build.sub_commands.append(("build_engine", None))
setup(distclass=PlatformDistribution, cmdclass={"build_engine": BuildEngine, "bdist_wheel": EngineWheel})
