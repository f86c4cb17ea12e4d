"""The package for Android refuses what a phone could not load, and says what is missing.

Run: python -m pytest tests/native/test_android_package.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest
from executorch_sources import executorch_checkout

from streamfuse.native import executorch_source
from streamfuse.native.android import maven, toolchains
from streamfuse.native.android.__main__ import check_tools, main
from streamfuse.native.android.elf import check_library, read_library
from streamfuse.native.command import BuildError
from streamfuse.native.executorch_source import Parts

ROOT = Path(__file__).parents[2]
ABI = toolchains.host_abi()
OTHER = "x86_64" if ABI == "arm64-v8a" else "arm64-v8a"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="makes libraries with Linux's compiler"
)


def library(folder: Path, *options: str, page: int = 16384) -> Path:
    source = folder / "library.c"
    source.write_text("int sf_one(void) { return 1; }\nint other(void) { return 2; }\n")
    path = folder / "library.so"
    flags = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-z,max-page-size={page}", *options]
    subprocess.run(["cc", *flags, str(source), "-o", str(path)], check=True)
    return path


def only_ours(folder: Path) -> str:
    (folder / "exports.map").write_text("{ global: sf_*; local: *; };\n")
    return f"-Wl,--version-script={folder / 'exports.map'}"


def test_a_library_that_a_phone_loads_is_accepted(tmp_path: Path) -> None:
    made = library(tmp_path, only_ours(tmp_path), "-Wl,-rpath,$ORIGIN")
    check_library(made, ABI, exported="sf_.*", needed=[])
    read = read_library(made)
    assert read.exported == {"sf_one"}
    assert read.search_path == "$ORIGIN"


def test_the_libraries_that_it_needs_are_read(tmp_path: Path) -> None:
    made = library(tmp_path, only_ours(tmp_path), "-Wl,--no-as-needed", "-lc")
    with pytest.raises(BuildError, match=r"needs libc\.so\.6, which is neither in the archive nor part of the system"):
        check_library(made, ABI, exported="sf_.*", needed=[])
    check_library(made, ABI, exported="sf_.*", needed=["libc.so.6"])


@pytest.mark.parametrize(
    ("options", "page", "abi", "sentence"),
    [
        ([], 16384, ABI, "exports other"),
        (["-Wl,-rpath,/home/me/lib"], 16384, ABI, "looks for libraries in /home/me/lib"),
        ([], 4096, ABI, "aligned to 4096 bytes, and phones with pages of 16384 bytes do not load it"),
        ([], 16384, OTHER, "is for ELF machine"),
    ],
)
def test_a_library_that_a_phone_would_not_load_is_refused(
    tmp_path: Path, options: list[str], page: int, abi: str, sentence: str
) -> None:
    given = options if sentence == "exports other" else [*options, only_ours(tmp_path)]
    with pytest.raises(BuildError, match=re.escape(sentence)):
        check_library(library(tmp_path, *given, page=page), abi, exported="sf_.*", needed=[])


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("INPUT(libc.so.6)")
    with pytest.raises(BuildError, match="not a 64-bit ELF library"):
        read_library(tmp_path / "text.so")


def ndk(folder: Path, revision: str) -> Path:
    (folder / "build" / "cmake").mkdir(parents=True)
    (folder / "build" / "cmake" / "android.toolchain.cmake").touch()
    (folder / "source.properties").write_text(f"Pkg.Desc = Android NDK\nPkg.Revision = {revision}\n")
    return folder


@pytest.fixture
def no_ndk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_HOME", "ANDROID_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_ndk")
def test_the_ndk_is_the_one_that_is_named_or_the_newest_of_the_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for revision in ("27.0.12077973", "28.2.13676358", "9.9.1"):
        ndk(tmp_path / "ndk" / revision, revision)
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path))
    assert toolchains.find_ndk() == tmp_path / "ndk" / "28.2.13676358"
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path / "ndk" / "27.0.12077973"))
    assert toolchains.find_ndk() == tmp_path / "ndk" / "27.0.12077973"


@pytest.mark.usefixtures("no_ndk")
def test_an_ndk_that_is_missing_or_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=r"there is no NDK: install NDK 28\.2\.13676358.+set ANDROID_NDK_HOME"):
        toolchains.find_ndk()
    monkeypatch.setenv("ANDROID_NDK_HOME", str(ndk(tmp_path / "old", "26.1.10909125")))
    with pytest.raises(BuildError, match=r"the NDK in .+old is older than 27"):
        toolchains.find_ndk()
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="is not an NDK"):
        toolchains.find_ndk()


@pytest.mark.usefixtures("no_ndk")
def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as caught:
        check_tools("ndk")
    first, *missing = str(caught.value).splitlines()
    assert first == "something is missing"
    assert "  javac is not installed: apt-get install openjdk-17-jdk-headless, or brew install openjdk@17" in missing
    assert "  mvn is not installed: apt-get install maven, or brew install maven" in missing
    assert missing[-1].startswith("  there is no NDK: install NDK ")


def test_the_parts_of_the_library_are_switches_of_both_builds() -> None:
    cmake = (toolchains.SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")
    everything = Parts(xnnpack=True, etdump=True, qnn=Path("sdk"), vulkan=True, coreml=True)
    for name, value in everything.kernels_options().items():
        assert re.search(rf"option\({name} ", cmake)
        assert value == "ON"
    assert set(Parts().kernels_options().values()) == {"OFF"}
    # The engine relies on these two, which ExecuTorch's Release build leaves out.
    for options in (Parts().executorch_options(), everything.executorch_options()):
        assert options["EXECUTORCH_ENABLE_PROGRAM_VERIFICATION"] == options["EXECUTORCH_ENABLE_LOGGING"] == "ON"
        assert options["EXECUTORCH_OPTIMIZE_SIZE"] == "OFF"  # no exception could pass through it


def test_quantized_embeddings_are_built_for_what_leaves_them_to_executorch() -> None:
    for parts, wanted in ((Parts(), "OFF"), (Parts(xnnpack=True), "ON"), (Parts(vulkan=True), "ON")):
        assert parts.executorch_options()["EXECUTORCH_BUILD_KERNELS_QUANTIZED"] == wanted


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (
            Parts(vulkan=True),
            "sources that the library needs: git -C {0} submodule update --init --depth 1 "
            "backends/vulkan/third-party/Vulkan-Headers backends/vulkan/third-party/VulkanMemoryAllocator "
            "backends/vulkan/third-party/volk",
        ),
        (
            Parts(coreml=True),
            f"ExecuTorch's Core ML delegate, backends/apple/coreml: take the sources of {executorch_source.TAG}",
        ),
    ],
    ids=["vulkan", "coreml"],
)
def test_a_checkout_without_the_sources_of_a_part_is_refused(tmp_path: Path, parts: Parts, missing: str) -> None:
    checkout = executorch_checkout(tmp_path)
    (checkout / "backends" / "vulkan" / "third-party" / "volk").mkdir(parents=True)
    with pytest.raises(BuildError) as caught:
        executorch_source.install(checkout, tmp_path / "build", parts, {})
    assert str(caught.value) == f"{checkout} is without {missing.format(checkout)}"


def test_vulkan_needs_the_compiler_of_its_shaders_and_a_build_from_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["aar", "--vulkan", "--toolchain", "linux"])
    assert main() == 1
    assert "ExecuTorch's wheel is without Vulkan: --vulkan needs --toolchain ndk" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VULKAN_SDK", raising=False)
    with pytest.raises(BuildError, match=r"glslc is not installed: install the Vulkan SDK 1\.4\.341\.1 or newer"):
        check_tools("linux", vulkan=True)
    with pytest.raises(BuildError) as caught:
        check_tools("linux")
    assert "glslc" not in str(caught.value)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "glslc").touch(mode=0o755)
    monkeypatch.setenv("VULKAN_SDK", str(tmp_path))
    executorch_source.need_glslc()


def test_executorch_is_built_from_the_release_that_exports_bundles() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"executorch>={executorch_source.TAG.lstrip("v")},' in project


def test_a_published_artifact_has_a_pom_with_what_its_types_need(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"jar")
    folder = maven.publish(tmp_path, "streamfuse-jvm", "jar", {".jar": tmp_path / "a.jar"})
    name = f"streamfuse-jvm-{maven.version()}"
    assert folder == tmp_path / "dev" / "streamfuse" / "streamfuse-jvm" / maven.version()
    pom = ElementTree.parse(folder / f"{name}.pom").getroot()
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    needed = {entry.text for entry in pom.findall("m:dependencies/m:dependency/m:artifactId", space)}
    assert needed == {"annotations", "kotlin-stdlib", "kotlinx-coroutines-core", "kotlinx-serialization-json"}
    assert {entry.text for entry in pom.findall("m:dependencies/m:dependency/m:scope", space)} == {"compile"}
    assert {path.suffix for path in folder.glob(f"{name}.jar.*")} == {".sha1", ".sha256"}


def test_equal_contents_give_equal_archives(tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "A.class").write_bytes(b"class")
    so = library(tmp_path)
    for name in ("first.aar", "second.aar"):
        maven.write_aar(tmp_path / name, tmp_path / "classes", {ABI: (so,)})
    assert (tmp_path / "first.aar").read_bytes() == (tmp_path / "second.aar").read_bytes()
    with zipfile.ZipFile(tmp_path / "first.aar") as archive:
        assert f"jni/{ABI}/library.so" in archive.namelist()
        assert b"-keep class dev.streamfuse.Native" in archive.read("proguard.txt")
