"""A handle of a C library that any thread may close at any time: it is freed once no call uses it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import c_void_p
from types import TracebackType


class Handle:
    """Enter it around each call: `with handle as pointer: library.function(pointer)`.

    `what` names it in messages. With `one_thread` a second thread is refused while the first is inside; calls from
    below a call, as in an engine written in Python, are the same thread's and pass.
    """

    def __init__(
        self,
        pointer: c_void_p,
        free: Callable[[c_void_p], None],
        what: str,
        error: type[Exception],
        one_thread: bool = False,
    ) -> None:
        self._pointer, self._free, self._what, self._error = pointer, free, what, error
        # A signal handler, which may call `signal`, runs between two lines of a thread that may hold the lock.
        self._one_thread, self._lock = one_thread, threading.RLock()
        self._inside, self._thread, self._closed = 0, 0, False
        self._closing: int | None = None  # the thread that still asks for last things before it closes

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> c_void_p:
        here = threading.get_ident()
        with self._lock:
            if self._closed or self._closing not in (None, here):
                raise self._error(f"this {self._what} is closed")
            if self._one_thread and self._inside and self._thread != here:
                raise self._error(f"this {self._what} is at work in another thread; make one for each")
            self._inside, self._thread = self._inside + 1, here
        return self._pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            last = self._closed and not self._inside
        if last:
            self._free(self._pointer)

    def signal(self, function: Callable[[c_void_p], None]) -> None:
        """Call what any thread and any signal handler may call at any time and what returns at once. Nothing happens
        once it is closed."""
        with self._lock:
            if not self._closed:
                function(self._pointer)

    def closing(self) -> None:
        """For the other threads it is closed from now on; this one may still call, until `close`."""
        with self._lock:
            self._closing = threading.get_ident()

    def give_away(self) -> None:
        """Close it without freeing it, which somebody else does. `error` where a call is inside."""
        with self._lock:
            if self._inside or self._closed:
                raise self._error(f"this {self._what} is {'closed' if self._closed else 'at work'}")
            self._closed = True

    def close(self) -> None:
        """Free it now, or when the last call that is inside returns. Nothing happens the second time."""
        with self._lock:
            free_now = not self._closed and not self._inside
            self._closed = True
        if free_now:
            self._free(self._pointer)

    def __del__(self) -> None:
        self.close()
