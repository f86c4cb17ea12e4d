"""Other programs in the comparison of methods: which take part, the notice about the rest, and their rows.

Run: python -m pytest tests/research/test_compare_peers.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fake_llama_server as fake
import pytest
from bundle_samples import write_bundle
from methods_samples import made_up, with_peers

from streamfuse.bench.shared.systems import Answer, ExternalSystemDied, ExternalSystemError, Request
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.research.compare.methods import BASELINE
from streamfuse.research.compare.peer_rows import peers_short, peers_table
from streamfuse.research.compare.peers import PEERS, Peer, Workshop, opened, peers_named
from streamfuse.research.compare.report import to_markdown, to_page
from streamfuse.research.external import llama_server


class Scripted:
    """Answers with a text of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, request: Request) -> Answer:
        return Answer((1, 2, 3), 1.0)


def refusing(sentence: str) -> Callable[[Workshop], Any]:
    def refuse(shop: Workshop) -> Any:
        raise ExternalSystemError(sentence)

    return refuse


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(write_bundle(tmp_path / "demo"))


def cells(result: dict[str, Any], peer: str) -> dict[str, str]:
    columns, rows = peers_table(result, "e2e")
    return dict(zip(columns, next(row for row in rows if row[0] == peer), strict=True))


def test_a_peer_brings_its_own_plain_decoding_along() -> None:
    assert [peer.name for peer in peers_named("llama.cpp, look-up")] == ["llama.cpp", "llama.cpp, look-up"]
    assert len(peers_named(None)) == len(PEERS) == 7
    assert peers_named("none") == []
    with pytest.raises(ValueError, match=r"--peers: 'vllm' is none of llama.cpp; llama.cpp, draft model;"):
        peers_named("llama.cpp; vllm")


def test_reasons_why_peers_are_not_here_are_said_once_each(bundle: Bundle, tmp_path: Path) -> None:
    notices: list[str] = []
    peers = [
        Peer("one", "one", "", refusing("no program; install it")),
        Peer("two", "one", "", refusing("no program; install it")),
        Peer("three", "three", "", lambda shop: Scripted("three")),
    ]
    with opened(peers, bundle, tmp_path / "peers", 1, False, notices.append, lambda line: None) as here:
        assert list(here) == ["three"]
    assert notices == ["Without one; two: no program; install it"]
    with (
        pytest.raises(ExternalSystemError, match="no program; install it"),
        opened(peers, bundle, tmp_path / "peers", 1, True, notices.append, lambda line: None),
    ):
        pass


def test_a_peer_whose_process_dies_is_left_out_also_where_it_was_asked_for(bundle: Bundle, tmp_path: Path) -> None:
    def dying(shop: Workshop) -> Any:
        raise ExternalSystemDied("one was ended by SIGSEGV")

    notices: list[str] = []
    peers = [Peer("one", "one", "", dying), Peer("two", "two", "", lambda shop: Scripted("two"))]
    with opened(peers, bundle, tmp_path / "peers", 1, True, notices.append, lambda line: None) as here:
        assert list(here) == ["two"]
    assert notices == ["Without one: one was ended by SIGSEGV"]


def test_a_machine_without_the_server_is_told_how_to_get_it(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(llama_server.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    notices: list[str] = []
    peers = peers_named("llama.cpp, draft model")
    with opened(peers, bundle, tmp_path / "peers", 1, False, notices.append, lambda line: None) as here:
        assert here == {}
    assert len(notices) == 1
    assert notices[0].startswith(
        "Without llama.cpp; llama.cpp, draft model: no llama-server in PATH; install llama.cpp"
    )
    assert not (tmp_path / "peers").exists(), "nothing is made for a program that is not here"


def test_files_are_made_once_and_only_whole(bundle: Bundle, tmp_path: Path) -> None:
    with ExitStack() as stack:
        shop = Workshop(bundle, tmp_path / "peers", 1, stack, lambda line: None)

        def half(out: Path) -> None:
            out.write_text("half")
            raise ExternalSystemError("the disk is full")

        with pytest.raises(ExternalSystemError):
            shop.once("file", half)
        assert list((tmp_path / "peers").iterdir()) == []
        assert shop.once("file", lambda out: out.write_text("whole")).read_text() == "whole"
        assert shop.once("file", half).read_text() == "whole"


def test_a_servers_flags_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake.__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv(llama_server.VARIABLE, str(program))
    assert llama_server.find_program() == program
    assert llama_server.help_of(program).strip() == fake.HELP
    assert llama_server.version_of(program) == "llama-server, version: 7 (fake)"


def test_a_peers_row_has_its_rates_and_how_its_text_compares() -> None:
    result = with_peers(made_up())
    assert cells(result, "llama.cpp, draft model") == {
        "peer (another program)": "llama.cpp, draft model",
        "tokens per pass": "1.40",
        "tokens/s (95 % interval)": "120.0 (110.0 to 130.0)",
        "over its own plain (95 % interval)": "1.20 (1.10 to 1.30)",
        "over our core's plain (95 % interval)": "0.80 (0.70 to 0.90)",
        "first token, ms": "40.0",
        "text": "its own plain's, 71 % of our plain's tokens",
    }
    assert cells(result, "llama.cpp")["text"] == "71 % of our plain's tokens"
    result["peers"]["llama.cpp, draft model"]["results"]["e2e"]["equal_texts"] = False
    assert cells(result, "llama.cpp, draft model")["text"].startswith("NOT its own plain's")
    result["settings"]["temperature"] = 0.7
    assert cells(result, "llama.cpp, draft model")["text"] == "-"


def test_a_terminals_table_of_peers_is_short() -> None:
    result = with_peers(made_up())
    columns, rows = peers_short(result, "e2e")
    assert columns == ["peer", "tokens", "per s", "speed", "ours", "text"]
    assert rows[1] == ["llama.cpp, draft model", "1.35", "120.0", "1.20", "0.80", "71 %"]
    result["settings"]["temperature"] = 0.7
    assert peers_short(result, "e2e")[1][1][-1] == "-"


def test_peers_stand_in_markdown_and_page_apart_from_the_methods() -> None:
    assert "Other programs" not in to_markdown(made_up())
    text, page = to_markdown(with_peers(made_up())), to_page(with_peers(made_up()))
    assert text.count("Other programs with the same weights, in the same turns (llama-server 1):") == 2
    assert "| llama.cpp, draft model | 1.40 |" in text
    assert page.count('data-table="peers"') == 2
    assert "llama.cpp, draft model (peer)" in page
    assert BASELINE in page
