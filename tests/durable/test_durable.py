"""Files that are written in one step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamfuse.durable import write_text


def test_a_written_file_is_the_text_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    write_text(path, "Grüße\n")
    assert path.read_bytes() == "Grüße\n".encode()
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_text_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")  # half of a pair: no UTF-8
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_link_keeps_pointing_where_it_did(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, real = tmp_path / "page.html", tmp_path / "real" / "page.html"
    real.write_text("old")
    path.symlink_to(real)
    write_text(path, "new")
    assert path.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", list[str]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_text(path, "through")
    reader.join()
    assert read == ["through"]
    assert path.is_fifo()


def test_processes_may_write_the_same_file(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from streamfuse.durable import write_text\n"
    code += "for i in range(100): write_text(Path(sys.argv[1]), 'the same')"
    command = [sys.executable, "-c", code, str(tmp_path / "config.json")]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["config.json"]


def test_what_killed_writers_leave_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("first", encoding="utf-8")
    code = "import os, sys; from pathlib import Path; from streamfuse import durable\n"
    code += "durable.replace_file = lambda *_: os._exit(9)\ndurable.write_text(Path(sys.argv[1]), 'a longer text')"
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
        assert path.read_text(encoding="utf-8") == "first"
        assert len(os.listdir(tmp_path)) == 2
    write_text(path, "second")
    assert path.read_text(encoding="utf-8") == "second"
    assert os.listdir(tmp_path) == ["config.json"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "page.html"
    with pytest.raises(FileNotFoundError) as found:
        write_text(path, "new")
    assert found.value.filename == str(path)
