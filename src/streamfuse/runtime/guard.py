"""Python functions that C calls. Their exceptions do not cross C: each becomes an error code and a sentence.

If a call of the core fails with that sentence, the exception is raised again. The core may also go on without what
failed: streams, a stored prefix, or a constraint's answer in a draft.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from streamfuse.runtime.text_library import EXECUTION, OK

_CONTROL = dict.fromkeys([*range(0x20), 0x7F], " ")  # as the core writes sentences


class Guard:
    """Wraps the functions of one table.

    Args:
        failure: receives exceptions outside Exception, such as KeyboardInterrupt; the next call raises them even if it
            succeeds.
    """

    def __init__(self, failure: list[BaseException]) -> None:
        self.failure = failure
        self._error: Exception | None = None
        self._sentence = ctypes.create_string_buffer(b"")

    def __call__(self, body: Callable[..., object]) -> Callable[..., int]:
        """A function that returns SF_OK, or SF_EXECUTION if `body` raises; its first argument is C's context."""

        def call(_: Any, *arguments: Any) -> int:
            try:
                body(*arguments)
            except BaseException as error:
                self._keep(error)
                return EXECUTION
            return OK

        return call

    @property
    def sentence(self) -> int:
        """Address of the last exception's sentence."""
        return ctypes.addressof(self._sentence)

    def raised_as(self, sentence: str) -> Exception | None:
        """The last exception, if this is its sentence. Given only once, so that its traceback does not keep the arrays
        of the pass alive."""
        if self._sentence.value.decode() != sentence:
            return None
        error, self._error = self._error, None
        return error

    def _keep(self, error: BaseException) -> None:
        sentence = f"{type(error).__name__}: {error}".translate(_CONTROL)
        self._sentence = ctypes.create_string_buffer(sentence.encode(errors="replace"))
        self._error = error if isinstance(error, Exception) else None
        if self._error is None:
            self.failure.append(error)
