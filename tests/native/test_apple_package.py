"""Apple's package as far as it can be read where there is no Mac: what the manifest and the Xcode project name is what
the script builds, and the framework's headers are whole.

Run: python -m pytest tests/native/test_apple_package.py
"""

from __future__ import annotations

import json
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from executorch_sources import executorch_checkout

from streamfuse.native import executorch_source, xcframework
from streamfuse.native.command import BuildError
from streamfuse.native.executorch_source import Parts

ROOT = Path(__file__).parents[2]
APP = ROOT / "ios_demo" / "App" / "StreamFuseDemo"
LIBRARY = ROOT / "ios_demo" / "StreamFuse" / "Sources" / "StreamFuseCore"
MANIFEST = (ROOT / "Package.swift").read_text(encoding="utf-8")
PROJECT = (APP / "StreamFuseDemo.xcodeproj" / "project.pbxproj").read_text(encoding="utf-8")


def test_the_manifest_takes_the_framework_that_the_script_builds() -> None:
    assert f'path: "{xcframework.OUT.relative_to(ROOT)}"' in MANIFEST
    assert f'let name = "{xcframework.OUT.stem}"' in MANIFEST


def test_on_apple_the_package_has_nothing_that_keeps_an_app_from_depending_on_a_version_of_it() -> None:
    assert not re.search(r"\bbranch:|\brevision:|all_load|fileExists", MANIFEST)
    on_linux = re.search(r"#if os\(Linux\)\n(.*?)#else\n", MANIFEST, re.DOTALL)
    assert on_linux
    assert MANIFEST.count("unsafeFlags") == on_linux[1].count("unsafeFlags") == 4


def test_each_module_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Xcode copies the headers of all frameworks of an app into one folder, so a map at the top would meet another."""
    headers = xcframework.write_headers(tmp_path / "headers")
    assert {path.parent.name for path in headers.rglob("module.modulemap")} == {"CStreamFuse", "CStreamFuseNative"}
    assert [path for path in headers.iterdir() if path.is_file()] == []
    for module_map in headers.rglob("module.modulemap"):
        text = module_map.read_text(encoding="utf-8")
        assert f"module {module_map.parent.name} " in text
        for name in re.findall(r'header "(.+)"', text):
            assert (module_map.parent / name).is_file()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_headers_compile_from_there(tmp_path: Path) -> None:
    headers = xcframework.write_headers(tmp_path / "headers")
    source = tmp_path / "app.c"
    source.write_text(
        '#include "CStreamFuseNative/streamfuse.h"\nint main(void) { return SF_OK + !sizeof(sf_piece); }\n'
    )
    command = ["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", headers, source]
    assert subprocess.run(command, capture_output=True).stderr == b""


def commands_of(
    part: xcframework.Slice, parts: Parts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    """The commands that build one system's library, but for those of cargo."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> str:
        commands.append(command)
        return "0000000000000010 T _sf_model_load\n" if "nm" in command else ""

    checkout = executorch_checkout(folder, "backends/apple/coreml/CMakeLists.txt")
    monkeypatch.setattr(xcframework, "BUILD", folder)
    monkeypatch.setattr(xcframework, "add_rust_target", lambda target: None)
    monkeypatch.setattr(xcframework, "cargo_build", lambda *_, **__: folder / "text.a")
    monkeypatch.setattr(xcframework, "build", lambda *_, options, **__: run([f"-D{k}={v}" for k, v in options.items()]))
    monkeypatch.setattr(xcframework, "run_tool", run)
    monkeypatch.setattr(executorch_source, "run_tool", run)
    xcframework.build_slice(part, checkout, parts)
    return commands


@pytest.mark.parametrize("coreml", [False, True])
def test_what_registers_itself_is_joined_whole_and_only_the_c_interfaces_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coreml: bool
) -> None:
    part = xcframework.SLICES[1]
    configure, _, native, join, *_ = commands_of(part, Parts(coreml=coreml), tmp_path, monkeypatch)
    folder, switch = tmp_path / part.sdk, "ON" if coreml else "OFF"
    assert f"-DEXECUTORCH_BUILD_COREML={switch}" in configure
    assert f"-DSTREAMFUSE_COREML={switch}" in native
    whole = [*xcframework.WHOLE, *([xcframework.DELEGATE] if coreml else [])]
    assert [word for word in join if "force_load" in word] == [f"-Wl,-force_load,{folder / name}" for name in whole]
    assert {str(folder / name) in join for name in xcframework.DELEGATE_CALLS} == {coreml}
    assert "-Wl,-exported_symbol,_sf_*" in join
    assert "-r" in join
    assert part.clang == "arm64-apple-ios18.0-simulator"
    assert str(tmp_path / "text.a") in join


