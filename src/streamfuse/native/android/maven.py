"""Lay an Android archive, a jar for desktops and their POMs into a folder that is a repository to Gradle and Maven."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from streamfuse.native.build import REPOSITORY

POM = REPOSITORY / "android_demo" / "pom.xml"
CATALOG = REPOSITORY / "android_demo" / "gradle" / "libs.versions.toml"
MODULE = REPOSITORY / "android_demo" / "streamfuse"
GROUP = "dev.streamfuse"
ANDROID, JVM = "streamfuse-android", "streamfuse-jvm"
_XML = {"m": "http://maven.apache.org/POM/4.0.0"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal contents give equal archives

# What Gradle asks before it takes an archive: the oldest Android and plugin that it works with.
_AAR_METADATA = """aarFormatVersion=1.0
aarMetadataVersion=1.0
minCompileSdk=1
minCompileSdkExtension=0
minAndroidGradlePluginVersion=1.0.0
coreLibraryDesugaringEnabled=false
"""


def version() -> str:
    """The version of the Kotlin library, from its POM."""
    return _text(ElementTree.parse(POM).getroot(), "m:version")


def dependencies() -> list[tuple[str, str, str]]:
    """Group, name and version of what the library's public types need, from the POMs."""
    properties = {
        entry.tag.partition("}")[2]: entry.text or ""
        for entry in ElementTree.parse(POM).getroot().findall("m:properties/*", _XML)
    }
    managed = {
        _text(entry, "m:artifactId"): re.sub(
            r"\$\{(.+?)\}", lambda name: properties[name[1]], _text(entry, "m:version")
        )
        for entry in ElementTree.parse(POM).getroot().findall("m:dependencyManagement//m:dependency", _XML)
    }
    return [
        (_text(entry, "m:groupId"), _text(entry, "m:artifactId"), managed[_text(entry, "m:artifactId")])
        for entry in ElementTree.parse(MODULE / "pom.xml").getroot().findall("m:dependencies/m:dependency", _XML)
        if entry.find("m:scope", _XML) is None
    ]


def lowest_sdk() -> int:
    """The oldest Android that the library runs on, an API level, from Gradle's version catalog."""
    found = re.search(r'^minSdk = "(\d+)"$', CATALOG.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def write_aar(path: Path, classes: Path, libraries: Mapping[str, Iterable[Path]]) -> None:
    """Write an Android archive: the classes below `classes`, and the shared libraries of each ABI."""
    manifest = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{GROUP}">\n'
        f'    <uses-sdk android:minSdkVersion="{lowest_sdk()}" />\n'
        "</manifest>\n"
    )
    entries: dict[str, bytes] = {
        "AndroidManifest.xml": manifest.encode(),
        "R.txt": b"",  # it has no resources
        "META-INF/com/android/build/gradle/aar-metadata.properties": _AAR_METADATA.encode(),
        "proguard.txt": (MODULE / "consumer-rules.pro").read_bytes(),
    }
    inner = path.with_suffix(".classes")
    write_jar(inner, classes)
    entries["classes.jar"] = inner.read_bytes()
    inner.unlink()
    for abi, files in libraries.items():
        entries |= {f"jni/{abi}/{file.name}": file.read_bytes() for file in files}
    _write_zip(path, entries)


def write_jar(path: Path, folder: Path, more: Mapping[str, bytes] | None = None) -> None:
    """Write the files below `folder`, and `more` by name."""
    entries = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    _write_zip(path, entries | dict(more or {}))


def write_symbols(path: Path, symbols: Mapping[str, Iterable[Path]]) -> None:
    """Write the debug symbols of each ABI, in the layout that Google Play takes."""
    _write_zip(path, {f"{abi}/{file.name}": file.read_bytes() for abi, files in symbols.items() for file in files})


def publish(repository: Path, name: str, packaging: str, files: Mapping[str, Path]) -> Path:
    """Copy `files` below `repository` with a POM and checksums, and return the artifact's folder.

    Keys of `files` are what follows name and version: ".aar", "-linux.aar", "-sources.jar".
    """
    number = version()
    folder = repository.joinpath(*GROUP.split("."), name, number)
    folder.mkdir(parents=True, exist_ok=True)
    written = {f"{name}-{number}{ending}": source.read_bytes() for ending, source in files.items()}
    written[f"{name}-{number}.pom"] = _pom(name, packaging, number).encode()
    for file, data in written.items():
        _write(folder / file, data)
    metadata = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<metadata>\n  <groupId>{GROUP}</groupId>\n'
        f"  <artifactId>{name}</artifactId>\n  <versioning>\n    <release>{number}</release>\n"
        f"    <versions><version>{number}</version></versions>\n  </versioning>\n</metadata>\n"
    )
    _write(folder.parent / "maven-metadata.xml", metadata.encode())
    return folder


def _pom(name: str, packaging: str, number: str) -> str:
    needed = "".join(
        f"    <dependency>\n      <groupId>{group}</groupId>\n      <artifactId>{artifact}</artifactId>\n"
        f"      <version>{needs}</version>\n      <scope>compile</scope>\n    </dependency>\n"
        for group, artifact, needs in dependencies()
    )
    about = "Runs language models on the device with speculative decoding; bundles are those of `streamfuse export`."
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        f"  <modelVersion>4.0.0</modelVersion>\n  <groupId>{GROUP}</groupId>\n  <artifactId>{name}</artifactId>\n"
        f"  <version>{number}</version>\n  <packaging>{packaging}</packaging>\n  <name>{name}</name>\n"
        f"  <description>{escape(about)}</description>\n"
        "  <licenses>\n    <license>\n      <name>Apache-2.0</name>\n"
        "      <url>https://www.apache.org/licenses/LICENSE-2.0.txt</url>\n    </license>\n  </licenses>\n"
        f"  <dependencies>\n{needed}  </dependencies>\n</project>\n"
    )


def _text(element: ElementTree.Element, name: str) -> str:
    found = element.findtext(name, namespaces=_XML)
    assert found is not None, f"the POM has no {name}"
    return found


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for algorithm in ("sha1", "sha256"):
        path.with_name(f"{path.name}.{algorithm}").write_text(
            hashlib.new(algorithm, data).hexdigest(), encoding="ascii"
        )


def _write_zip(path: Path, entries: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), entries[name], zipfile.ZIP_DEFLATED)
