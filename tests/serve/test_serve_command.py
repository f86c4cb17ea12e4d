"""`streamfuse serve` as a process, with a small model on the native engine: its URL, its answers, its end.

Run: python -m pytest tests/serve/test_serve_command.py
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from processes import Command, only_line
from served import until
from typer.testing import CliRunner

import streamfuse
from streamfuse.cli import app


@contextmanager
def started(folder: Path, *arguments: object, **environment: str) -> Iterator[tuple[Command, openai.OpenAI]]:
    """The command on a free port, and a client of it."""
    command = Command(folder, "serve", *arguments, "--port", 0, STREAMFUSE_HOME=str(folder / "home"), **environment)
    try:
        until(lambda: command.process.exitcode is not None or ((folder / "stdout").exists() and command.stdout != ""))
        assert command.process.exitcode is None, command.stderr
        yield command, openai.OpenAI(
            base_url=command.stdout.strip(), api_key=environment.get("STREAMFUSE_API_KEY", "none"), max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )  # fmt: skip
    finally:
        command.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_url_answers_as_the_api_does_and_ends_with_a_signal(
    number: signal.Signals, chat_bundle: Path, tmp_path: Path
) -> None:
    with streamfuse.load(chat_bundle) as model:
        name, expected = model.manifest.model.name, model.generate("hi", max_new_tokens=12)
    with started(tmp_path, chat_bundle) as (command, client):
        assert [card.id for card in client.models.list()] == [name]
        ask = [{"role": "user", "content": "hi"}]
        found = client.chat.completions.create(model=name, messages=ask, max_tokens=12)  # type: ignore[arg-type]
        assert found.choices[0].message.content == expected.text
        pid = command.process.pid
        assert pid is not None
        os.kill(pid, number)
        assert command.wait() == 0
        assert command.stdout.count("\n") == 1
        assert f"{name} is served; Ctrl-C ends it." in command.stderr
        assert "POST /v1/chat/completions 200 in " in command.stderr
        assert "Traceback" not in command.stderr


def test_a_key_may_be_set_in_the_environment(chat_bundle: Path, tmp_path: Path) -> None:
    with started(tmp_path, chat_bundle, "--model-name", "mine", STREAMFUSE_API_KEY="s3cret") as (_, client):
        assert [card.id for card in client.models.list()] == ["mine"]
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="other").models.list()


def test_a_port_that_is_taken_and_a_host_that_others_reach_are_errors_of_one_line(
    chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, why = taken.getsockname()[1], os.strerror(errno.EADDRINUSE)
        line = only_line(Command(tmp_path, "serve", chat_bundle, "--port", port))
    assert line == f"error: cannot listen on 127.0.0.1, port {port} ({why}); choose another --host or --port"
    monkeypatch.delenv("STREAMFUSE_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["serve", str(chat_bundle), "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--host 0.0.0.0 can be reached from other machines, so it needs --api-key" in result.stderr
