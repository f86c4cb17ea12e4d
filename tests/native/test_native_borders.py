"""native/streamfuse.h at its borders: what cannot be opened, engines of one's own, failures, threads, null pointers.

Run: make native-mobile; python -m pytest tests/native/test_native_borders.py
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from app_library import (
    BAD_ARGUMENT,
    BAD_FILE,
    BUILT,
    AnswerOptions,
    AppModel,
    AppSession,
    LibraryFailure,
    SessionOptions,
    library,
    needs_library,
)
from bundle_samples import SavingBackend, edit_manifest, fake_engines, write_bundle
from pages import ROOT

from streamfuse.bundle import open_bundle
from streamfuse.runtime.backends.callbacks import table_of
from streamfuse.runtime.structures import RELEASE, ConstraintTable
from streamfuse.runtime.text_library import EXECUTION, OK

SHORT = {"max_new_tokens": 12}

pytestmark = needs_library


def test_what_cannot_be_opened_is_named(chat_bundle: Path, model: AppModel, tmp_path: Path) -> None:
    plain = write_bundle(tmp_path / "plain")
    damaged = write_bundle(tmp_path / "damaged")
    edit_manifest(damaged, lambda manifest: manifest["cache"].update(capacity=-1))
    for folder, words in [
        (tmp_path / "nothing", ["nothing"]), (damaged, ["manifest.json", "capacity"]), (plain, ["model.pte"]),
    ]:  # fmt: skip
        with pytest.raises(LibraryFailure) as refused:
            AppModel(folder)
        assert all(word in str(refused.value) for word in words)
    with pytest.raises(LibraryFailure, match="key"):
        AppModel(chat_bundle, public_key=b"no key")
    for history in (b"no list", b'[{"role": 1}]', b"[", b" "):
        with pytest.raises(LibraryFailure, match=r"messages must be a JSON list"):
            model.chat(history=history)


def test_what_is_wrong_inside_a_file_is_named_with_the_file(chat_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(chat_bundle, tmp_path / "bundle")
    edit_manifest(bundle, lambda manifest: manifest["cache"].update(capacity=96))
    with pytest.raises(LibraryFailure, match=f"^{bundle}/model.pte: capacity is 96 in the manifest but 128 "):
        AppModel(bundle)
    edit_manifest(bundle, lambda manifest: manifest["cache"].update(capacity=128))
    tables = bundle / "draft.safetensors"
    data = bytearray(tables.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    first = start + json.loads(data[8:start])["calibration"]["data_offsets"][0]
    data[first : first + 4] = np.float32(11).tobytes()
    tables.write_bytes(data)
    with pytest.raises(LibraryFailure, match=f"^{tables}: calibration holds a ratio"):
        AppModel(bundle, skip_hashes=1)


def test_measured_costs_are_kept_in_a_file_per_bundle_and_device(chat_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "costs"
    for threads in (1, 2, 1):
        with AppModel(chat_bundle, cost_folder=bytes(folder), threads=threads) as opened:
            chat = opened.chat()
            chat.ask("Who keeps the lamp?", **SHORT)
            chat.free()
    assert len(list(folder.glob("*.costs"))) == 2


def test_relative_names_are_those_of_the_load(
    chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    with AppModel(chat_bundle, cost_folder=b"costs", memory_file=b"answers") as opened:
        monkeypatch.chdir(there)
        chat = opened.chat()
        chat.ask("Who keeps the lamp?", **SHORT)
        chat.free()
        assert (here / "answers").stat().st_size > 16
        assert len(list((here / "costs").glob("*.costs"))) == 1
        assert library().sf_model_forget(opened.handle) == OK
    assert (here / "answers").stat().st_size == 0
    assert list(there.iterdir()) == []


def test_a_session_outlives_its_model(chat_bundle: Path) -> None:
    model = AppModel(chat_bundle)
    chat, options = model.chat(), model.options(**SHORT)
    model.options = lambda **_: options  # type: ignore[method-assign]  # the model's handle is gone then
    expected = chat.ask("Who keeps the lamp?")
    model.free()
    chat.reset()
    assert chat.ask("Who keeps the lamp?") == expected
    chat.free()


FAILURES = """
#include <cstdio>
#include <thread>
#include <vector>
#include "streamfuse.h"

