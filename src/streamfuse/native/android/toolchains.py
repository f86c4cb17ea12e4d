"""Two ways to libstreamfuse_jni.so for a phone's processor: Google's NDK, and Linux's compilers, which stand in for it
where the archive is to be tested without Android."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamfuse.native import executorch_source as executorch
from streamfuse.native.android.elf import check_library, check_pages, read_library
from streamfuse.native.android.maven import lowest_sdk
from streamfuse.native.arm import build as arm
from streamfuse.native.arm.mobile import build_bundle_arm, build_mobile_arm
from streamfuse.native.build import (
    REPOSITORY,
    SOURCE,
    build,
    cmake_program,
    default_build_dir,
    executorch_root,
    fetch_executorch,
)
from streamfuse.native.cargo import add_rust_target, cargo_build, default_target_dir
from streamfuse.native.command import BuildError, run_tool
from streamfuse.native.executorch_source import Parts
from streamfuse.native.library import QUANTIZED_KERNELS
from streamfuse.native.mobile import jni_options

ABIS = ("arm64-v8a", "x86_64")
NDK_VERSION = "28.2.13676358"
OLDEST_NDK = 27  # the first that supports pages of 16 KiB
RUST = {"arm64-v8a": "aarch64-linux-android", "x86_64": "x86_64-linux-android"}
EXPORTED = "Java_dev_streamfuse_\\w+|sf_\\w+"
QNN_EXPORTED = EXPORTED + "|_ZN\\w*10executorch\\w+"
_ANDROID = ("libc.so", "libdl.so", "liblog.so", "libm.so")
_GLIBC = ("libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libstdc++.so.6")
_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
BUILD = REPOSITORY / "build" / "android"


@dataclass(frozen=True, slots=True)
class Native:
    """libstreamfuse_jni.so without its symbols, these, and the libraries that must lie beside it."""

    library: Path
    symbols: Path
    beside: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What to build: `checkout` are ExecuTorch's sources, None for those of its release, `profile` one of text/."""

    parts: Parts
    checkout: Path | None = None
    profile: str = "release"
    jobs: int | None = None


def host_abi() -> str:
    """This machine's processor by Android's name."""
    return "arm64-v8a" if platform.machine() in ("aarch64", "arm64") else "x86_64"


