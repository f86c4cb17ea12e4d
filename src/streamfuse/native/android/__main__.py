"""Package the Kotlin library: an AAR for apps and a jar for desktop tests, in a local Maven repository.

android_demo/tools/aar is this command. The AAR has one library per ABI, with core, engine, tokenizer, chat template and
ExecuTorch's runtime inside, and runs bundles of --backend kernels; options add what other bundles need.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from streamfuse.native.android import maven
from streamfuse.native.android.toolchains import (
    ABIS,
    BUILD,
    Native,
    Request,
    build_linux,
    build_ndk,
    find_ndk,
    host_abi,
)
from streamfuse.native.build import REPOSITORY, cmake_program, find_program
from streamfuse.native.cargo import need_cargo
from streamfuse.native.command import BuildError, exit_status, need_all, run_tool
from streamfuse.native.executorch_source import TAG, Parts, need_glslc

OUT = REPOSITORY / "build" / "maven"
_JAVA_NAMES = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}  # os.arch, as NativeLibrary in Native.kt spells it


def check_tools(toolchain: str, *, vulkan: bool = False) -> None:
    """BuildError, which names all programs that are missing."""
    need_all(
        partial(find_program, "javac", "apt-get install openjdk-17-jdk-headless, or brew install openjdk@17"),
        partial(find_program, "mvn", "apt-get install maven, or brew install maven"),
        cmake_program,
        partial(find_program, "ninja"),
        need_cargo,
        *([need_glslc] if vulkan else []),
        *([find_ndk] if toolchain == "ndk" else []),
    )


def compile_classes() -> Path:
    """Compile the Kotlin sources with Maven and return the folder of classes."""
    run_tool(
        ["mvn", "--batch-mode", "--quiet", "--file", str(maven.POM), "--projects", "streamfuse", "compile"], show=True
    )
    return BUILD / "streamfuse" / "classes"


def package(out: Path, natives: Mapping[str, Native], jvm: Mapping[str, Native], *, classifier: str = "") -> list[Path]:
    """Write and publish the archives into the repository `out`; the artifacts' folders.

    `natives` are the libraries of the AAR by ABI, none for no AAR, `jvm` those of the jar. `classifier` marks the AAR.
    """
    classes = compile_classes()
    work = BUILD / "packed"
    sources = work / "sources.jar"
    maven.write_jar(sources, maven.MODULE / "src" / "main" / "kotlin")
    published = []
    if natives:
        maven.write_aar(work / "library.aar", classes, {abi: (it.library, *it.beside) for abi, it in natives.items()})
        maven.write_symbols(work / "symbols.zip", {abi: (it.symbols,) for abi, it in natives.items()})
        files = {
            f"{classifier}.aar": work / "library.aar",
            f"{classifier}-symbols.zip": work / "symbols.zip",
            "-sources.jar": sources,
        }
        published.append(maven.publish(out, maven.ANDROID, "aar", files))
    if jvm:
        entries: dict[str, bytes] = {}
        for abi, native in jvm.items():
            folder = f"dev/streamfuse/native/linux-{_JAVA_NAMES[abi]}"
            files_of = (native.library, *native.beside)
            entries[f"{folder}/files"] = "".join(f"{file.name}\n" for file in files_of).encode()
            entries |= {f"{folder}/{file.name}": file.read_bytes() for file in files_of}
        maven.write_jar(work / "library.jar", classes, entries)
        published.append(maven.publish(out, maven.JVM, "jar", {".jar": work / "library.jar", "-sources.jar": sources}))
    return published


def run(given: argparse.Namespace) -> None:
    if given.vulkan and given.toolchain == "linux" and given.executorch is None:
        raise BuildError("ExecuTorch's wheel is without Vulkan: --vulkan needs --toolchain ndk, or --executorch")
    check_tools(given.toolchain, vulkan=given.vulkan)
    parts = Parts(xnnpack=given.xnnpack, etdump=given.etdump, qnn=given.qnn, vulkan=given.vulkan)
    request = Request(parts, given.executorch, given.profile, given.jobs)
    if given.qnn and given.toolchain == "linux":
        raise BuildError("--qnn needs --toolchain ndk: Qualcomm's backend is linked for phones only")
    if given.qnn and given.abi != ["arm64-v8a"]:
        raise BuildError("Qualcomm's processors have no other ABI: --qnn needs --abi arm64-v8a")
    on_linux = platform.system() == "Linux"
    if given.toolchain == "linux" and not on_linux:
        raise BuildError("--toolchain linux runs on Linux")
    abis = given.abi or (ABIS if given.toolchain == "ndk" or host_abi() == "x86_64" else (host_abi(),))
    make = build_ndk if given.toolchain == "ndk" else build_linux
    natives = {abi: make(abi, request) for abi in abis} if given.only != "jvm" else {}
    jvm: dict[str, Native] = {}
    if given.only != "aar" and on_linux:
        same = natives.get(host_abi()) if given.toolchain == "linux" else None
        jvm = {host_abi(): same or build_linux(host_abi(), request)}
    elif given.only == "jvm":
        raise BuildError("the jar for desktops is made on Linux")
    for folder in package(given.out.resolve(), natives, jvm, classifier="-linux" if given.toolchain == "linux" else ""):
        print(f"published {folder}")
        for file in sorted(folder.iterdir()):
            if file.suffix in (".aar", ".jar", ".zip"):
                print(f"  {file.stat().st_size / 1e6:6.1f} MB  {file.name}")


def make_parser() -> argparse.ArgumentParser:
    """The options of android_demo/tools/aar."""
    parser = argparse.ArgumentParser(prog="android_demo/tools/aar", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--toolchain",
        choices=("ndk", "linux"),
        default="ndk",
        help="ndk (default): for Android, with the NDK of ANDROID_NDK_HOME. linux: with g++ and Debian's cross "
        "compiler, against the executorch wheel; the same layout, to test the packaging, with the classifier linux",
    )
    parser.add_argument("--only", choices=("aar", "jvm"), help="one of the two artifacts")
    parser.add_argument("--abi", action="append", choices=ABIS, help="repeat for several; default: all")
    parser.add_argument("--xnnpack", action="store_true", help="also run bundles of --backend xnnpack")
    parser.add_argument("--etdump", action="store_true", help="also profile operators (sf_engine_profile)")
    parser.add_argument(
        "--vulkan", action="store_true", help="also run bundles of --backend vulkan; needs the Vulkan SDK"
    )
    parser.add_argument("--qnn", type=Path, metavar="SDK", help="also run bundles of --backend qnn; Qualcomm's SDK")
    parser.add_argument(
        "--executorch", type=Path, metavar="CHECKOUT", help=f"ExecuTorch's sources; default with ndk: a clone of {TAG}"
    )
    parser.add_argument("--profile", default="release", help="of text/Cargo.toml; quick: no optimization")
    parser.add_argument("--out", type=Path, default=OUT, help="the Maven repository; default: build/maven")
    parser.add_argument("--jobs", type=int, default=None, help="parallel compilations; default: all cores")
    return parser


def main() -> int:
    options = make_parser().parse_args()
    return exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
