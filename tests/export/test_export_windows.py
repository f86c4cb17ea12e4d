"""Layers with a sliding window have caches of a few hundred positions: what they compute is as with a whole cache.

Run: python -m pytest tests/export/test_export_windows.py
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_samples import CHAT_TEMPLATE, edit_manifest
from export_samples import (
    VOCAB_SIZE,
    config_for,
    decode_rows,
    prefill,
    text_of,
    tiny_model,
    verify_rows,
    write_checkpoint,
)

import streamfuse
from streamfuse.api import Chat, store_prefix
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.engines import engines_of
from streamfuse.export import selftest
from streamfuse.export.config import ExportConfig
from streamfuse.export.executorch import native
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.runtime.backend import Backend, BackendError
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.core import CoreError
from streamfuse.runtime.session import Session

CONTEXT = 640
FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        "num_hidden_layers": 2,  # sooner exported
        "head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "MistralForCausalLM": {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 40},
    "Lfm2ForCausalLM": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "Qwen3_5ForCausalLM": {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
    },
    "Gemma4ForCausalLM": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 40,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 32,
        "final_logit_softcapping": 4.0,
    },
    "Lfm3ForCausalLM": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "sliding_attention", "full_attention"],
        "head_dim": 16,
        "sliding_window": 40,
    },
}
POSITIONS = {
    "Gemma3ForCausalLM": [640, 288],
    "MistralForCausalLM": [320, 320],
    "Lfm2ForCausalLM": [288, 640, 288],
    "Qwen3_5ForCausalLM": [384, 384, 640],
    "Gemma4ForCausalLM": [320, 640],
    "Lfm3ForCausalLM": [320, 320, 640],  # the convolution has as many as the longest window needs
}
WITH_TASK = "Gemma3ForCausalLM"  # whose bundle has a task adapter, with the same caches: once is enough
OPTIONS: dict[str, Any] = {"widths": (4,), "default_width": 4, "prune_keep": 3, "schedule": "deferred"}
TEXT = np.random.default_rng(4).integers(4, VOCAB_SIZE, 620).tolist()


class Made:
    """Bundles of a family: as they are, and with a whole cache in every layer."""

    def __init__(self, family: str, folder: Path) -> None:
        changes = {**FAMILIES[family], "architectures": [family], "max_position_embeddings": CONTEXT}
        torch.manual_seed(6)
        # Layers with streams: of Qwen3.5 two, one with a state; of Gemma 4 three, one with keys of its own.
        streams = {"num_msa_layers": {"Qwen3_5ForCausalLM": 2, "Gemma4ForCausalLM": 3}.get(family, 1)}
        model = tiny_model(streams, **changes)
        checkpoint = write_checkpoint(folder / "checkpoint", model, **changes)
        self.family = family
        self.window = model.base.config.longest_window
        tasks = {"same": checkpoint[1]} if family == WITH_TASK else {}
        # Gemma 4: as many kept nodes times kv heads as the pass has rows.
        options = {**OPTIONS, "prune_keep": 2} if family == "Gemma4ForCausalLM" else OPTIONS
        self.plan = config_for(checkpoint, folder / "rings", max_context_len=CONTEXT, task=tasks, **options)
        self.preview = preview(self.plan)
        self.rings = self.exported(self.plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native.Form, "cache_positions", lambda form, capacity, window: capacity)
            plan = config_for(checkpoint, folder / "whole", max_context_len=CONTEXT, **options)
            self.whole = self.exported(plan)

    @staticmethod
    def exported(plan: ExportConfig) -> Bundle:
        """Exports a bundle with a chat template; the tests compare more of its passes than the export would."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selftest, "WALK_TOKENS", 16)
            run_export(plan)
        edit_manifest(plan.output_dir, lambda manifest: manifest["model"].update(chat_template=CHAT_TEMPLATE))
        return open_bundle(plan.output_dir)

    def goes_back(self, longest: int, length: int) -> bool:
        """Whether caches that had `longest` positions still have all that a pass after `length` ones needs."""
        return longest - min(POSITIONS[self.family]) <= max(0, length - self.window)


# full: convolutions are also in LFM3.
CASES = [pytest.param(name, marks=pytest.mark.full if name == "Lfm2ForCausalLM" else []) for name in FAMILIES]


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def backend(made: Made) -> Iterator[Backend]:
    with engines_of(made.rings, 1)() as backend:
        yield backend


