"""The asyncio form of the public API. Run: python -m pytest tests/runtime/test_api_asyncio.py"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import PrintableBackend, fake_engines, write_bundle

import streamfuse
from streamfuse import engines
from streamfuse.api import AsyncGeneration, asynchronous
from streamfuse.options import OptionError
from streamfuse.runtime import core
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.core import CoreError, CoreModel

PASS_SECONDS = 0.02


class SlowBackend(PrintableBackend):
    """An engine whose passes take a while, and say in which thread they run."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.threads: set[int] = set()
        self.inside = False
        self.may_end = threading.Event()
        self.may_end.set()

    def run(self, *arguments: Any, **named: Any) -> Any:
        assert not self.inside, "two passes at once"
        self.inside = True
        self.threads.add(threading.get_ident())
        time.sleep(PASS_SECONDS)
        assert self.may_end.wait(60)
        self.inside = False
        return super().run(*arguments, **named)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SlowBackend]:
    made, new = fake_engines(SlowBackend)
    monkeypatch.setattr(engines, "engines_of", new)
    return made  # type: ignore[return-value]


@pytest.fixture
def model(made: list[SlowBackend], tmp_path: Path) -> Iterator[streamfuse.Model]:
    with streamfuse.load(write_bundle(tmp_path / "demo"), cost_cache=False) as model:
        yield model


async def tokens(pieces: AsyncGeneration) -> list[int | None]:
    return [piece.token async for piece in pieces]


def test_an_awaited_stream_gives_the_same_pieces_while_the_event_loop_goes_on(
    model: streamfuse.Model, made: list[SlowBackend]
) -> None:
    async def main() -> tuple[list[int | None], int]:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(PASS_SECONDS / 10)

        ticking = asyncio.create_task(tick())
        pieces = model.astream("hello", width=4)
        found = await tokens(pieces)
        ticking.cancel()
        assert pieces.result.tokens == found
        assert pieces.result.statistics.finish_reason == "length"
        return found, turns

    found, turns = asyncio.run(main())
    assert threading.get_ident() not in made[0].threads
    assert turns > len(found) // 4
    assert found == model.generate("hello", width=4).tokens


def test_a_cancelled_task_ends_its_stream_after_the_pass_that_runs(
    model: streamfuse.Model, made: list[SlowBackend]
) -> None:
    async def main() -> None:
        pieces = model.astream("hello", speculative=False)
        task = asyncio.create_task(tokens(pieces))
        while len(made) == 0 or len(made[0].calls) < 4:
            await asyncio.sleep(PASS_SECONDS / 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not made[0].inside
        passes = len(made[0].calls)
        await asyncio.sleep(3 * PASS_SECONDS)
        assert len(made[0].calls) == passes, "nothing runs on"
        assert pieces.result.statistics.finish_reason == "stopped"
        assert len(pieces.result.tokens) < 16
        assert len(await tokens(model.astream("hello"))) == 16, "the next one is whole"

    asyncio.run(main())


@pytest.mark.parametrize("then", ["aclose", "astream", "generate"])
def test_the_pass_of_a_stream_that_is_cancelled_again_and_again_is_waited_for(
    model: streamfuse.Model, made: list[SlowBackend], then: str
) -> None:
    model.generate("hello", max_new_tokens=1)
    (engine,) = made

    async def main() -> None:
        engine.may_end.clear()
        pieces = model.astream("hello", speculative=False)
        task = asyncio.create_task(tokens(pieces))
        while not engine.inside:
            await asyncio.sleep(PASS_SECONDS / 4)
        while not task.done():  # as a cancelled scope of anyio does
            task.cancel()
            await asyncio.sleep(0)
        if then == "aclose":
            following: asyncio.Task[Any] = asyncio.create_task(pieces.aclose())
        elif then == "astream":
            following = asyncio.create_task(tokens(model.astream("hi")))
        else:
            following = asyncio.create_task(asyncio.to_thread(lambda: model.generate("hi").tokens))
        await asyncio.sleep(PASS_SECONDS)
        assert not following.done()
        assert engine.inside
        engine.may_end.set()
        found = await following
        assert not engine.inside
        assert pieces.result.finish_reason == "stopped"
        assert then == "aclose" or len(found) == 16

    asyncio.run(main())


def test_a_stream_that_waits_for_the_one_before_can_be_closed(model: streamfuse.Model, made: list[SlowBackend]) -> None:
    model.generate("hello", max_new_tokens=1)
    (engine,) = made

    async def main() -> None:
        engine.may_end.clear()
        first, second = model.astream("hello"), model.astream("hi")
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(tokens(first))]
        while not engine.inside:
            await asyncio.sleep(PASS_SECONDS / 4)
        tasks.append(asyncio.create_task(first.aclose()))
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(tokens(second)))
        await asyncio.sleep(0)
        with pytest.raises(CoreError, match="an asyncio stream runs on this sequence"):
            await tokens(model.astream("hey"))
        tasks.append(asyncio.create_task(second.aclose()))
        await asyncio.sleep(0)
        passes = len(engine.calls)
        engine.may_end.set()
        assert (await asyncio.gather(*tasks))[2] == []
        assert len(engine.calls) <= passes + 1, "the second one has run no pass"
        with pytest.raises(RuntimeError, match="has not begun"):
            second.result  # noqa: B018
        assert len(await tokens(model.astream("hi"))) == 16

    asyncio.run(main())


