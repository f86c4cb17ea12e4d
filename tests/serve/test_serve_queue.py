"""One answer at a time: the order of requests, a full queue, clients that leave, and the end of the server.

Passes of the engine wait for a gate, so nothing here depends on speed.
Run: python -m pytest tests/serve/test_serve_queue.py
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from bundle_samples import PrintableBackend
from served import NAME, SECONDS, Served, serving, until

import streamfuse
from streamfuse.serve import app
from streamfuse.serve.app import application
from streamfuse.serve.options import ServeOptions
from streamfuse.serve.server import Server
from streamfuse.serve.service import Service

ASK = {"messages": [{"role": "user", "content": "hi"}]}
PASS_SECONDS = 0.005


class GatedBackend(PrintableBackend):
    """Each pass waits until `gate` is open, and takes a while; `waiting` says that one waits."""

    gate, waiting = threading.Event(), threading.Event()

    def run(self, *arguments: Any, **named: Any) -> Any:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(SECONDS), "nobody opened the gate"
        time.sleep(PASS_SECONDS)
        return super().run(*arguments, **named)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    GatedBackend.gate.set()
    GatedBackend.waiting.clear()
    yield
    GatedBackend.gate.set()


def close_gate() -> None:
    GatedBackend.waiting.clear()
    GatedBackend.gate.clear()


def asked(served: Served, pool: ThreadPoolExecutor, words: str = "hi", **fields: Any) -> Future[Any]:
    return pool.submit(served.ask, words, **{"max_tokens": 6, **fields})


def begun(served: Served, pool: ThreadPoolExecutor, **fields: Any) -> Future[Any]:
    """A request whose first pass waits at the gate."""
    close_gate()
    found = asked(served, pool, **fields)
    assert GatedBackend.waiting.wait(SECONDS)
    return found


def test_requests_are_answered_one_by_one_in_their_order(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, GatedBackend, queue=4) as served:
        expected = [served.ask(word, max_tokens=6).choices[0].message.content for word in "abcd"]
        order: list[int] = []
        first = begun(served, pool)
        later = []
        for number, word in enumerate("abcd"):
            later.append(asked(served, pool, word))
            later[-1].add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
            until(lambda number=number: served.server.waiting == number + 1)  # type: ignore[misc]
        GatedBackend.gate.set()
        assert [one.result().choices[0].message.content for one in later] == expected
        assert first.result().usage.completion_tokens == 6
        until(lambda: len(order) == 4)
        assert order == [0, 1, 2, 3]
        assert len(served.engines) == 1


@pytest.mark.parametrize(
    ("path", "reader", "field"),
    [
        ("chat/completions", "read_chat", {"messages": [{"role": "user", "content": "x" * 100_000}]}),
        ("completions", "read_completion", {"prompt": "x" * 100_000}),
        ("responses", "read_response", {"input": "x" * 100_000}),
        ("responses/input_tokens", "read_response", {"input": "x" * 100_000}),
    ],
)
def test_a_large_request_that_is_read_holds_up_nobody(
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    path: str,
    reader: str,
    field: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, read, reads = threading.Event(), threading.Event(), getattr(app, reader)

    def slowly(*arguments: Any) -> Any:
        reading.set()
        assert read.wait(SECONDS), "nobody else was served meanwhile"
        return reads(*arguments)

    monkeypatch.setattr(app, reader, slowly)
    with serving(tmp_path) as served:
        large = pool.submit(served.post, f"/{path}", {"model": NAME, **field})
        assert reading.wait(SECONDS)
        assert served.send("GET", "/health")[0] == 200
        read.set()
        assert large.result()[0] in (200, 400)  # counted, or longer than the context


def test_a_full_queue_is_said_at_once_with_a_time_to_come_back(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, GatedBackend, queue=1) as served:
        first = begun(served, pool)
        second = asked(served, pool)
        until(lambda: served.server.waiting == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            served.ask()
        assert caught.value.code == "queue_full"
        assert "the queue is full (1 wait)" in str(caught.value)
        told = {int(served.send("POST", "/v1/chat/completions", ASK)[1]["retry-after"]) for _ in range(40)}
        assert 1 <= min(told) < max(told) <= 60, "clients that are refused together do not return together"
        GatedBackend.gate.set()
        assert first.result().choices[0].message.content == second.result().choices[0].message.content
        assert served.ask(max_tokens=2).usage.completion_tokens == 2


def leaving(served: Served, path: str = "/v1/chat/completions", **fields: Any) -> http.client.HTTPConnection:
    """A connection with a request on it, whose answer nobody has read yet."""
    connection = http.client.HTTPConnection(served.address, timeout=SECONDS)
    asks = {} if "prompt" in fields else {"messages": [{"role": "user", "content": "hi"}]}
    body = {"model": NAME, **asks, **fields}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_answer(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, GatedBackend) as served:
        served.ask(max_tokens=1)
        (engine,) = served.engines
        close_gate()
        connection = leaving(served, stream=stream, max_tokens=1000, speculative=False)
        assert GatedBackend.waiting.wait(SECONDS)
        passes = len(engine.calls)
        connection.close()
        GatedBackend.gate.set()
        assert served.ask(max_tokens=3).usage.completion_tokens == 3
        assert len(engine.calls) < passes + 500  # the server has seconds to hear of it


def test_a_client_that_leaves_ends_the_scoring_of_its_prompt(
    tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, GatedBackend) as served:
        served.ask(max_tokens=1)
        (engine,) = served.engines
        close_gate()
        passes = len(engine.calls)
        fields = {"prompt": "x" * 1500, "echo": True, "logprobs": 0, "max_tokens": 1}
        connection = leaving(served, "/v1/completions", **fields)
        assert GatedBackend.waiting.wait(SECONDS)
        connection.close()
        last = asked(served, pool, max_tokens=3)
        time.sleep(0.3)  # the server hears of the one that has left while its pass still runs
        GatedBackend.gate.set()
        assert last.result().usage.completion_tokens == 3
        assert len(engine.calls) < passes + 150  # the prompt needs 188
        gc.collect()  # asyncio logs an error that nobody has asked for when its task is deleted
        assert served.ask(max_tokens=1).usage.completion_tokens == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_several_prompts_are_one_turn_that_ends_when_the_client_leaves(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with serving(tmp_path, GatedBackend, queue=1) as served:
        served.ask(max_tokens=1)
        (engine,) = served.engines
        close_gate()
        connection = leaving(served, "/v1/completions", prompt=["a", "b", "c"], max_tokens=400, speculative=False)
        assert GatedBackend.waiting.wait(SECONDS)
        passes = len(engine.calls)
        last = asked(served, pool, max_tokens=3)
        until(lambda: served.server.waiting == 1)
        connection.close()
        GatedBackend.gate.set()
        assert last.result().usage.completion_tokens == 3
        assert len(engine.calls) < passes + 600  # the prompts need 1200


def test_several_prompts_are_ended_with_the_server(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, GatedBackend, grace=0.2) as served:
        served.ask(max_tokens=1)
        body = {"prompt": ["a", "b", "c"], "max_tokens": 400, "speculative": False}
        close_gate()
        found = pool.submit(served.post, "/completions", body)
        assert GatedBackend.waiting.wait(SECONDS)
        served.server.stop()
        GatedBackend.gate.set()
        status, answer = found.result()
        assert (status, answer["error"]["code"]) == (503, "shutting_down")
        assert len(served.engines[0].calls) < 600


def test_a_client_that_leaves_the_queue_is_never_answered(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, GatedBackend, queue=1) as served:
        first = begun(served, pool)
        connection = leaving(served, max_tokens=1000)
        until(lambda: served.server.waiting == 1)
        with pytest.raises(openai.RateLimitError):
            served.ask()
        connection.close()
        until(lambda: served.server.waiting == 0)
        last = asked(served, pool)
        GatedBackend.gate.set()
        assert last.result().usage.completion_tokens == first.result().usage.completion_tokens == 6
        assert len(served.engines[0].calls) < 100


def test_an_answer_may_end_after_the_signal_and_those_who_wait_are_sent_away(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with serving(tmp_path, GatedBackend, grace=SECONDS) as served:
        first = begun(served, pool)
        second = asked(served, pool)
        until(lambda: served.server.waiting == 1)
        served.server.stop()
        until(lambda: _refuses(served))
        with pytest.raises(openai.InternalServerError) as caught:
            second.result(SECONDS)
        assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
        GatedBackend.gate.set()
        assert first.result().usage.completion_tokens == 6


def _refuses(served: Served) -> bool:
    try:
        served.send("GET", "/health")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_longer_is_ended_and_its_client_told(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, GatedBackend, grace=0.2) as served, ThreadPoolExecutor(1) as pool:
        served.ask(max_tokens=1)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1500, "speculative": False}
        close_gate()
        found = pool.submit(served.events if stream else lambda body: served.post("/chat/completions", body), body)
        assert GatedBackend.waiting.wait(SECONDS)
        served.server.stop()
        GatedBackend.gate.set()
        if stream:
            *_, last, end = found.result()
            assert end == "[DONE]"
        else:
            status, last = found.result()
            assert status == 503
        assert (last["error"]["code"], last["error"]["type"]) == ("shutting_down", "server_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_ctrl_c_ends_the_answer_and_its_client_is_told(
    tmp_path: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def ask(served: Served) -> Any:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1500, "speculative": False}
        found = pool.submit(served.events if stream else lambda body: [served.post("/chat/completions", body)[1]], body)
        assert GatedBackend.waiting.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: _refuses(served))
        os.kill(os.getpid(), signal.SIGINT)
        GatedBackend.gate.set()
        return found.result()[-2 if stream else -1]

    with serving(tmp_path, GatedBackend) as served:
        served.ask(max_tokens=1)
        close_gate()
        server = Server(served.model, ServeOptions(port=0, grace=SECONDS))
        last = pool.submit(ask, Served(served.model, server, served.engines, None))
        server.run()
        assert last.result()["error"]["code"] == "shutting_down"
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_client_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    """By ASGI itself, because the buffers of a real connection have room for most answers."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}

    async def ask(app: Any, send: Callable[[Any], Awaitable[None]], **fields: Any) -> None:
        sent = [{"type": "http.request", "body": json.dumps({**body, **fields}).encode()}]

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        await app({**scope, "query_string": b"", "root_path": ""}, receive, send)

    async def main(model: streamfuse.Model) -> list[Any]:
        app = application(Service(model, NAME, queue=1), ServeOptions())
        started, found = asyncio.Event(), []

        async def stuck(message: Any) -> None:
            started.set()
            await asyncio.Event().wait()

        async def reading(message: Any) -> None:
            found.append(message)

        first = asyncio.create_task(ask(app, stuck, stream=True))
        await asyncio.wait_for(started.wait(), SECONDS)
        await asyncio.wait_for(ask(app, reading), SECONDS)
        assert not first.done()
        first.cancel()
        return found

    with serving(tmp_path) as served:
        start, *rest = asyncio.run(main(served.model))
    assert start["status"] == 200
    assert json.loads(b"".join(message["body"] for message in rest))["usage"]["completion_tokens"] == 50
