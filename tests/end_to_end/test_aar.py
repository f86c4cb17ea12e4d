"""The Kotlin library as an app takes it: packaged by android_demo/tools/aar into a Maven repository, and added to a
project in an empty folder by its coordinates. Android's own tools are not here, so Linux's compilers stand for the NDK.

Run: pytest --slow tests/end_to_end/test_aar.py. Skipped without JDK, Maven or cargo; the ARM half also without its
tools.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import peer
import pytest
from arm_java import ARM_TOOLS, KOTLIN_TOOLS, emulated_java

from streamfuse.native.android import maven
from streamfuse.native.android.elf import PAGE, read_library
from streamfuse.native.android.toolchains import EXPORTED, host_abi
from streamfuse.native.arm.mobile import missing_for_java
from streamfuse.native.build import default_build_dir
from streamfuse.native.cargo import find_cargo

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("javac", "mvn") if shutil.which(name) is None] + (["cargo"] if not find_cargo() else [])
if MISSING:
    pytest.skip(f"not installed: {', '.join(MISSING)} ({KOTLIN_TOOLS})", allow_module_level=True)

pytestmark = pytest.mark.slow
HERE, ARM = host_abi(), "arm64-v8a"
# test_arm.py runs core and operators for ARM, `make arm` text/ and JNI too.
ABIS = [HERE, *([pytest.param(ARM, marks=pytest.mark.full)] if HERE != ARM else [])]
QUESTION = "the keeper climbed the steps"
CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0:build-classpath"
# As android_demo/.mvn/jvm.config has it, for the projects in empty folders.
QUICK = {"MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
HOST_MAIN = """import dev.streamfuse.GenerationConfig
import dev.streamfuse.StreamFuse
import java.io.File
import kotlinx.coroutines.runBlocking

fun main(words: Array<String>) = runBlocking {
    StreamFuse.load(File(words[0])).use { model ->
        model.chat().use { it.send(words[1], GenerationConfig(maxNewTokens = 12)).collect { print(it.text) } }
    }
}
"""
HOST_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>host</groupId><artifactId>host</artifactId><version>1</version>
  <repositories><repository><id>streamfuse</id><url>{repository}</url></repository></repositories>
  <dependencies><dependency>
    <groupId>dev.streamfuse</groupId><artifactId>streamfuse-jvm</artifactId><version>{version}</version>
  </dependency></dependencies>
  <build>
    <sourceDirectory>.</sourceDirectory>
    <plugins><plugin>
      <groupId>org.jetbrains.kotlin</groupId><artifactId>kotlin-maven-plugin</artifactId><version>{kotlin}</version>
      <executions><execution><goals><goal>compile</goal></goals></execution></executions>
    </plugin></plugins>
  </build>
</project>
"""
# R8, which shrinks Android apps, is only in Google's repository; ProGuard reads the same rules.
SHRINKER_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>shrinker</groupId><artifactId>shrinker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.guardsquare</groupId><artifactId>proguard-base</artifactId><version>7.8.1</version>
  </dependency></dependencies>