int main(int, char** arguments) {
  sf_model_options options{sizeof options};
  options.memory_file = arguments[2];
  sf_model* model;
  if (sf_model_load(arguments[1], &options, &model) != SF_OK) return 1;
  std::remove(arguments[2]);
  std::remove(arguments[3]);
  size_t read = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([=, at = i == 0 ? &read : nullptr] {
      size_t bytes = 0;
      for (int repeat = 0; repeat < 20000; ++repeat) {
        int64_t n;
        const int code = i % 2 == 0 ? sf_model_count_tokens(model, "\\xff", 1, &n) : sf_model_forget(model);
        if (code == SF_OK) return;
        for (const char* letter = sf_model_error(model); *letter != 0; ++letter) ++bytes;
      }
      if (at != nullptr) *at = bytes;
    });
  for (std::thread& thread : threads) thread.join();
  sf_model_free(model);
  return read > 0 ? 0 : 2;
}
"""


def test_calls_of_a_model_that_fail_in_several_threads_have_their_messages(chat_bundle: Path, tmp_path: Path) -> None:
    source, program, folder = tmp_path / "failures.cpp", tmp_path / "failures", tmp_path / "memory"
    source.write_text(FAILURES, encoding="utf-8")
    folder.mkdir()
    flags = ["-std=c++20", "-O1", "-pthread", "-I", str(ROOT / "native"), "-I", str(ROOT / "core")]
    link = [str(BUILT), f"-Wl,-rpath,{BUILT.parent}"]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, str(source), *link, "-o", str(program)], check=True)
    done = subprocess.run([program, chat_bundle, folder / "answers", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_facts_of_a_model(model: AppModel, chat_bundle: Path) -> None:
    c = library()
    assert json.loads(c.sf_model_manifest(model.handle)) == json.loads((chat_bundle / "manifest.json").read_text())
    assert Path(c.sf_model_graph(model.handle).decode()) == chat_bundle / "model.pte"
    assert json.loads(c.sf_model_engine(model.handle))["threads"] >= 1
    assert c.sf_model_load_ms(model.handle) > 0
    assert c.sf_model_can_chat(model.handle) == 1
    assert json.loads(c.sf_backends())["kernels"] is None


def test_the_library_s_version_is_the_package_s() -> None:
    header = (ROOT / "native" / "streamfuse.h").read_text(encoding="utf-8")
    assert f'#define SF_VERSION "{library().sf_version().decode()}"' in header
    assert f'\nversion = "{library().sf_version().decode()}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"#define SF_ABI_VERSION {library().sf_abi_version()} " in header


def test_a_null_pointer_is_an_error_and_no_crash() -> None:
    c = library()
    assert c.sf_chat_new(None, None, None) == BAD_ARGUMENT
    for function in ("next", "prepare", "finish", "reset", "trim"):
        assert getattr(c, f"sf_session_{function}")(None, *([None] if function == "next" else [])) == BAD_ARGUMENT
    c.sf_session_stop(None)
    c.sf_session_free(None)
    c.sf_model_free(None)
    assert c.sf_session_statistics(None) is None
    assert c.sf_session_error(None) == c.sf_model_error(None) == b"out of memory"


def test_a_start_without_a_session_releases_the_constraint(model: AppModel) -> None:
    c, released = library(), []
    constraint = ConstraintTable()
    release = type(constraint.release)(lambda _: released.append(True))
    constraint.release = release
    sampling = model.options()
    sampling.constraint = ctypes.pointer(constraint)
    options = ctypes.byref(AnswerOptions(sampling=ctypes.pointer(sampling)))
    refused = ctypes.c_void_p()
    assert c.sf_completion_new(None, None, ctypes.byref(refused)) != OK
    for count, session in enumerate((None, refused)):
        assert c.sf_session_start(session, b"a", 1, options) != OK
        assert c.sf_session_start_tokens(session, None, 0, options) != OK
        assert c.sf_session_start_tool_results(session, b"", 0, options) != OK
        assert len(released) == 3 * (count + 1)
    c.sf_session_free(refused)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[AppModel, Any]]:
    """A model without an engine, and what makes one in Python."""
    folder = write_bundle(tmp_path / "own")
    made, engines = fake_engines()
    new = engines(open_bundle(folder))
    tables = []

    def table() -> tuple[Any, fakes.ArithmeticBackend]:
        tables.append(table_of(new()))
        return ctypes.pointer(tables[-1].struct), made[-1]

    with AppModel(folder, own_engine=1) as opened:
        yield opened, table


def test_an_engine_of_one_s_own_answers_and_is_released_once(fake: tuple[AppModel, Any]) -> None:
    model, table = fake
    backend, engine = table()
    chat = model.chat(backend=backend, device=b"counting")
    plain = chat.ask("abc", speculative=0, **SHORT)
    chat.reset()
    assert chat.ask("abc", width=8, **SHORT) == plain
    assert not engine.closed
    chat.free()
    assert engine.closed
    backend, engine = table()
    with pytest.raises(LibraryFailure, match="completion has no turns"):
        AppSession(model, "sf_completion_new", SessionOptions(system=b"x", system_bytes=1, backend=backend))
    assert engine.closed
    with pytest.raises(LibraryFailure, match="own_engine"):
        model.chat()


def test_only_what_the_native_engine_does_not_run_is_left_to_others(chat_bundle: Path, tmp_path: Path) -> None:
    with AppModel(chat_bundle, own_engine=2) as model:
        chat = model.chat()
        assert chat.ask("Who keeps the lamp?", **SHORT)
        chat.free()
    package = write_bundle(tmp_path / "package")
    (package / "model.pte").unlink()
    (package / "model.mlpackage").mkdir()
    (package / "model.mlpackage" / "Manifest.json").write_text("{}")

    def make_core_ml(manifest: dict[str, Any]) -> None:
        manifest.update(target="coreml", backend="mlprogram")
        del manifest["files"]["model.pte"]
        manifest["files"]["model.mlpackage/Manifest.json"] = {"sha256": "0" * 64, "bytes": 2}

    edit_manifest(package, make_core_ml)
    with pytest.raises(LibraryFailure, match="Core ML on Apple's devices"):
        AppModel(package, skip_hashes=1)
    AppModel(package, skip_hashes=1, own_engine=2).free()


def test_an_engine_s_failure_ends_the_answer_and_the_next_one_is_as_ever(fake: tuple[AppModel, Any]) -> None:
    model, table = fake
    backend, engine = table()
    chat = model.chat(backend=backend)
    whole = chat.ask("abc", speculative=0, **SHORT)
    for delivered in (0, 3):
        chat.reset()
        chat.start("abc", speculative=0, **SHORT)
        text = "".join(chat.next().text for _ in range(delivered))
        run, engine.run = engine.run, _fail
        with pytest.raises(LibraryFailure, match="out of order"):
            chat.next()
        engine.run = run
        text += "".join(piece.text for piece in chat.pieces())
        assert [turn["content"] for turn in chat.messages] == (["abc", text] if delivered else [])
    chat.reset()
    assert chat.ask("abc", speculative=0, **SHORT) == whole
    chat.free()


def _fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("out of order")


def test_another_thread_stops_an_answer_while_its_prompt_is_read(fake: tuple[AppModel, Any]) -> None:
    model, table = fake
    backend, engine = table()
    chat = model.chat(backend=backend)
    reading, stopped = threading.Event(), threading.Event()
    run = engine.run

    def wait(*arguments: Any, **settings: Any) -> Any:
        reading.set()
        assert stopped.wait(60)
        return run(*arguments, **settings)

    engine.run = wait
    chat.start("a question of several passes", speculative=0, **SHORT)
    thread = threading.Thread(target=lambda: (reading.wait(60), chat.stop(), stopped.set()))
    thread.start()
    assert list(chat.pieces()) == []
    thread.join()
    assert chat.messages == []
    assert len(engine.calls) == 1
    chat.free()


def test_a_stop_while_an_answer_starts_ends_it(fake: tuple[AppModel, Any]) -> None:
    """Before its prompt is rendered: there the start ends the running answer, and tells the engine."""
    model, table = fake
    backend, _ = table()
    starting: list[AppSession] = []

    def rest(_: object) -> None:
        for one in starting:
            one.stop()

    function = RELEASE(rest)
    backend.contents.idle = function
    chat = model.chat(backend=backend)
    whole = chat.ask("abc", speculative=0, **SHORT)
    chat.reset()
    chat.start("abc", speculative=0, **SHORT)
    assert chat.next() is not None
    starting.append(chat)
    chat.start("def", speculative=0, **SHORT)
    starting.clear()
    assert list(chat.pieces()) == []
    assert chat.statistics["finish_reason"] == "stopped"
    assert [turn["content"] for turn in chat.messages] == ["abc", whole[: len(chat.messages[-1]["content"])]]
    chat.reset()
    assert chat.ask("abc", speculative=0, **SHORT) == whole, "it ends no later one"
    chat.free()


def test_a_cache_that_cannot_be_loaded_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    folder, file = write_bundle(tmp_path / "own"), tmp_path / "chat"
    few = {"speculative": 0, "max_new_tokens": 3}
    _, engines = fake_engines(SavingBackend)
    new = engines(open_bundle(folder))
    tables = [table_of(new()) for _ in range(3)]
    load = type(tables[2].struct.load)(lambda *_: BAD_FILE)
    tables[2].struct.load = load
    with AppModel(folder, own_engine=1) as model:
        first, second, other = (model.chat(backend=ctypes.pointer(table.struct)) for table in tables)
        first.ask("a", **few)
        first.save(file)
        for chat in (second, other):
            chat.ask("b", **few)
        before = other.messages
        with pytest.raises(LibraryFailure, match=f"{file} cannot be read, or does not fit this engine") as refused:
            other.restore(file)
        assert refused.value.code == EXECUTION
        assert (other.messages, other.tokens, other.cached) == (before, [], 0)
        assert other.ask("c", **few) == second.ask("c", **few)
        assert other.statistics["prefilled_tokens"] == other.statistics["prompt_tokens"] - 1
        for chat in (first, second, other):
            chat.free()