def test_an_app_links_the_libraries_that_the_core_ml_delegate_calls() -> None:
    (linked,) = re.findall(r"let systemLibraries: \[LinkerSetting\] =\n(.*?)\nlet ", MANIFEST, re.DOTALL)
    assert set(re.findall(r'"(.+?)"', linked)) >= {"Accelerate", "CoreML", "Foundation", "sqlite3"}
    assert "linkerSettings: usesFramework ? systemLibraries : link" in MANIFEST


def test_a_joined_library_that_shows_other_names_is_refused() -> None:
    ours = "0000000000000010 T _sf_model_load\n0000000000000020 S _sf_other\n"
    xcframework.check_symbols(ours)
    with pytest.raises(BuildError, match=r"exports _rust_eh_personality instead of _sf_\* only"):
        xcframework.check_symbols(ours + "0000000000000030 T _rust_eh_personality\n")
    with pytest.raises(BuildError, match="exports nothing"):
        xcframework.check_symbols("")


@pytest.mark.skipif(sys.platform == "darwin", reason="of other systems")
def test_elsewhere_the_script_says_where_it_runs() -> None:
    done = subprocess.run([ROOT / "ios_demo/tools/xcframework"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the framework for Apple's systems is built on a Mac, with Xcode 16 or newer\n"


@pytest.mark.parametrize("folder", [APP, LIBRARY])
def test_app_and_library_say_why_they_ask_the_system(folder: Path) -> None:
    """The store refuses an upload whose code calls these and has no reason for it (ITMS-91053)."""
    facts = plistlib.loads((folder / "PrivacyInfo.xcprivacy").read_bytes())
    assert facts["NSPrivacyTracking"] is False
    listed = {
        entry["NSPrivacyAccessedAPIType"].removeprefix("NSPrivacyAccessedAPICategory")
        for entry in facts["NSPrivacyAccessedAPITypes"]
    }
    calls = {
        "UserDefaults": "UserDefaults",
        "FileTimestamp": "contentModificationDate",
        "DiskSpace": "systemFreeSize",
        "SystemBootTime": "systemUptime|steady_clock",
    }
    places = [ROOT / "ios_demo" / "App" / "Sources"] if folder == APP else []
    places += [ROOT / "ios_demo" / "StreamFuse" / "Sources", ROOT / "core", ROOT / "native", ROOT / "kernels"]
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for place in places
        for path in place.rglob("*")
        if path.suffix in (".swift", ".cpp", ".h")
    )
    assert listed == {name for name, call in calls.items() if re.search(call, text)}


def test_the_app_has_what_an_upload_needs() -> None:
    assert PROJECT.count('"EXCLUDED_ARCHS[sdk=iphonesimulator*]" = x86_64;') == 2  # the framework is arm64
    for setting in (
        "ASSETCATALOG_COMPILER_APPICON_NAME = AppIcon;",
        "INFOPLIST_KEY_ITSAppUsesNonExemptEncryption = NO;",
        "INFOPLIST_KEY_UISupportedInterfaceOrientations_iPad",
        "INFOPLIST_KEY_UISupportedInterfaceOrientations_iPhone",
    ):
        assert PROJECT.count(setting) == 2
    icon = APP / "Assets.xcassets" / "AppIcon.appiconset"
    (image,) = json.loads((icon / "Contents.json").read_text())["images"]
    header = (icon / image["filename"]).read_bytes()[:26]
    assert (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")) == (1024, 1024)
    assert header[25] == 2  # RGB: the store refuses transparency
    for name in ("Assets.xcassets", "PrivacyInfo.xcprivacy"):
        assert PROJECT.count(f"/* {name} in Resources */") == 2
