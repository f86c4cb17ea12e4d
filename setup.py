"""Puts the built native libraries into wheels; everything else about the package is in pyproject.toml.

An editable install builds nothing here: it uses build/native (`python -m streamfuse.native.build`).
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution as Installed
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "src"))  # a build backend runs without the project's own folder on its path

from streamfuse.native import build as native  # noqa: E402  these need the standard library only
from streamfuse.native import cargo  # noqa: E402
from streamfuse.native import library as engine  # noqa: E402
from streamfuse.native.command import BuildError  # noqa: E402


class BuildEngine(Command):
    """Compile the engine and lay it beside native/library.py, with the libraries of executorch that it needs.

    So the wheel runs bundles without the executorch package, which would bring PyTorch.
    """

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
        requirement = next(line for line in self.distribution.extras_require["export"] if line.startswith("executorch"))
        return native.fetch_executorch(requirement, Path(self.build_temp).resolve() / "executorch")

    def text(self) -> str:
        """text/ as a static library: STREAMFUSE_BUNDLE_LIBRARY where it is built already, else by cargo."""
        return os.environ.get("STREAMFUSE_BUNDLE_LIBRARY") or str(cargo.cargo_build(cargo.default_target_dir()))

    def run(self) -> None:
        if self.editable_mode:
            return
        build_dir = Path(self.build_temp).resolve() / "engine"
        try:
            executorch = self.executorch()
            libraries = ["streamfuse_engine", "streamfuse_core", "streamfuse_text"]
            text = {"STREAMFUSE_BUNDLE_LIBRARY": self.text()}
            native.build(build_dir, executorch=executorch, targets=libraries, options=text)
        except BuildError as error:
            sys.exit(f"error: the native libraries are not built: {error}")
        target = Path(self.build_lib).resolve() / "streamfuse" / "native" / "lib"
        install = [native.cmake_program(), "--install", str(build_dir), "--prefix", str(target), "--strip"]
        subprocess.run(install, check=True)
        self.copy_executorch(executorch, target)

    def copy_executorch(self, package: Path, target: Path) -> None:
        """The libraries, their licence, and their version, by which native/library.py knows an equal package."""
        for stem in (*engine.RUNTIME_LIBRARIES, engine.QUANTIZED_KERNELS):
            shutil.copy(package / "lib" / engine.file_name(stem), target)
        (facts,) = package.parent.glob("executorch-*.dist-info")
        shutil.copy(facts / "licenses" / "LICENSE", target / "LICENSE-executorch")
        (target / engine.VERSION_FILE).write_text(f"{Installed.at(facts).version}\n", encoding="utf-8")

    def get_source_files(self) -> list[str]:
        return []  # package data of streamfuse.native

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
