"""A server in a thread, on a free port, with a client of OpenAI's package; its engine is one of fakes.py."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fakes
import openai
import pytest
from bundle_samples import CHAT_TEMPLATE, PrintableBackend, edit_manifest, fake_engines, write_bundle

import streamfuse
from streamfuse import engines
from streamfuse.runtime.backend import BackendError
from streamfuse.serve.options import ServeOptions
from streamfuse.serve.server import Server

CAPACITY = 2048  # a token per byte, so tools take many
NAME = "test/bytes"
SECONDS = 30  # that a test waits at most


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A tool_choice among some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


class FailingBackend(PrintableBackend):
    """Fails at the pass that is one too many, once."""

    passes_left = 1000

    def run(self, *arguments: Any, **named: Any) -> Any:
        self.passes_left -= 1
        if self.passes_left == 0:
            raise BackendError("the engine has no more power")
        return super().run(*arguments, **named)


class Served:
    """A running server, and ways to ask it."""

    def __init__(self, model: streamfuse.Model, server: Server, engines: list[Any], key: str | None) -> None:
        self.model, self.server, self.engines = model, server, engines
        self.client = openai.OpenAI(
            base_url=server.url, api_key=key or "none", max_retries=0, timeout=SECONDS,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )  # fmt: skip
        self.address: str = server.url.removeprefix("http://").removesuffix("/v1")

    def ask(self, words: str = "hi", **fields: Any) -> Any:
        """An answer to one message."""
        return self.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": words}], **fields)

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers (in small letters) and text of a plain request; a body that is no text is sent as JSON."""
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        text = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, text, {"Content-Type": "application/json", **named})
        response = connection.getresponse()
        found = response.read().decode()
        connection.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, found

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and JSON of an answer below /v1."""
        status, _, text = self.send("POST", f"/v1{path}", body)
        return status, json.loads(text)

    def events(self, body: dict[str, Any], path: str = "/chat/completions") -> list[Any]:
        """The events of a stream; "[DONE]" as that text."""
        status, headers, text = self.send("POST", f"/v1{path}", {**body, "stream": True})
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream"), text
        lines = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@contextmanager
def serving(
    folder: Path,
    kind: Callable[..., fakes.ArithmeticBackend] = PrintableBackend,
    template: str | None = CHAT_TEMPLATE,
    **options: Any,
) -> Iterator[Served]:
    """A bundle made in `folder` and served; `options` are those of the server."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["cache"]["capacity"] = CAPACITY
        manifest["model"]["chat_template"] = template

    bundle = write_bundle(folder / "demo")
    edit_manifest(bundle, edit)
    with pytest.MonkeyPatch.context() as patch:
        made, new = fake_engines(kind)
        patch.setattr(engines, "engines_of", new)
        patch.setenv("STREAMFUSE_HOME", str(folder / "home"))
        with streamfuse.load(bundle) as model, running(model, made, **options) as served:
            yield served


@contextmanager
def running(model: streamfuse.Model, made: list[Any], *, speculative: bool = True, **options: Any) -> Iterator[Served]:
    """The same with a model that is open."""
    config = ServeOptions(**{"port": 0, "grace": 0.3, **options})
    server = Server(model, config, speculative=speculative)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Served(model, server, made, config.api_key)
    finally:
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
