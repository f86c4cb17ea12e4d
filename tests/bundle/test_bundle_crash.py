"""Overwriting a bundle: at whatever instant a writer is killed, its name holds a whole bundle; the next one cleans up.

Run: python -m pytest tests/bundle/test_bundle_crash.py
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundle_samples import manifest_fields, write_bundle, write_tokenizer

from streamfuse.bundle import BundleError, BundleWriter, open_bundle, writer
from streamfuse.durable import exchange, set_aside

# A process that overwrites the bundle argv[1] and dies at call number argv[2] of those that touch names.
_KILLED = """
import os, pathlib, shutil, sys
from bundle_samples import manifest_fields, write_tokenizer
from streamfuse import durable
from streamfuse.bundle import BundleWriter, writer

left = int(sys.argv[2])
if sys.argv[3] == "renames":
    durable.exchange = lambda one, other: False

def mortal(function):
    def call(*arguments, **named):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return function(*arguments, **named)
    return call

durable.exchange, writer.flush_tree = mortal(durable.exchange), mortal(writer.flush_tree)
pathlib.Path.rename, shutil.rmtree = mortal(pathlib.Path.rename), mortal(shutil.rmtree)
with BundleWriter(sys.argv[1], overwrite=True) as open_writer:
    (open_writer.folder / "model.pte").write_bytes(b"new")
    write_tokenizer(open_writer.folder)
    open_writer.write_manifest(**manifest_fields())
"""

one_step = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="no system call exchanges two names here")


def overwrite(path: Path, content: bytes) -> None:
    with BundleWriter(path, overwrite=True) as opened:
        (opened.folder / "model.pte").write_bytes(content)
        write_tokenizer(opened.folder)
        opened.write_manifest(**manifest_fields())


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_writer_killed_at_any_step_leaves_a_whole_bundle(way: str, tmp_path: Path) -> None:
    ended = False
    for step in range(12):
        path = write_bundle(tmp_path / str(step) / "demo")
        done = subprocess.run([sys.executable, "-c", _KILLED, str(path), str(step), way], check=False)
        ended = done.returncode == 0
        assert done.returncode in (0, 9)
        assert open_bundle(path).graph.read_bytes()[:3] in (b"not", b"new")
        overwrite(path, b"next")
        assert open_bundle(path).graph.read_bytes() == b"next"
        assert [left.name for left in path.parent.iterdir()] == ["demo"]
        if ended:
            break
    assert ended


@one_step
def test_names_change_places(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists()
    assert (tmp_path / "other" / "one").exists()
    assert not exchange(tmp_path / "one", tmp_path / "nowhere")


def test_between_two_renames_the_old_bundle_is_found_where_it_stands(bundle: Path) -> None:
    bundle.rename(set_aside(bundle))
    assert open_bundle(bundle).manifest.model.name == "test/bytes"
    with pytest.raises(BundleError, match="exists already"), BundleWriter(bundle):
        pass
    assert open_bundle(bundle).folder == bundle  # the writer put it back


def test_what_another_writer_has_open_is_left_alone(bundle: Path) -> None:
    with BundleWriter(bundle, overwrite=True) as slow:
        (slow.folder / "model.pte").write_text("slow")
        overwrite(bundle, b"fast")
        write_tokenizer(slow.folder)
        slow.write_manifest(**manifest_fields())
    assert open_bundle(bundle).graph.read_text() == "slow"
    assert [path.name for path in bundle.parent.iterdir()] == ["demo"]


def test_a_leftover_that_is_gone_once_it_is_opened_stops_no_writer(bundle: Path) -> None:
    """As that of another writer, which ends between the listing and the opening; a dangling link is like it."""
    link = bundle.with_name(".demo.partial-gone")
    link.symlink_to("nowhere")
    overwrite(bundle, b"new")
    assert open_bundle(bundle).graph.read_bytes() == b"new"
    assert sorted(path.name for path in bundle.parent.iterdir()) == [link.name, "demo"]


@one_step
def test_a_reader_finds_a_bundle_at_any_time(bundle: Path) -> None:
    stop, failures = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if not (bundle / "manifest.json").exists():
                failures.append("no manifest")

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(20):
        overwrite(bundle, str(i).encode())
    stop.set()
    thread.join()
    assert not failures


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writer, name, refuse)
        yield


@pytest.mark.parametrize("name", ["flush_tree", "manifest_json"])
def test_a_full_disk_is_one_sentence_and_the_old_bundle_stays(
    name: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch, name), pytest.raises(BundleError, match=r"demo: cannot be written .*space.*make room"):
        overwrite(bundle, b"new")
    assert open_bundle(bundle).graph.read_bytes().startswith(b"not")
    assert [path.name for path in bundle.parent.iterdir()] == ["demo"]


def test_everything_is_flushed_before_it_takes_the_name(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    own = os.fsync

    def fsync(number: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        own(number)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("names of open files are known on Linux only")
    monkeypatch.setattr(os, "fsync", fsync)
    overwrite(bundle, b"new")
    files = ["model.pte", "tokenizer.json", "manifest.json"]
    assert sorted(flushed[:3]) == sorted(files)
    assert flushed[3].startswith(".demo.partial-")
    assert flushed[4:] == [bundle.parent.name]