def find_ndk() -> Path:
    """The NDK that the environment names, or the newest of the SDK.

    Raises:
        BuildError: there is none, or it is too old.
    """
    named = [os.environ[name] for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT") if os.environ.get(name)]
    sdk = os.environ.get("ANDROID_HOME") or os.environ.get("ANDROID_SDK_ROOT")
    found = [Path(named[0])] if named else sorted(Path(sdk, "ndk").glob("*"), key=_revision) if sdk else []
    install = (
        f"install NDK {NDK_VERSION} (Android Studio: SDK Manager, SDK Tools, NDK; or sdkmanager "
        f"'ndk;{NDK_VERSION}') and set ANDROID_NDK_HOME to its folder"
    )
    if not found:
        raise BuildError(f"there is no NDK: {install}. Without Android's tools, --toolchain linux tests the packaging")
    if not (found[-1] / "build" / "cmake" / "android.toolchain.cmake").is_file():
        raise BuildError(f"{found[-1]} is not an NDK: {install}")
    if _revision(found[-1])[0] < OLDEST_NDK:
        raise BuildError(f"the NDK in {found[-1]} is older than {OLDEST_NDK}: {install}")
    return found[-1]


def build_ndk(abi: str, request: Request) -> Native:
    """Compile everything for Android and return the library, which needs nothing but the system."""
    ndk = find_ndk()
    (tools,) = (ndk / "toolchains" / "llvm" / "prebuilt").glob("*/bin")
    sdk = lowest_sdk()
    folder = BUILD / "ndk" / abi
    clang = tools / f"{RUST[abi].replace('-android', '')}-android{sdk}-clang"
    bundle = cargo_build(
        BUILD / "ndk" / "cargo",
        add_rust_target(RUST[abi]),
        profile=request.profile,
        environment=_cargo_environment(RUST[abi], clang, tools / "llvm-ar"),
        jobs=request.jobs,
    )
    platform_options = {
        "CMAKE_TOOLCHAIN_FILE": str(ndk / "build" / "cmake" / "android.toolchain.cmake"),
        "ANDROID_ABI": abi,
        "ANDROID_PLATFORM": f"android-{sdk}",
        "ANDROID_STL": "c++_static",
        "ANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES": "ON",  # NDK 27 links for pages of 16 KiB only with this, 28 always
    }
    _from_source(folder, bundle, platform_options | {"EXECUTORCH_PAL_DEFAULT": "android"}, request)
    exported = QNN_EXPORTED if request.parts.qnn else EXPORTED
    # Versions of ExecuTorch install this library in different folders.
    qnn = tuple((folder / "executorch" / "install").rglob("libqnn_executorch_backend.so")) if request.parts.qnn else ()
    if request.parts.qnn and len(qnn) != 1:
        raise BuildError(f"{folder}: {len(qnn)} files libqnn_executorch_backend.so, not one; delete it and build again")
    for library in qnn:
        check_pages(library)
    needed = (*_ANDROID, *(path.name for path in qnn))
    built = _finish(folder / "native", abi, str(tools / "llvm-objcopy"), exported, needed)
    return Native(built.library, built.symbols, qnn)


def build_linux(abi: str, request: Request) -> Native:
    """Compile for Linux: against the executorch wheel, whose libraries lie beside ours, or from `request.checkout`."""
    native = abi == host_abi()
    if not native and (host_abi(), abi) != ("x86_64", "arm64-v8a"):
        raise BuildError(f"--toolchain linux cannot build {abi} on this machine: --abi {host_abi()}")
    if not native and arm.missing_tools()[:1] == [arm.COMPILER]:
        raise BuildError(f"{arm.COMPILER} is not installed: {arm.INSTALL}; or leave it out: --abi {host_abi()}")
    objcopy = "objcopy" if native else "aarch64-linux-gnu-objcopy"
    cross = default_build_dir().with_name("arm")
    if request.checkout is not None:
        folder = BUILD / "linux" / abi
        if native:
            bundle = cargo_build(default_target_dir(), profile=request.profile, jobs=request.jobs)
            options = {}
        else:
            bundle = build_bundle_arm(cross, profile=request.profile, jobs=request.jobs)
            options = {"CMAKE_TOOLCHAIN_FILE": str(arm.TOOLS / "toolchain.cmake")}
        _from_source(folder, bundle, options | jni_options(), request)
        return _finish(folder / "native", abi, objcopy, EXPORTED, (*_GLIBC, *_LOADERS))
    if native:
        package = host_executorch()
        bundle = cargo_build(default_target_dir(), profile=request.profile, jobs=request.jobs)
        options = {"STREAMFUSE_BUNDLE_LIBRARY": str(bundle)} | jni_options()
        folder = build(executorch=package, targets=["streamfuse_jni"], options=options, jobs=request.jobs).parent
    else:
        folder = build_mobile_arm(cross, profile=request.profile, jobs=request.jobs).parent
        (package,) = cross.glob("executorch-*/executorch")
    libraries = {path.name: path for path in (package / "lib").glob("*.so")}
    beside = _closure(folder / "libstreamfuse_jni.so", libraries)
    beside.add(f"lib{QUANTIZED_KERNELS}.so")
    known = (*_GLIBC, *_LOADERS, *beside)
    built = _finish(folder, abi, objcopy, EXPORTED, known)
    return Native(built.library, built.symbols, tuple(libraries[name] for name in sorted(beside)))


def host_executorch() -> Path:
    """The installed executorch package, else its wheel alone, downloaded."""
    try:
        return executorch_root()
    except BuildError:
        version = executorch.TAG.lstrip("v")
        return fetch_executorch(f"executorch=={version}", REPOSITORY / "build" / f"executorch-{version}")


def _from_source(folder: Path, bundle: Path, platform_options: dict[str, str], request: Request) -> None:
    """ExecuTorch, and over it libstreamfuse_jni in `folder`/native."""
    checkout = request.checkout or executorch.clone(REPOSITORY / "build" / "executorch", request.parts)
    prefix = executorch.install(
        checkout.resolve(), folder / "executorch", request.parts, platform_options, jobs=request.jobs
    )
    options = {"EXECUTORCH_INSTALL": str(prefix), "STREAMFUSE_BUNDLE_LIBRARY": str(bundle), "CMAKE_CXX_FLAGS": "-g1"}
    build(
        folder / "native",
        executorch=SOURCE / "executorch",
        targets=["streamfuse_jni"],
        options=options | request.parts.kernels_options() | platform_options,
        jobs=request.jobs,
    )


def _finish(build_dir: Path, abi: str, objcopy: str, exported: str, needed: Sequence[str]) -> Native:
    """Give the built library its final search path, move its symbols to a file of their own, and check it."""
    folder = build_dir / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    run_tool([cmake_program(), "--install", str(build_dir), "--component", "jni", "--prefix", str(folder)])
    library = folder / "libstreamfuse_jni.so"
    symbols = folder / f"{library.name}.dbg"
    run_tool([objcopy, "--only-keep-debug", str(library), str(symbols)])
    run_tool([objcopy, "--strip-unneeded", f"--add-gnu-debuglink={symbols}", str(library)])
    check_library(library, abi, exported=exported, needed=needed)
    return Native(library, symbols)


def _closure(library: Path, libraries: dict[str, Path]) -> set[str]:
    """The names of `libraries` that `library` needs, and those that they need."""
    found: set[str] = set()
    open_ = [library]
    while open_:
        for name in read_library(open_.pop()).needed:
            if name in libraries and name not in found:
                found.add(name)
                open_.append(libraries[name])
    return found


def _cargo_environment(target: str, clang: Path, archiver: Path) -> dict[str, str]:
    """The NDK's tools for cargo, and for the crates that compile C."""
    name = target.replace("-", "_")
    return {
        f"CARGO_TARGET_{name.upper()}_LINKER": str(clang),
        f"CC_{name}": str(clang),
        f"AR_{name}": str(archiver),
    }


def _revision(ndk: Path) -> tuple[int, ...]:
    try:
        text = (ndk / "source.properties").read_text(encoding="utf-8")
    except OSError:
        return (0,)
    found = re.search(r"Pkg\.Revision\s*=\s*([\d.]+)", text)
    return tuple(map(int, found[1].split("."))) if found else (0,)
