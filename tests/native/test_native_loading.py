"""native/streamfuse.h: progress of loading, an estimate of the memory, the self-test, and memory that is given back.

Run: make native-mobile; python -m pytest tests/native/test_native_loading.py
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_library import (
    BAD_ARGUMENT,
    BAD_FILE,
    CANCELLED,
    AppModel,
    LibraryFailure,
    estimate,
    library,
    needs_library,
    verify_manifest,
)
from bundle_samples import edit_manifest, write_bundle
from signed_samples import OTHER_PUBLIC, PUBLIC, write_signed_bundle

import streamfuse
from streamfuse.bundle import BundleError

SHORT = {"max_new_tokens": 12}

pytestmark = needs_library


@contextmanager
def new_progress() -> Iterator[int]:
    progress = library().sf_progress_new()
    yield progress
    library().sf_progress_free(progress)


@pytest.mark.parametrize("options", [{}, {"skip_hashes": 1}, {"own_engine": 1}, {"skip_hashes": 1, "own_engine": 1}])
def test_progress_ends_at_one(chat_bundle: Path, options: dict[str, int]) -> None:
    with new_progress() as progress:
        assert library().sf_progress_fraction(progress) == 0
        AppModel(chat_bundle, progress=progress, **options).free()
        assert library().sf_progress_fraction(progress) == 1


def test_another_thread_sees_progress_that_never_decreases(chat_bundle: Path, tmp_path: Path) -> None:
    big = tmp_path / "big"
    shutil.copytree(chat_bundle, big)
    data = bytes(100 << 20)
    with (big / "padding").open("wb") as file:
        file.truncate(len(data))
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit_manifest(big, lambda manifest: manifest["files"].update(padding=facts))
    with new_progress() as progress:
        opened: list[Any] = []
        thread = threading.Thread(target=lambda: opened.append(AppModel(big, progress=progress)))
        thread.start()
        seen = []
        while thread.is_alive():
            seen.append(library().sf_progress_fraction(progress))
        thread.join()
        opened[0].free()
        assert seen == sorted(seen)
        assert len({fraction for fraction in seen if 0 < fraction < 0.5}) > 10
        library().sf_progress_cancel(progress)
        with pytest.raises(LibraryFailure, match="cancelled") as refused:
            AppModel(big, progress=progress)
        assert refused.value.code == CANCELLED


@pytest.mark.parametrize("options", [{}, {"skip_hashes": 1}])
def test_a_cancelled_load_ends_while_hashes_are_compared_or_graphs_are_loaded(
    chat_bundle: Path, options: dict[str, int]
) -> None:
    with new_progress() as progress:
        library().sf_progress_cancel(progress)
        with pytest.raises(LibraryFailure, match="loading was cancelled") as refused:
            AppModel(chat_bundle, progress=progress, **options)
        assert refused.value.code == CANCELLED
        assert library().sf_progress_fraction(progress) < 1


def test_python_reports_the_share_of_bytes_and_ends_with_the_exception_of_the_callback(chat_bundle: Path) -> None:
    seen: list[float] = []
    streamfuse.load(chat_bundle, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1

    def stop(_: float) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        streamfuse.load(chat_bundle, progress=stop)


def test_the_estimate_of_a_cache_is_what_the_engine_allocates(model: AppModel, chat_bundle: Path) -> None:
    found = estimate(chat_bundle)
    assert found.cache_bytes == json.loads(library().sf_model_engine(model.handle))["cache_bytes"]
    assert found.weights_bytes == (chat_bundle / "model.pte").stat().st_size
    assert found.tables_bytes == (chat_bundle / "draft.safetensors").stat().st_size
    mine = streamfuse.estimate(chat_bundle)
    assert (mine.weights_bytes, mine.cache_bytes) == (found.weights_bytes, found.cache_bytes)


def test_a_manifest_is_verified_with_its_signature_and_no_other_file(tmp_path: Path) -> None:
    signed, folder = write_signed_bundle(tmp_path / "signed"), tmp_path / "download"
    folder.mkdir()
    shutil.copy(signed / "manifest.json", folder)
    verify_manifest(folder)
    with pytest.raises(LibraryFailure, match=r"manifest\.sig: missing; the bundle is not signed"):
        verify_manifest(folder, PUBLIC)
    shutil.copy(signed / "manifest.sig", folder)
    verify_manifest(folder, PUBLIC)
    with pytest.raises(LibraryFailure, match=r"manifest\.sig: does not sign this manifest\.json"):
        verify_manifest(folder, OTHER_PUBLIC)
    with pytest.raises(LibraryFailure, match="64 hexadecimal digits") as refused:
        verify_manifest(folder, "no key")
    assert refused.value.code == BAD_ARGUMENT
    edit_manifest(folder, lambda manifest: manifest.update(format_version=1))
    with pytest.raises(LibraryFailure, match="format_version"):
        verify_manifest(folder)
    assert library().sf_model_verify_manifest(None, None, None, 0) == BAD_ARGUMENT


def test_an_estimate_reads_the_manifest_and_no_other_file(chat_bundle: Path, tmp_path: Path) -> None:
    shutil.copy(chat_bundle / "manifest.json", tmp_path)
    assert estimate(tmp_path).cache_bytes == estimate(chat_bundle).cache_bytes
    edit_manifest(tmp_path, lambda manifest: manifest.update(format_version=1))
    with pytest.raises(LibraryFailure, match="format_version") as refused:
        estimate(tmp_path)
    assert refused.value.code == BAD_FILE
    with pytest.raises(BundleError, match="format_version"):
        streamfuse.estimate(tmp_path)
    assert library().sf_model_estimate(bytes(chat_bundle), None, None, 0) == BAD_ARGUMENT


def test_a_bundle_of_our_kernels_gives_the_recorded_bits(model: AppModel, chat_bundle: Path) -> None:
    report = model.self_test()
    assert (report["passed"], report["equal"], report["tokens_equal"]) == (True, True, True), report
    assert report["differences"] == []
    methods = json.loads((chat_bundle / "manifest.json").read_text(encoding="utf-8"))["parity"]
    assert set(report["methods"]) == set(methods) - {"prefill"}


def altered(bundle: Path, folder: Path, change: Any) -> Path:
    """A copy whose recorded arrays are changed; its manifest has the old hashes."""
    shutil.copytree(bundle, folder)
    path = folder / "selftest.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(path, **arrays)
    size = path.stat().st_size
    edit_manifest(folder, lambda manifest: manifest["files"]["selftest.npz"].update(bytes=size))
    return folder


def test_figures_that_differ_are_named(chat_bundle: Path, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["decode.logits"][0, arrays["decode.logits"][0].argmin()] += 100

    with AppModel(altered(chat_bundle, tmp_path / "noisy", change), skip_hashes=1) as opened:
        report = opened.self_test()
    assert (report["passed"], report["equal"], report["tokens_equal"]) == (False, False, False)
    assert [name for name, figures in report["methods"].items() if not figures["passed"]] == ["decode"]
    assert report["methods"]["decode"]["top1_agreement"] == 0
    assert [line.split(":")[0] for line in report["differences"]] == ["decode", "decode"]
    assert "snr_db is" in report["differences"][0]
    assert "the best token of 1 of 1 nodes differs" in report["differences"][1]


def test_weights_that_differ_are_found(chat_bundle: Path, tmp_path: Path) -> None:
    """Bits of the program's weights, with hashes not compared."""
    shutil.copytree(chat_bundle, tmp_path / "bundle")
    program = bytearray((tmp_path / "bundle" / "model.pte").read_bytes())
    middle = len(program) * 3 // 4
    program[middle : middle + 4096] = bytes(byte ^ 0x11 for byte in program[middle : middle + 4096])
    (tmp_path / "bundle" / "model.pte").write_bytes(program)
    with AppModel(tmp_path / "bundle", skip_hashes=1) as opened:
        report = opened.self_test()
    assert not report["passed"]
    assert report["differences"]


