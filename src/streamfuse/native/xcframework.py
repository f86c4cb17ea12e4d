"""Build StreamFuseNative.xcframework, the library that Package.swift takes on Apple's systems, on a Mac.

    ios_demo/tools/xcframework [--zip] [--coreml] [--executorch FOLDER] [--jobs N]

For iPhones, the simulator and Macs, all arm64, it holds core, native/, engine, text/ (Rust) and ExecuTorch's runtime,
with --coreml its Core ML delegate too, joined into one object file that shows the C interfaces and nothing else. So an
app links it without flags: whatever refers to the interface brings the operators and the delegate along, which register
themselves, and no name of Rust's or ExecuTorch's meets another library's.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamfuse.native import executorch_source
from streamfuse.native.build import REPOSITORY, SOURCE, build, cmake_program, find_program
from streamfuse.native.cargo import add_rust_target, cargo_build, need_cargo
from streamfuse.native.command import BuildError, exit_status, need_all, run_tool
from streamfuse.native.executorch_source import Parts

BUILD = REPOSITORY / "build" / "apple-package"
OUT = BUILD / "StreamFuseNative.xcframework"
TOOLCHAIN = "third-party/ios-cmake"  # a submodule of ExecuTorch
HEADERS = {  # the modules that Swift imports, and their headers
    "CStreamFuse": ("core/streamfuse_core.h", "core/streamfuse_low.h", "core/module.modulemap"),
    "CStreamFuseNative": ("native/streamfuse.h", "native/module.modulemap"),
}
# What registers itself and is referred to by nothing comes whole.
WHOLE = (
    "native/libstreamfuse_archive.a", "native/libstreamfuse_ops.a", "install/lib/libexecutorch.a",
    "install/lib/libportable_ops_lib.a",
)  # fmt: skip
PLAIN = (
    "native/libstreamfuse_kernels.a", "install/lib/libexecutorch_core.a", "install/lib/libextension_data_loader.a",
    "install/lib/libportable_kernels.a", "install/lib/libkernels_util_all_deps.a",
)  # fmt: skip
# The Core ML delegate: what registers it, with its categories of Objective-C, and what that calls.
DELEGATE = "install/lib/libcoremldelegate.a"
DELEGATE_CALLS = ("install/lib/libcoreml_inmemoryfs.a", "install/lib/libcoreml_util.a")


@dataclass(frozen=True, slots=True)
class Slice:
    """One system: names of its SDK, of Rust's target, of the toolchain's platform, of Clang's target; its lowest
    version."""

    sdk: str
    rust: str
    platform: str
    clang: str
    lowest: str

    @property
    def deployment(self) -> dict[str, str]:
        """The environment in which compilers build for the lowest version, Rust's C code too."""
        name = "MACOSX" if self.sdk == "macosx" else "IPHONEOS"
        return {f"{name}_DEPLOYMENT_TARGET": self.lowest}


SLICES = (
    Slice("iphoneos", "aarch64-apple-ios", "OS64", "arm64-apple-ios18.0", "18.0"),
    Slice("iphonesimulator", "aarch64-apple-ios-sim", "SIMULATORARM64", "arm64-apple-ios18.0-simulator", "18.0"),
    Slice("macosx", "aarch64-apple-darwin", "MAC_ARM64", "arm64-apple-macos15.0", "15.0"),
)


def check_tools() -> None:
    """BuildError where this is no Mac; or one that names all programs that are missing."""
    if sys.platform != "darwin":
        raise BuildError("the framework for Apple's systems is built on a Mac, with Xcode 16 or newer")
    need_all(_need_ios_sdk, cmake_program, partial(find_program, "ninja"), need_cargo)


def _need_ios_sdk() -> None:
    try:
        run_tool(["xcrun", "--sdk", "iphoneos", "--show-sdk-path"])
    except BuildError:
        raise BuildError(
            "there is no Xcode with the iOS SDK: install it from the App Store, then "
            "sudo xcode-select --switch /Applications/Xcode.app"
        ) from None


def write_headers(folder: Path) -> Path:
    """Write the headers with their module maps: a folder per module, as another framework may have a map at the top."""
    shutil.rmtree(folder, ignore_errors=True)
    for module, files in HEADERS.items():
        (folder / module).mkdir(parents=True)
        for name in files:
            text = (REPOSITORY / name).read_text(encoding="utf-8")
            text = text.replace('#include "streamfuse_core.h"', '#include "../CStreamFuse/streamfuse_core.h"')
            (folder / module / Path(name).name).write_text(text, encoding="utf-8")
    return folder