def test_caches_have_the_positions_of_the_window_and_some_more(made: Made, backend: Any) -> None:
    decode = made.rings.manifest.methods["decode"]
    found = [tensor.shape[1] for tensor in decode.inputs if tensor.name.startswith("key_cache")]
    assert found == POSITIONS[made.family]
    bytes_, whole = (streamfuse.estimate(bundle.folder).cache_bytes for bundle in (made.rings, made.whole))
    assert bytes_ == made.preview.cache_bytes == backend.description["cache_bytes"]
    states = [math.prod(tensor.shape) * 4 for tensor in decode.inputs if tensor.name.startswith("state_")]
    assert len(states) == FAMILIES[made.family].get("layer_types", []).count("linear_attention")
    caches = [tensor.shape for tensor in decode.inputs if "_cache_" in tensor.name]
    assert bytes_ - sum(states) == sum(map(math.prod, caches))
    assert whole - sum(states) == sum(heads * CONTEXT * each for heads, _, each in caches)
    assert backend.spec.capacity == CONTEXT


@pytest.mark.parametrize("bundle", ["rings", "whole"])
def test_every_pass_has_the_bits_of_the_operators_specification(made: Made, bundle: str) -> None:
    parity = json.loads((getattr(made, bundle).folder / "export_report.json").read_text())["parity"]["lowering"]
    assert parity.pop("streams")["snr_db"] > 130  # log-probabilities agree to a few units in the last place
    assert {method: one["snr_db"] for method, one in parity.items()} == dict.fromkeys(parity, 200.0)


def test_nodes_of_a_pruned_pass_with_padding_have_the_bits_of_plain_decoding(made: Made, backend: Backend) -> None:
    """Also their new keys and values, which the pass after them reads."""
    plain = decode_rows(backend, TEXT[:26])
    for nodes in (1, 2, 3, 4):
        backend.truncate(0)
        prefill(backend, TEXT[:20])
        chain = np.array(TEXT[20 : 20 + nodes])
        out = backend.run("verify_4", chain, 20 + np.arange(nodes), np.tri(nodes, dtype=np.bool_), True)
        for row, logits in zip(out.kept.tolist(), out.logits, strict=False):
            np.testing.assert_array_equal(logits, plain[20 + row])
        kept = [row for row in range(nodes) if row in out.kept.tolist()]
        backend.commit(kept[: len(kept)])
        length = 20 + len(kept)
        np.testing.assert_array_equal(decode_rows(backend, TEXT[length:26], length), plain[length:])


def passes(bundle: Bundle, chosen: Bundle | None = None) -> list[np.ndarray[Any, Any]]:
    """Logits of plain decoding and of drafted trees over the whole context; both, and streams, after prefill."""
    make = engines_of(bundle, 1)
    with make() if chosen is None else make(chosen) as backend:
        rows = [decode_rows(backend, TEXT), verify_rows(backend, "verify_4", TEXT)[: len(TEXT)]]
        prefill(backend, TEXT[:597])
        rows += [decode_rows(backend, TEXT[597:], 597), verify_rows(backend, "verify_4", TEXT[597:], 597)[:23]]
        out = backend.run("decode", np.array([5]), np.array([backend.length]), np.ones((1, 1), np.bool_), True)
        rows.append(np.array(out.logits))
        backend.commit([0])
        streams = backend.streams(0, 7)
        return [*rows, streams.stream_ids.copy(), streams.stream_log_probs.copy()]