def test_a_self_test_that_is_missing_or_damaged_is_an_error(chat_bundle: Path, tmp_path: Path) -> None:
    def without(name: str) -> Any:
        return lambda arrays: arrays.pop(name)

    def far(arrays: dict[str, Any]) -> None:
        arrays["text"][3] = 1 << 40

    def loop(arrays: dict[str, Any]) -> None:
        (name,) = [name for name in arrays if name.startswith("verify_4.parents")]
        arrays[name][1] = 3

    def narrow(arrays: dict[str, Any]) -> None:
        arrays["decode.logits"] = arrays["decode.logits"][:, :-1]

    changes = [(without("decode.nodes"), "decode.nodes"), (far, "text"), (loop, "verify_4.parents"),
               (narrow, "decode.logits")]  # fmt: skip
    for number, (change, word) in enumerate(changes):
        folder = altered(chat_bundle, tmp_path / str(number), change)
        with AppModel(folder, skip_hashes=1) as opened, pytest.raises(LibraryFailure, match=word) as refused:
            opened.self_test()
        assert refused.value.code == BAD_FILE
    bundle = tmp_path / "0"
    stored = (bundle / "selftest.npz").read_bytes()
    with AppModel(bundle, skip_hashes=1) as opened:
        for data in (stored[:-9], stored[:100] + b"x" + stored[101:], b"", b"PK\x05\x06" + bytes(18)):
            (bundle / "selftest.npz").write_bytes(data)
            with pytest.raises(LibraryFailure, match=r"selftest\.npz"):
                opened.self_test()
        with zipfile.ZipFile(bundle / "selftest.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text.npy", bytes(1000))
        with pytest.raises(LibraryFailure, match="compressed"):
            opened.self_test()
    missing = pytest.raises(LibraryFailure, match=r"selftest\.npz: not in the manifest")
    with AppModel(write_bundle(tmp_path / "plain"), own_engine=1) as opened, missing:
        opened.self_test()


def test_a_trimmed_session_goes_on_with_the_same_text(model: AppModel) -> None:
    questions = ["Who keeps the lamp?", "Why?"]
    chat, other = model.chat(), model.chat()
    expected = [chat.ask(question, **SHORT) for question in questions]
    assert other.ask(questions[0], **SHORT) == expected[0]
    used = other.used_and_remaining
    other.trim()
    assert other.cached == 0
    assert other.used_and_remaining == used
    assert other.messages == chat.messages[:2]
    assert other.ask(questions[1], **SHORT) == expected[1]
    assert other.statistics["prefilled_tokens"] > chat.statistics["prefilled_tokens"]
    other.start("Again?", **SHORT)
    other.next()
    other.trim()  # ends the answer
    assert other.next() is None
    chat.free()
    other.free()