</project>
"""
# Its optimizer writes bytecode of coroutines that the JVM refuses; what the rules keep does not depend on it.
SHRINKER_RULES = """-keep class MainKt { public static void main(java.lang.String[]); }
-ignorewarnings
-dontoptimize
"""


def packaged(out: Path, *options: str) -> Path:
    """The repository `out` after a run of the script."""
    command = [str(ROOT / "android_demo/tools/aar"), "--toolchain", "linux", "--jobs", "2", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar, and the archive with this machine's library."""
    return packaged(tmp_path_factory.mktemp("maven"), "--abi", HERE)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> list[str]:
    """The classpath of a project in an empty folder that depends on the jar."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "Main.kt").write_text(HOST_MAIN)
    pom = (ROOT / "android_demo" / "pom.xml").read_text(encoding="utf-8")
    (kotlin,) = re.findall(r"<kotlin.version>(.+)</kotlin.version>", pom)
    (folder / "pom.xml").write_text(
        HOST_POM.format(repository=repository.as_uri(), version=maven.version(), kotlin=kotlin)
    )
    # Maven would keep the jar of an earlier run, because released versions do not change; all else it may keep.
    cache = folder / "m2"
    cache.mkdir()
    for kept in Path.home().joinpath(".m2", "repository").glob("*"):
        if kept.name != "dev":
            (cache / kept.name).symlink_to(kept)
    command = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={cache}", "compile", CLASSPATH]
    # A compiler that stays in the background would hold its memory for hours.
    options = ["-Dmdep.outputFile=classpath", "-Dkotlin.compiler.daemon=false"]
    subprocess.run([*command, *options], cwd=folder, check=True, env=os.environ | QUICK)
    assert list(cache.glob("dev/streamfuse/streamfuse-jvm/*/*.jar"))
    return [str(folder / "target" / "classes"), *(folder / "classpath").read_text().split(os.pathsep)]


def expected(bundle: Path) -> str:
    config = {"max_new_tokens": 12}
    return peer.answer({"bundle": str(bundle), "turns": [QUESTION], "config": config})["turns"][0]["text"]


def test_a_project_prints_a_text_with_the_jar_from_the_repository(
    host: list[str], chat_bundle: Path, tmp_path: Path
) -> None:
    command = [
        "java",
        f"-Djava.io.tmpdir={tmp_path}",
        "-cp",
        os.pathsep.join(host),
        "MainKt",
        str(chat_bundle),
        QUESTION,
    ]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected(chat_bundle)
    assert list(tmp_path.iterdir()) == []  # what the jar unpacks is gone with the process


def test_a_shrunk_and_renamed_project_prints_the_same_text(
    host: list[str], repository: Path, chat_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "pom.xml").write_text(SHRINKER_POM)
    resolve = ["mvn", "--batch-mode", "--quiet", CLASSPATH, "-Dmdep.outputFile=classpath"]
    subprocess.run(resolve, cwd=tmp_path, check=True, env=os.environ | QUICK)
    (aar,) = repository.glob("dev/streamfuse/streamfuse-android/*/*.aar")
    # The rules of the library, and those that Kotlin's libraries carry for the apps that shrink them.
    rules = [SHRINKER_RULES, zipfile.ZipFile(aar).read("proguard.txt").decode()]
    for jar in (path for path in host if path.endswith(".jar")):
        with zipfile.ZipFile(jar) as archive:
            carried = [name for name in archive.namelist() if re.fullmatch(r"META-INF/proguard/.*\.pro", name)]
            rules += [archive.read(name).decode() for name in carried]
    injars = [f'-injars "{path}"(!**/module-info.class)' for path in host]
    shrunk, renamed = tmp_path / "shrunk.jar", tmp_path / "renamed.txt"
    libraries = "-libraryjars <java.home>/jmods(java.base.jmod;!**.jar;!module-info.class)"
    lines = [*injars, f'-outjars "{shrunk}"', libraries, f'-printmapping "{renamed}"', *rules]
    (tmp_path / "rules.pro").write_text("\n".join(lines))
    shrink = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        (tmp_path / "classpath").read_text(),
        "proguard.ProGuard",
        f"@{tmp_path / 'rules.pro'}",
    ]
    done = subprocess.run(shrink, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    command = ["java", "-cp", str(shrunk), "MainKt", str(chat_bundle), QUESTION]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected(chat_bundle)
    names = dict(re.findall(r"^(\S+) -> (\S+):$", renamed.read_text(), re.MULTILINE))
    assert names["dev.streamfuse.Native"] == "dev.streamfuse.Native"
    assert names["dev.streamfuse.Model"] != "dev.streamfuse.Model"


@pytest.mark.parametrize("abi", ABIS)
def test_the_archive_has_the_layout_of_an_aar_and_its_library_runs(
    abi: str, repository: Path, host: list[str], chat_bundle: Path, tmp_path: Path
) -> None:
    run, out, environment = ["java"], repository, {"LC_ALL": "C.UTF-8"}
    if abi != HERE:
        if missing_for_java():
            pytest.skip(f"not installed: {', '.join(missing_for_java())} ({ARM_TOOLS})")
        run = emulated_java(default_build_dir().with_name("arm"))
        out = packaged(tmp_path / "maven", "--only", "aar", "--abi", abi, "--profile", "quick")
        environment |= {"QEMU_CPU": "cortex-a53", "STREAMFUSE_ISA": ""}
    folder = out / "dev" / "streamfuse" / "streamfuse-android" / maven.version()
    (aar,) = folder.glob("*.aar")
    assert aar.name.endswith("-linux.aar")
    with zipfile.ZipFile(aar) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "aar")
    assert {"AndroidManifest.xml", "classes.jar", "R.txt", "proguard.txt"} <= names
    assert "META-INF/com/android/build/gradle/aar-metadata.properties" in names
    library = tmp_path / "aar" / "jni" / abi / "libstreamfuse_jni.so"
    read = read_library(library)
    assert all(segment.alignment == PAGE for segment in read.segments)
    assert "sf_model_load" in read.exported
    assert all(re.fullmatch(EXPORTED, name) for name in read.exported)
    with zipfile.ZipFile(tmp_path / "aar" / "classes.jar") as classes:
        assert "dev/streamfuse/StreamFuse.class" in classes.namelist()
    with zipfile.ZipFile(next(folder.glob("*-symbols.zip"))) as symbols:
        assert symbols.namelist() == [f"{abi}/libstreamfuse_jni.so.dbg"]

    classpath = [str(tmp_path / "aar" / "classes.jar"), *(path for path in host if "streamfuse-jvm" not in path)]
    command = [*run, "-XX:TieredStopAtLevel=1", f"-Dstreamfuse.library.path={library}"]
    command += ["-cp", os.pathsep.join(classpath), "MainKt", str(chat_bundle), QUESTION]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected(chat_bundle)