def test_every_pass_has_the_bits_that_it_has_with_whole_caches(made: Made) -> None:
    ours, theirs = passes(made.rings), passes(made.whole)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    decoded, verified, after_prefill, verified_after_prefill, *_ = ours
    np.testing.assert_array_equal(decoded, verified)
    np.testing.assert_array_equal(after_prefill, decoded[597:])
    np.testing.assert_array_equal(verified_after_prefill, decoded[597:])
    adapters = list(made.rings.manifest.adapters)
    assert adapters == (["same"] if made.family == WITH_TASK else [])
    for name in adapters:
        for one, other in zip(passes(made.rings, made.rings.adapter(name)), theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def answer(made: Made, prompt: list[int], count: int) -> list[int]:
    """What a new session writes."""
    with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
        return text_of(session, prompt, count, width=4).token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_of_many_windows_is_the_same_with_speculation_and_without(made: Made, temperature: float) -> None:
    texts = []
    for bundle in (made.rings, made.whole):
        for settings in ({"speculative": False}, {"width": 4}):
            with Session(engines_of(bundle, 1)(), bundle.tables) as session:
                sampling = SamplingConfig(temperature=temperature, seed=3)
                texts.append(text_of(session, TEXT[:9], 600, sampling=sampling, **settings).token_ids)
    assert texts == [texts[0]] * 4


@pytest.mark.parametrize(("kept", "reread"), [(20, 20), (350, 0), (569, 0)])
def test_a_text_goes_back_to_an_earlier_one(made: Made, kept: int, reread: int) -> None:
    """As far as the caches have its window; else the tokens before it are read again."""
    with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
        text_of(session, TEXT[:400], 170, width=4)
        prompt = [*session.tokens[:kept], 11, 12]
        again = text_of(session, prompt, 30, width=4)
        assert again.statistics.reread_tokens == reread
        assert again.statistics.prefilled_tokens == reread + 1
        assert again.token_ids == answer(made, prompt, 30)


def test_a_restored_session_has_the_window_and_goes_back_as_far(made: Made, tmp_path: Path) -> None:
    for length in (100, 500):  # before and after the rings are full
        with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
            text_of(session, TEXT[:length], 40, width=4)
            text = session.tokens
            session.save(tmp_path / "saved")
        for kept, reread in ((len(text), 0), (len(text) - 100, 0), (30, 30 if length == 500 else 0)):
            with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
                session.restore(tmp_path / "saved")
                prompt = [*text[:kept], 11]
                again = text_of(session, prompt, 20, width=4)
                assert again.statistics.reread_tokens == reread
                assert again.token_ids == answer(made, prompt, 20)


def checksum(parts: list[bytes]) -> int:
    """That of a saved session (core/saved.cpp): FNV-1a over words, the last bytes of a part one by one."""
    value = 0xCBF29CE484222325
    for part in parts:
        words = len(part) // 8
        for word in (*struct.unpack(f"<{words}Q", part[: 8 * words]), *part[8 * words :]):
            value = (value ^ word) * 0x100000001B3 % (1 << 64)
            value ^= value >> 29
    return value


@pytest.mark.parametrize("oldest", [-1, 506])
def test_saved_caches_that_lack_their_window_are_refused(made: Made, tmp_path: Path, oldest: int) -> None:
    path = tmp_path / "saved"
    with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
        text_of(session, TEXT[:500], 8)
        session.save(path)
    data = path.read_bytes()
    _, _, _, identity, count, cached, cache, note = struct.unpack("<8s7Q", data[:64])
    assert cached == 507
    sizes = [64, identity, 8 * count, cache, note]
    ends = list(itertools.accumulate(sizes))
    parts = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    assert data[ends[-1] :] == checksum(parts).to_bytes(8, "little")
    parts[3] = oldest.to_bytes(8, "little", signed=True) + parts[3][8:]
    path.write_bytes(b"".join(parts) + checksum(parts).to_bytes(8, "little"))
    with Session(engines_of(made.rings, 1)(), made.rings.tables) as session:
        with pytest.raises(CoreError, match=f"do not fit this engine: the first one is {oldest}"):
            session.restore(path)
        assert text_of(session, TEXT[:500], 8).token_ids == answer(made, TEXT[:500], 8)


def test_the_engine_says_how_far_it_goes_back(made: Made, backend: Any) -> None:
    prefill(backend, TEXT)
    ring, window = min(POSITIONS[made.family]), made.window
    least = len(TEXT) - ring + window
    assert [backend.truncatable(length) for length in (1000, 620, least, least - 1, 1, 0)] == [620, 620, least, 0, 0, 0]
    with pytest.raises(BackendError, match=rf"cannot truncate to {least - 1}: .* window of {window} positions"):
        backend.truncate(least - 1)
    assert backend.length == 620
    backend.truncate(least)
    assert backend.truncatable(least - 1) == 0
    backend.truncate(0)
    prefill(backend, TEXT[:200])
    assert backend.truncatable(1) == 1


def test_other_rows_of_a_pass_are_committed_after_a_truncation(made: Made, backend: Any) -> None:
    """Streams of the first rows have updated the states of the top layers to them."""
    if made.plan.prune_keep < 3:
        return  # Gemma 4 has no states
    ids, positions = np.array([5, 6, 7]), np.array([100, 101, 101])
    visible = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)

    def decoded(first: list[int]) -> np.ndarray[Any, Any]:
        backend.truncate(0)
        prefill(backend, TEXT[:100])
        kept = backend.run("verify_4", ids, positions, visible).kept.tolist()
        assert sorted(kept) == [0, 1, 2]
        if first:
            backend.commit(first)
            backend.streams(kept.index(1), 9)
            backend.truncate(100)
        backend.commit([0, 2])
        out = backend.run("decode", np.array([8]), np.array([102]), np.ones((1, 1), np.bool_), True)
        return np.array(out.logits)

    np.testing.assert_array_equal(decoded([0, 1]), decoded([]))