def test_a_stream_cancelled_while_waiting_is_not_overtaken(
    model: streamfuse.Model, made: list[SlowBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin = threading.Event()

    class Late(ThreadPoolExecutor):
        """A worker that takes up its work late."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, initializer=may_begin.wait)

    monkeypatch.setattr(asynchronous, "ThreadPoolExecutor", Late)
    model.generate("hello", max_new_tokens=1)
    (engine,) = made

    async def cancelled(task: asyncio.Task[Any]) -> None:
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)

    async def main() -> None:
        may_begin.set()
        engine.may_end.clear()
        first = asyncio.create_task(tokens(model.astream("hello", speculative=False)))
        while not engine.inside:
            await asyncio.sleep(PASS_SECONDS / 4)
        await cancelled(first)
        may_begin.clear()
        second = asyncio.create_task(tokens(model.astream("hi")))
        await asyncio.sleep(0)
        await cancelled(second)
        may_begin.set()
        await asyncio.sleep(PASS_SECONDS)
        third = asyncio.create_task(tokens(model.astream("hey")))
        await asyncio.sleep(PASS_SECONDS)
        assert not third.done()
        assert engine.inside
        engine.may_end.set()
        assert len(await third) == 16

    asyncio.run(main())


@pytest.mark.parametrize(
    ("of", "by"), [("model", "stream"), ("model", "model"), ("chat", "stream"), ("chat", "chat"), ("chat", "model")]
)
def test_a_stop_before_the_first_piece_ends_the_stream_as_soon_as_it_begins(
    model: streamfuse.Model, of: str, by: str
) -> None:
    async def main() -> None:
        with model.chat(max_new_tokens=16) as chat:
            asked = model if of == "model" else chat
            pieces = asked.astream("hello")
            {"stream": pieces.stop, "chat": chat.stop, "model": model.stop}[by]()
            assert await tokens(pieces) == []
            assert (pieces.result.tokens, pieces.result.finish_reason) == ([], "stopped")
            assert len(await tokens(asked.astream("hello"))) == 16, "a stop ends earlier requests only"

    asyncio.run(main())


@pytest.mark.parametrize("end", ["stop", "model.stop", "aclose", "cancel"])
def test_a_stream_whose_engine_is_being_loaded_can_be_stopped(
    model: streamfuse.Model, made: list[SlowBackend], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    make, loading, loaded = engines.engines_of, threading.Event(), threading.Event()

    def load(*arguments: Any) -> Any:
        loading.set()
        assert loaded.wait(60)
        return make(*arguments)

    monkeypatch.setattr(engines, "engines_of", load)

    async def main() -> None:
        pieces = model.astream("hello", speculative=False)
        task = asyncio.create_task(tokens(pieces))
        await asyncio.to_thread(loading.wait)
        if end == "aclose":
            closing = asyncio.create_task(pieces.aclose())
            await asyncio.sleep(0)
        else:
            {"stop": pieces.stop, "model.stop": model.stop, "cancel": task.cancel}[end]()
            await asyncio.sleep(0)
        loaded.set()
        if end == "cancel":
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert await task == []
        if end == "aclose":
            await closing
        assert (pieces.result.tokens, pieces.result.finish_reason) == ([], "stopped")
        assert made[0].calls == [], "no pass runs"
        assert len(await tokens(model.astream("hello"))) == 16

    asyncio.run(main())


def test_a_second_stream_of_a_sequence_is_refused_until_the_first_has_ended(model: streamfuse.Model) -> None:
    async def main() -> None:
        first = model.astream("hello")
        await anext_of(first)
        for second in (lambda: tokens(model.astream("hi")), lambda: asyncio.to_thread(model.generate, "hi")):
            with pytest.raises(CoreError, match="an asyncio stream runs on this sequence"):
                await second()
        assert len(await tokens(first)) == 15
        assert len(await tokens(model.astream("hi"))) == 16
        async with model.astream("hello") as left:
            await anext_of(left)
        assert await tokens(left) == []
        async for _ in model.astream("hello"):
            break  # and nobody closes it
        assert len(await tokens(model.astream("hi"))) == 16

    asyncio.run(main())


async def anext_of(pieces: AsyncGeneration) -> object:
    return await pieces.__anext__()


def test_chats_answer_at_the_same_time_and_keep_what_was_delivered(model: streamfuse.Model) -> None:
    async def main() -> None:
        with model.chat(max_new_tokens=6) as one, model.chat(max_new_tokens=6) as other:
            found = await asyncio.gather(tokens(one.astream("a")), tokens(other.astream("b")))
            assert [len(answer) for answer in found] == [6, 6]
            async with one.astream("c") as pieces:
                delivered = await anext_of(pieces)
            assert [message["role"] for message in one.messages] == ["user", "assistant"] * 2
            assert one.messages[-1]["content"] == delivered.text  # type: ignore[attr-defined]
            with pytest.raises(OptionError, match="top_p"):
                one.astream("d", top_p=2)

    asyncio.run(main())


def test_chats_that_threads_make_at_the_same_time_share_what_is_loaded(
    made: list[SlowBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, loads, cores = engines.engines_of, list[Any](), list[Any]()

    def load(*arguments: Any) -> Any:
        loads.append(arguments)
        time.sleep(PASS_SECONDS)
        return make(*arguments)

    class SlowModel(CoreModel):
        def __init__(self, *arguments: Any) -> None:
            cores.append(self)
            time.sleep(PASS_SECONDS)
            super().__init__(*arguments)

    monkeypatch.setattr(engines, "engines_of", load)
    monkeypatch.setattr(core, "CoreModel", SlowModel)

    async def main(model: streamfuse.Model) -> None:
        chats = await asyncio.gather(*(asyncio.to_thread(model.chat, max_new_tokens=4) for _ in range(4)))
        found = await asyncio.gather(*(tokens(chat.astream("a")) for chat in chats))
        assert [len(answer) for answer in found] == [4] * 4

    with streamfuse.load(write_bundle(tmp_path / "shared"), cost_cache=False) as model:
        asyncio.run(main(model))
    assert (len(loads), len(cores), len(made)) == (1, 1, 4)
    assert all(engine.closed for engine in made)


def test_a_chat_that_is_closed_while_it_answers_gives_its_memory_back(
    model: streamfuse.Model, made: list[SlowBackend]
) -> None:
    async def main() -> None:
        chat = model.chat(max_new_tokens=16)
        pieces = chat.astream("hello", speculative=False)
        waiting = asyncio.create_task(tokens(pieces))
        while len(made) == 0 or not made[0].inside or len(made[0].calls) < 4:
            await asyncio.sleep(PASS_SECONDS / 20)
        chat.close()
        with pytest.raises(CoreError, match="is closed"):
            await waiting
        assert made[0].closed
        chat.close()
        assert len(await tokens(model.astream("hello"))) == 16

    asyncio.run(main())


def test_what_is_wrong_is_raised_by_the_call_or_by_the_first_piece(model: streamfuse.Model) -> None:
    with pytest.raises(PromptError, match="context holds"):
        model.astream("x" * 200)
    with pytest.raises(RuntimeError, match="this stream has not begun"):
        model.astream("hi").result  # noqa: B018
    model.close()

    async def main() -> None:
        for _ in range(2):  # an error frees the sequence
            with pytest.raises(CoreError, match="this model is closed"):
                await tokens(model.astream("hi"))

    asyncio.run(main())


def test_a_stream_that_was_left_is_gone_though_the_worker_still_holds_its_work(
    model: streamfuse.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holding(ThreadPoolExecutor):
        """A worker that is always late to drop what it ran."""

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Any:
            self.held = (function, arguments)
            return super().submit(function, *arguments, **options)

    monkeypatch.setattr(asynchronous, "ThreadPoolExecutor", Holding)

    async def main() -> None:
        async for _ in model.astream("hello"):
            break
        assert len(await tokens(model.astream("hi"))) == 16

    gc.disable()  # it might free the stream in time
    try:
        asyncio.run(main())
    finally:
        gc.enable()
