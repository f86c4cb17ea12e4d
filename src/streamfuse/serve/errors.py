"""What a client is told when a request fails, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.core import GrammarStopped, Stopped
from streamfuse.runtime.text import TextError

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
NAMES = {"max_new_tokens": "max_tokens", "schema": "response_format"}  # of options, in the body of a chat


class ServeError(RuntimeError):
    """The server cannot start; the message is one sentence."""


class RequestError(Exception):
    """A request that gets an error for an answer. `param` names the field, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        param = None if self.param is None else _utf8(self.param)
        return {"error": {"message": _utf8(self.message), "type": kind, "param": param, "code": self.code}}


def request_error(error: Exception, names: Mapping[str, str] = NAMES) -> RequestError | None:
    """An error of the public API as a client sees it; None for one that is a fault of the server.

    `names` has the options whose fields in the request have other names.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OptionError):
        first = _FLAG.search(error.flags)
        message = _FLAG.sub(lambda flag: _field(flag[1], names), error.flags)
        return RequestError(400, message, None if first is None else _field(first[1], names), "invalid_value")
    if isinstance(error, (PromptError, TextError)):
        return RequestError(400, str(error), code="invalid_prompt")
    if isinstance(error, GrammarStopped):  # the request's own grammar, not the engine
        return RequestError(400, str(error), code="invalid_grammar")
    if isinstance(error, Stopped):
        return RequestError(503, "the server is shutting down and has ended this answer", code="shutting_down")
    if isinstance(error, BackendError):
        return RequestError(500, str(error))
    return None


def _utf8(text: str) -> str:
    """JSON can name lone surrogates, which UTF-8 cannot: those that a request has are shown as `\\ud800`."""
    return text.encode(errors="backslashreplace").decode()


def _field(flag: str, names: Mapping[str, str]) -> str:
    name = flag.replace("-", "_")
    return "chat_template_kwargs" if name == "template_variables" else names.get(name, name)