def join_command(part: Slice, folder: Path, parts: Parts, bundle: Path, out: Path) -> list[str]:
    """The command that joins the archives below `folder` and `bundle`, that of text/, into the object file `out`."""
    whole = [*WHOLE, *([DELEGATE] if parts.coreml else [])]
    plain = [*PLAIN, *(DELEGATE_CALLS if parts.coreml else [])]
    command = ["xcrun", "--sdk", part.sdk, "clang++", "-target", part.clang, "-nostdlib", "-r", "-o", str(out)]
    command += ["-Wl,-exported_symbol,_sf_*"]
    command += [f"-Wl,-force_load,{folder / name}" for name in whole]
    return [*command, *(str(folder / name) for name in plain), str(bundle)]


def build_slice(part: Slice, checkout: Path, parts: Parts, jobs: int | None = None) -> Path:
    """Compile everything for one system and return its static library."""
    folder = BUILD / part.sdk
    add_rust_target(part.rust)
    bundle = cargo_build(BUILD / "cargo", part.rust, environment=part.deployment, jobs=jobs)
    platform = {
        "CMAKE_TOOLCHAIN_FILE": str(checkout / TOOLCHAIN / "ios.toolchain.cmake"),
        "PLATFORM": part.platform,
        "DEPLOYMENT_TARGET": part.lowest,
    }
    prefix = executorch_source.install(checkout, folder, parts, platform, jobs=jobs)
    options = {"EXECUTORCH_INSTALL": str(prefix), "STREAMFUSE_BUNDLE_LIBRARY": str(bundle)}
    build(
        folder / "native",
        executorch=SOURCE / "executorch",
        targets=["streamfuse_archive"],
        options=options | parts.kernels_options() | platform,
        jobs=jobs,
    )
    joined, library = folder / "StreamFuseNative.o", folder / "libStreamFuseNative.a"
    run_tool(join_command(part, folder, parts, bundle, joined))
    check_symbols(run_tool(["xcrun", "nm", "-gU", str(joined)]))
    run_tool(["xcrun", "libtool", "-static", "-o", str(library), str(joined)])
    return library


def check_symbols(listing: str) -> None:
    """Refuse an object file whose defined global symbols, as nm lists them, are others than the C interfaces'.

    Raises:
        BuildError: it shows others, or none.
    """
    names = re.findall(r"^[0-9a-f]+ [A-Z] (\S+)$", listing, re.MULTILINE)
    stray = sorted(name for name in names if not name.startswith("_sf_"))
    if stray or "_sf_model_load" not in names:
        raise BuildError(f"the joined library exports {', '.join(stray[:5]) or 'nothing'} instead of _sf_* only")


def build_xcframework(
    parts: Parts, *, checkout: Path | None = None, archive: bool = False, jobs: int | None = None
) -> list[str]:
    """Build and return lines to print: the framework's path, and with `archive` that of a zip and its checksum."""
    check_tools()
    checkout = checkout or executorch_source.clone(REPOSITORY / "build" / "executorch", parts, [TOOLCHAIN])
    headers = write_headers(BUILD / "headers")
    command = ["xcodebuild", "-create-xcframework"]
    for part in SLICES:
        command += ["-library", str(build_slice(part, checkout.resolve(), parts, jobs)), "-headers", str(headers)]
    shutil.rmtree(OUT, ignore_errors=True)
    run_tool([*command, "-output", str(OUT)])
    if not archive:
        return [str(OUT)]
    zipped = OUT.with_suffix(".xcframework.zip")
    zipped.unlink(missing_ok=True)
    run_tool(["ditto", "-c", "-k", "--keepParent", str(OUT), str(zipped)])
    checksum = run_tool(["swift", "package", "compute-checksum", str(zipped)]).strip()
    return [str(OUT), str(zipped), f"checksum for Package.swift: {checksum}"]


def make_parser() -> argparse.ArgumentParser:
    """The options of ios_demo/tools/xcframework."""
    parser = argparse.ArgumentParser(prog="ios_demo/tools/xcframework", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--zip", action="store_true", help="also a zip with its checksum, for a release")
    parser.add_argument("--coreml", action="store_true", help="also run bundles of --backend coreml")
    parser.add_argument(
        "--executorch",
        type=Path,
        metavar="CHECKOUT",
        help=f"ExecuTorch's sources with {TOOLCHAIN}; default: a clone of {executorch_source.TAG}",
    )
    parser.add_argument("--jobs", type=int, default=None, help="parallel compilations; default: all cores")
    return parser


def run(given: argparse.Namespace) -> list[str]:
    parts = Parts(coreml=given.coreml)
    return build_xcframework(parts, checkout=given.executorch, archive=given.zip, jobs=given.jobs)


def main() -> int:
    given = make_parser().parse_args()
    return exit_status(lambda: print("\n".join(run(given))))


if __name__ == "__main__":
    sys.exit(main())
