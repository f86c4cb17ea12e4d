"""Other programs as systems: llama.cpp's server and Hugging Face. Their clocks, counts and failures.

Run: python -m pytest tests/research/test_external.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import fake_llama_server as fake
import pytest
import tiny
import torch

from streamfuse.bench.external.checkpoints import write_merged
from streamfuse.bench.external.child import Child
from streamfuse.bench.shared.systems import ExternalSystemError, Request
from streamfuse.model.checkpoint import load_base, load_stream_fused, save_adapter
from streamfuse.research.external import hugging_face, llama_server
from streamfuse.research.external.hugging_face import ASSISTED, LOOK_UP, PLAIN, HuggingFace
from streamfuse.research.external.llama_server import LlamaServer

PROMPT = [3, 1, 4, 1, 5]
ASKED = Request(PROMPT, 9)


def greedy(length: int) -> tuple[int, ...]:
    tokens = [fake.following(PROMPT[-1])]
    while len(tokens) < length:
        tokens.append(fake.following(tokens[-1]))
    return tuple(tokens)


def server(folder: Path, fault: str = "", stop_ids: tuple[int, ...] = (), flags: tuple[str, ...] = ()) -> LlamaServer:
    model = folder / "model.gguf"
    model.write_text(json.dumps({"fault": fault}))
    program = [sys.executable, fake.__file__]
    return LlamaServer("llama.cpp", program, model, 1, 64, stop_ids, flags, fake.HELP)


def test_a_servers_clock_runs_from_the_pass_of_the_last_prompt_token(tmp_path: Path) -> None:
    with server(tmp_path) as system:
        answer = system.answer(ASKED)
        assert system.answer(ASKED) == answer, "a second answer begins with an empty slot too"
    assert answer.token_ids == greedy(9)
    assert answer.decode_ms == 9 * fake.PASS_MS
    assert answer.statistics is not None
    assert answer.statistics["target_forward_passes"] == 9
    read_ms = fake.PASS_MS + 3 * fake.PROMPT_TOKEN_MS
    assert answer.statistics["first_token_ms"] == read_ms + fake.PASS_MS


def test_tokens_that_a_servers_draft_brought_are_no_passes(tmp_path: Path) -> None:
    with server(tmp_path, flags=("-md", "draft.gguf")) as system:
        answer = system.answer(ASKED)
    assert answer.token_ids == greedy(9)
    assert answer.statistics is not None
    assert answer.statistics["target_forward_passes"] == 5
    assert answer.statistics["mean_accepted_tokens"] == 9 / 5
    assert answer.decode_ms == 5 * fake.PASS_MS


def test_an_answer_ends_where_the_bundles_own_does(tmp_path: Path) -> None:
    with server(tmp_path, stop_ids=(greedy(9)[4],)) as system:
        assert system.answer(ASKED).token_ids == greedy(4)


def test_the_server_is_gone_when_the_block_is_interrupted(tmp_path: Path) -> None:
    pids: list[int | None] = []

    def interrupted() -> None:
        with server(tmp_path) as system:
            pids.append(system.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert pids[0] is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("answer", r"llama.cpp ended with code 3 in an answer \(error: the cache is on fire\)"),
        ("crash", r"llama.cpp was ended by SIGSEGV in an answer"),
        ("garbage", r"llama.cpp gave no whole reply and was stopped in an answer"),
        ("tokens", "llama.cpp answers without tokens or timings; install a newer llama.cpp"),
        ("reads again", "llama.cpp read 5 prompt tokens again, so its clock is another"),
    ],
)
def test_a_server_that_fails_is_one_sentence(tmp_path: Path, fault: str, sentence: str) -> None:
    with server(tmp_path, fault) as system, pytest.raises(ExternalSystemError, match=sentence):
        system.answer(ASKED)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ExternalSystemError, match=r"model.gguf: llama.cpp ended with code 1 \(error: this model cannot be load"
        ),
        server(tmp_path, "start"),
    ):
        pass
    with (
        pytest.raises(ExternalSystemError, match="name another one in STREAMFUSE_LLAMA_SERVER"),
        LlamaServer("llama.cpp", [tmp_path / "missing"], tmp_path, 1, 64, ()),
    ):
        pass


def test_flags_are_those_that_the_version_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newer = llama_server.draft_flags(fake.HELP, Path("draft.gguf"), 4, 2)
    assert newer[:6] == ["--spec-type", "draft-simple", "-md", "draft.gguf", "--spec-draft-n-max", "4"]
    assert llama_server.draft_flags("--draft-max N", Path("draft.gguf"), 4, 2)[:4] == [
        "-md", "draft.gguf", "--draft-max", "4"
    ]  # fmt: skip
    found = llama_server.look_up_flags(fake.HELP, 3, 7)
    assert found == [
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "3",
        "--spec-ngram-simple-size-m",
        "7",
    ]
    with pytest.raises(ExternalSystemError, match="this llama-server has no look-up of its own"):
        llama_server.look_up_flags("--draft-max N", 3, 7)
    monkeypatch.setenv(llama_server.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(ExternalSystemError, match=r"which is no program; install llama.cpp"):
        llama_server.find_program()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft model that is the target with an adapter merged."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = tiny.base()
    target = tiny.write_base(folder / "target", model)
    adapter = folder / "tuned.safetensors"
    save_adapter(tiny.fused(model, base_rank=2, base_layers=2), adapter)
    write_merged(target, adapter, folder / "draft")
    merged, before = load_base(folder / "draft").state_dict(), model.state_dict()
    expected = load_stream_fused(load_base(target), adapter).base.state_dict()
    assert all(merged[name].equal(value) for name, value in expected.items())
    assert not all(merged[name].equal(value) for name, value in before.items())
    return target, folder / "draft"


def test_assisted_and_looked_up_text_is_plain_text_in_fewer_passes(checkpoints: tuple[Path, Path]) -> None:
    target, draft = (hugging_face.load(folder) for folder in checkpoints)
    asked = Request([5, 9, 5, 9, 5, 9], 24)
    plain = HuggingFace("plain", target, ()).answer(asked)
    draft.generation_config.num_assistant_tokens = 4
    itself = hugging_face.load(checkpoints[0])
    itself.generation_config.num_assistant_tokens = 4
    itself.generation_config.assistant_confidence_threshold = 0.0
    assert plain.statistics is not None
    assert plain.statistics["target_forward_passes"] == len(plain.token_ids) == 24
    for options in ({"assistant_model": itself}, {"assistant_model": draft}, {"prompt_lookup_num_tokens": 7}):
        answer = HuggingFace("drafted", target, (), options).answer(asked)
        assert answer.token_ids == plain.token_ids
        assert answer.statistics is not None
        passes = answer.statistics["target_forward_passes"]
        assert answer.statistics["mean_accepted_tokens"] == 24 / passes
        if options.get("assistant_model") is itself:
            assert passes <= 24 / 4, "a model that drafts for itself is right four times of four"
    again = HuggingFace("plain", target, ()).answer(asked)
    assert again.statistics is not None
    assert again.statistics["target_forward_passes"] == 24, "what counted passes before counts no more"


def test_all_ways_of_hugging_face_answer_from_one_process(checkpoints: tuple[Path, Path]) -> None:
    target, draft = map(str, checkpoints)
    settings = {"folder": target, "draft": draft, "drafted": 4, "threads": 1, "stop_ids": []}
    with Child("Hugging Face") as child:
        for kind in (PLAIN, ASSISTED, LOOK_UP):
            system = child.open(kind, f"{hugging_face.__name__}:open_system", name=kind, kind=kind, **settings)
            answer = system.answer(ASKED)
            assert len(answer.token_ids) == 9
            assert answer.statistics is not None
            assert answer.statistics["target_forward_passes"] <= 9
        with pytest.raises(ExternalSystemError, match="transformers cannot load this checkpoint"):
            child.open(
                "none", f"{hugging_face.__name__}:open_system", name="none", kind=PLAIN,
                **{**settings, "folder": str(Path(target).parent)},
            )  # fmt: skip


def test_the_faster_precision_is_taken_and_named(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = iter([5.0, 3.0, 4.0, 2.0])  # two trials of float32, then of bfloat16
    monkeypatch.setattr(hugging_face, "decode_ms", lambda start, ends, end: next(slow))
    model = hugging_face.fastest(checkpoints[0])
    monkeypatch.undo()
    assert hugging_face.dtype_of(model) == "bfloat16"
    answer = HuggingFace("plain", model, ()).answer(ASKED)
    assert answer.statistics is not None
    assert answer.statistics["program"].endswith(", bfloat16")


def test_an_answer_of_hugging_face_ends_at_the_bundles_stop_ids(checkpoints: tuple[Path, Path]) -> None:
    target = hugging_face.load(checkpoints[0])
    plain = HuggingFace("plain", target, ()).answer(ASKED).token_ids
    stop = plain[3]
    ended = HuggingFace("plain", target, (stop,)).answer(ASKED)
    assert ended.token_ids == plain[: plain.index(stop)]
    assert ended.statistics is not None
    assert ended.statistics["target_forward_passes"] == len(ended.token_ids) + 1


def test_the_pass_that_reads_the_prompt_counts_as_a_median_round() -> None:
    assert hugging_face.decode_ms(0.0, [5.0, 6.0, 8.0, 9.0], 9.5) == 1000 * (4.5 + 1.0)
    assert hugging_face.decode_ms(1.0, [2.0], 2.5) == 1500


def test_a_folder_that_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExternalSystemError, match="transformers cannot load this checkpoint"):
        hugging_face.load(tmp_path)
