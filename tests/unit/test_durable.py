"""Files that are written in one step."""

from __future__ import annotations

import os
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