DRAFTS: list[dict[str, Any]] = [{"speculative": False}, {"width": 4}, {}]
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 5}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_chat_that_drops_turns_is_the_same_with_rings_a_prefix_and_drafts(
    made: Made, tmp_path: Path, sampling: dict[str, Any]
) -> None:
    """Rings cannot go back to the system message: it is read again with the remaining turns, or loaded again."""
    options = {"max_new_tokens": 120, "ignore_eos": True, **sampling}
    stored = store_prefix(made.rings.folder, "Be brief.", output=tmp_path / "bundle").tokens
    texts = []
    for bundle, prefix in ((made.rings, 0), (open_bundle(tmp_path / "bundle"), stored), (made.whole, None)):
        for drafts in DRAFTS:
            with streamfuse.load(bundle) as model, model.chat("Be brief.", context_policy="drop_oldest") as chat:
                answers = []
                for number in range(9):
                    answers.append(chat.send("What now? " * (1 + number % 3), **options, **drafts))
                    found = answers[-1].statistics
                    assert found.reread_tokens <= found.prefilled_tokens
                    if found.dropped_turns and prefix is not None:
                        assert (found.reread_tokens > 0, found.prefix_tokens) == (True, prefix)
                        assert found.prefilled_tokens == found.prompt_tokens - 1 - prefix
                        ids = model.encode(messages=chat.messages[:-1])
                        assert model.generate(ids, **options).tokens == answers[-1].tokens
            assert sum(answer.statistics.dropped_turns for answer in answers) > 3
            texts.append([answer.tokens for answer in answers])
    assert texts == [texts[0]] * 9


@pytest.mark.parametrize("drafts", DRAFTS, ids=str)
@pytest.mark.parametrize("length", [100, 350])  # more than the window; more than the rings of either family
def test_a_stored_prefix_leaves_texts_as_they_are(
    made: Made, tmp_path: Path, length: int, drafts: dict[str, Any]
) -> None:
    system = ("Be brief. " * 35)[:length]
    stored = store_prefix(made.rings.folder, system, output=tmp_path / "bundle").tokens
    assert length < stored
    settings: dict[str, Any] = {"ignore_eos": True, **drafts}
    with (
        streamfuse.load(tmp_path / "bundle") as model,
        streamfuse.load(made.rings) as plain,
        model.chat(system) as chat,
        plain.chat(system) as expected,
    ):
        for before, loaded in ((None, stored), (None, 0), (Chat.reset, stored), (Chat.trim, stored)):
            answers = []
            for one in (chat, expected):
                if before is not None:
                    before(one)
                answers.append(one.send("Why?", max_new_tokens=30, **settings))
            found, other = (answer.statistics for answer in answers)
            assert answers[0].tokens == answers[1].tokens
            assert (found.prefix_tokens, found.prefix_refused) == (loaded, None)
            assert found.prefilled_tokens == other.prefilled_tokens - loaded
        # Back to the system message, from a text that fills the context, and from a short one.
        first, second = (model.encode(question, system=system) for question in ("Why?", "How then?"))
        same = next(i for i in range(len(first)) if first[i] != second[i])
        for count in (CONTEXT, 30):
            model.reset()
            plain.reset()
            answer = model.generate(first, max_new_tokens=count, **settings)
            assert answer.statistics.prefix_tokens == stored
            assert answer.tokens == plain.generate(first, max_new_tokens=count, **settings).tokens
            goes_back = made.goes_back(len(first) + len(answer.tokens) - 1, same)
            assert goes_back or count == CONTEXT
            again, other_again = (one.generate(second, max_new_tokens=40, **settings) for one in (model, plain))
            assert again.tokens == other_again.tokens
            assert again.statistics.prefix_tokens == (0 if goes_back else stored)
            assert again.statistics.reread_tokens == (0 if goes_back else same - stored)
            assert other_again.statistics.reread_tokens == (0 if goes_back else same)
