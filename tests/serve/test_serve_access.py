"""Who may use the server: keys, names of this machine, web pages of other origins; and options that are wrong.

Run: python -m pytest tests/serve/test_serve_access.py
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served import Served, running, serving, until

from streamfuse.options import OptionError
from streamfuse.serve.errors import ServeError
from streamfuse.serve.options import ServeOptions, is_loopback
from streamfuse.serve.server import Server

ORIGIN = "http://localhost:3000"
APP = "app://obsidian.md"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Without a key."""
    with serving(tmp_path_factory.mktemp("served")) as served:
        yield served


def test_a_key_is_asked_for_everywhere_but_for_health(served: Served) -> None:
    with running(served.model, served.engines, api_key="s3cret") as guarded:
        assert guarded.ask(max_tokens=2).usage.completion_tokens == 2
        assert guarded.send("GET", "/health")[0] == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "s3cret"},
            {"Authorization": "Bearer"},
        ):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/v2")):
                status, found, text = guarded.send(method, path, **headers)
                assert (status, found["www-authenticate"]) == (401, "Bearer")
                assert json.loads(text)["error"]["code"] == "invalid_api_key"
                assert "s3cret" not in text
        assert guarded.send("GET", "/v1/models", Authorization="bearer  s3cret", Host="example.org")[0] == 200
        with pytest.raises(openai.AuthenticationError):
            guarded.client.with_options(api_key="other").models.list()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("LOCALHOST", 200), ("example.org:8000", 403),
        ("localhost.example.org", 403), ("192.168.0.7", 403), ("[", 403), ("", 403),
    ],
)  # fmt: skip
def test_without_a_key_only_names_of_this_machine_are_served(served: Served, host: str, status: int) -> None:
    assert served.send("GET", "/v1/models", Host=host)[0] == status


def test_web_pages_are_let_in_by_their_origin_only(served: Served) -> None:
    asking = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "authorization, content-type, x-stainless-lang"
    assert "access-control-allow-origin" not in served.send("OPTIONS", "/v1/chat/completions", **asking)[1]
    assert "access-control-allow-origin" not in served.send("GET", "/v1/models", Origin=ORIGIN)[1]
    with running(served.model, served.engines, cors_origin=(ORIGIN, APP), api_key="s3cret") as open_:
        status, headers, _ = open_.send("OPTIONS", "/v1/chat/completions", **asking)
        assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert "x-stainless-lang" in headers["access-control-allow-headers"]
        for origin in (ORIGIN, APP):
            headers = open_.send("GET", "/v1/models", Origin=origin)[1]
            assert headers["access-control-allow-origin"] == origin
            assert headers["access-control-expose-headers"] == "Retry-After", "scripts read no other than a few"
        others = {**asking, "Origin": "http://evil.example"}
        status, headers, _ = open_.send("OPTIONS", "/v1/chat/completions", **others)
        assert (status, "access-control-allow-origin" in headers) == (400, False)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("app://obsidian.md", "app://obsidian.md"), ("tauri://localhost", "tauri://localhost"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"), ("https://Example.org", "https://example.org"),
        ("https://example.org:443", "https://example.org"), ("HTTP://[::1]:80", "http://[::1]"),
        ("https://example.org:80", "https://example.org:80"), ("http://localhost:8080", "http://localhost:8080"),
        ("*", "*"),
    ],
)  # fmt: skip
def test_an_origin_is_what_browsers_desktop_apps_and_extensions_send(given: str, sent: str) -> None:
    assert ServeOptions(cors_origin=(given,)).cors_origin == (sent,)


def test_the_log_has_a_line_for_each_request_and_nothing_of_what_it_says(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def lines_() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "streamfuse.serve"]

    with caplog.at_level(logging.INFO, "streamfuse.serve"):
        served.ask("my secret", max_tokens=4)
        until(lambda: len(lines_()) == 1)
        served.send("GET", "/nowhere%1b[2J")
        until(lambda: len(lines_()) == 2)
    lines = lines_()
    tokens = len(served.model.encode("my secret"))
    assert lines[0].startswith("POST /v1/chat/completions 200 in ")
    assert f", {tokens} + 4 tokens, " in lines[0]
    assert lines[1].startswith("GET /nowhere\\x1b[2J 404 in ")
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 can be reached from other machines, so it needs --api-key"),
        ({"host": "::"}, "so it needs --api-key (or STREAMFUSE_API_KEY)"),
        ({"host": "example.org"}, "so it needs --api-key"),
        ({"api_key": ""}, "must be printable ASCII characters without spaces"),
        ({"api_key": "a b"}, "must be printable ASCII characters without spaces"),
        ({"port": 65536}, "--port must be from 0 to 65535, not 65536"),
        ({"queue": -1}, "--queue must be from 0 to 4096"),
        ({"max_new_tokens": 0}, "--max-new-tokens must be at least 1"),
        ({"grace": -1.0}, "--grace must be from 0 to 3600"),
        ({"cors_origin": ("localhost",)}, "--cors-origin must be * or SCHEME://HOST[:PORT] without a path, like https"),
        ({"cors_origin": ("http://a.org/",)}, "like https://example.org, not 'http://a.org/'"),
        ({"cors_origin": ("*", "https://*.a.org")}, "like https://example.org, not 'https://*.a.org'"),
        ({"cors_origin": ("https://b\u00fccher.org",)}, "like https://example.org, not 'https://b\u00fccher.org'"),
        ({"model_name": ""}, "--model-name must not be empty"),
    ],
)
def test_options_that_are_wrong_or_unsafe_are_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        ServeOptions(**options)
    assert sentence in caught.value.flags


def test_loopback_addresses_need_no_key() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert ServeOptions(host=host).host == host
    assert ServeOptions(host="0.0.0.0", api_key="k").host == "0.0.0.0"
    assert not is_loopback("")


def test_a_port_that_is_taken_is_an_error_and_another_name_is_taken_on(served: Served, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ServeError,
            match=rf"cannot listen on 127\.0\.0\.1, port {port} \({os.strerror(errno.EADDRINUSE)}\); choose another",
        ):
            Server(served.model, ServeOptions(port=port))
    with running(served.model, served.engines, model_name="mine/chat", max_new_tokens=7) as named:
        assert [card.id for card in named.client.models.list()] == ["mine/chat"]
        found = named.client.completions.create(model="mine/chat", prompt="hi")
        assert (found.model, found.usage.completion_tokens) == ("mine/chat", 7)
