"""The asyncio form of a generation: its passes run in a worker thread, so that the event loop goes on.

asyncio is imported where it is used, because nothing else of `streamfuse run` needs it, and importing it takes time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from streamfuse.runtime.core import CoreError
from streamfuse.runtime.session import Generation, Piece

if TYPE_CHECKING:
    from streamfuse.runtime.session import Result


class OneStream:
    """Which asyncio stream runs on a sequence: one at a time. One that nobody refers to any more counts as ended."""

    def __init__(self) -> None:
        self._last: Callable[[], AsyncGeneration | None] = lambda: None

    def wait_until_free(self) -> None:
        """CoreError while one runs; one that is being closed is waited for."""
        wait(self._closing())

    def begin(self, stream: AsyncGeneration) -> list[Future[None]]:
        """From now on it runs, as soon as what is returned is done: the end of one that is being closed. CoreError
        while one runs."""
        closing = self._closing()
        self._last = ref(stream)
        return closing

    def _closing(self) -> list[Future[None]]:
        last = self._last()
        if last is None:
            return []
        if last._closing is None:
            raise CoreError(
                "an asyncio stream runs on this sequence; read it to its end or await its aclose(), or use a chat for "
                "each task"
            )
        return [last._closing]


class AsyncGeneration(AsyncIterator[Piece]):
    """A generation for `async for`; it begins with the first piece that is asked for.

    Cancelling the task that waits for a piece ends it after the pass that runs; so does `aclose`, or the end of an
    `async with` block. What was delivered counts, as with a stream that is left early.
    """

    def __init__(self, start: Callable[[], Generation], one: OneStream) -> None:
        self._start, self._one = start, one
        self._generation: Generation | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._before: list[Future[None]] = []  # the end of the stream before, which the worker waits for
        self._closing: Future[None] | None = None  # the end of this one
        self._stopped = self._ended = False

    @property
    def result(self) -> Result:
        """What was delivered so far. RuntimeError before the first piece."""
        if self._generation is None:
            raise RuntimeError("this stream has not begun; read its first piece")
        return self._generation.result

    def stop(self) -> None:
        """End at the next token, or as soon as it begins. Any thread may call it."""
        self._stopped = True
        if self._generation is not None:
            self._generation.stop()

    async def aclose(self) -> None:
        """End now; returns when the pass that runs has ended. A call that is cancelled can be repeated."""
        import asyncio

        if not self._ended:
            self._ended = True
            if self._worker is not None:
                self.stop()
                self._closing = self._worker.submit(self._close)
                self._worker.shutdown(wait=False)
        if self._closing is not None:
            await asyncio.shield(asyncio.wrap_future(self._closing))

    async def __anext__(self) -> Piece:
        import asyncio

        if self._ended:
            raise StopAsyncIteration
        if self._worker is None:
            self._before = self._one.begin(self)
            self._worker = ThreadPoolExecutor(1, "streamfuse")
        try:
            piece = await asyncio.wrap_future(self._worker.submit(_step, ref(self)))
        except BaseException:
            await self.aclose()
            raise
        if piece is None:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._worker is not None and not self._ended:  # no pass runs: it would refer to this
            self._worker.shutdown(wait=False)
            self._close()

    def _close(self) -> None:
        """In the worker, after the pass that runs and after the stream before: `_step` may not have waited for it."""
        wait(self._before)
        if self._generation is not None:
            with suppress(CoreError):  # the model is closed
                self._generation.close()


def _step(of: Callable[[], AsyncGeneration | None]) -> Piece | None:
    """In the worker: the next piece; None at the end.

    The worker holds a weak reference, because it drops its work only after the event loop has the piece: a stream that
    is left right after a piece would otherwise still count as running.
    """
    stream = of()
    if stream is None:
        return None
    wait(stream._before)
    if stream._ended:
        return None
    if stream._generation is None:
        stream._generation = stream._start()
        if stream._stopped:  # a stop before or during the start, which clears it
            stream._generation.stop()
    return next(stream._generation, None)
