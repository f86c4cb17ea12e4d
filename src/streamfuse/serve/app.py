"""The HTTP side: endpoints, who may use them, and how answers and errors are sent."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from streamfuse.api import Statistics
from streamfuse.json_text import integer
from streamfuse.serve.answers import Answer, ChatAnswer, Part, TextAnswer
from streamfuse.serve.errors import RequestError, request_error
from streamfuse.serve.fields import Request
from streamfuse.serve.options import ServeOptions, is_loopback
from streamfuse.serve.requests import read_chat, read_completion
from streamfuse.serve.responses.answer import ResponseAnswer
from streamfuse.serve.responses.request import read_response
from streamfuse.serve.responses.store import Store, page_of
from streamfuse.serve.service import Service

MOST_BODY_BYTES = 4 << 20  # no context holds that much text
_LARGE_BODY_BYTES = 64 << 10  # parsed in a thread, since it takes milliseconds
log = logging.getLogger("streamfuse.serve")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Read = TypeVar("Read")  # a request that was read


def application(service: Service, options: ServeOptions) -> Starlette:
    """The ASGI application."""
    created = int(time.time())
    facts = {"object": "model", "created": created, "owned_by": "streamfuse", "max_model_len": service.context_tokens}
    cards = {name: {"id": name, **facts} for name in service.models}
    names, store = list(cards), Store()

    async def health(http: HttpRequest) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def models(http: HttpRequest) -> JSONResponse:
        return JSONResponse({"object": "list", "data": list(cards.values())})

    async def model(http: HttpRequest) -> JSONResponse:
        card = cards.get(http.path_params["name"])
        if card is None:
            has = ", ".join(map(repr, names))
            raise RequestError(404, f"there is no such model; this server has {has}", "model", "model_not_found")
        return JSONResponse(card)

    def head(request: Request) -> tuple[str, str, bool, bool]:
        return request.model, service.fingerprint, request.include_usage, bool(request.options.get("log_probs"))

    async def chat(http: HttpRequest) -> Answering:
        request = await _read(http, lambda body: read_chat(body, names))
        return Answering(service, request, ChatAnswer(*head(request), request.one_call))

    async def completion(http: HttpRequest) -> Answering:
        request = await _read(http, lambda body: read_completion(body, names))
        return Answering(service, request, TextAnswer(*head(request)))

    async def response(http: HttpRequest) -> Answering:
        asked = await _read(http, lambda body: read_response(body, names, store))
        return Answering(service, asked.request, ResponseAnswer(asked, service.sampling, store))

    async def input_tokens(http: HttpRequest) -> JSONResponse:
        asked = await _read(http, lambda body: read_response(body, names, store))
        try:
            count = await service.count(asked.request)
        except Exception as error:
            raise _request_error(error, asked.request) from error
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})

    async def stored_response(http: HttpRequest) -> JSONResponse:
        if http.query_params.get("stream", "false").lower() not in ("false", "0"):
            message = "a stored response is not streamed; leave stream out"
            raise RequestError(400, message, "stream", "unsupported_parameter")
        return JSONResponse(store.get(http.path_params["id"]).response)

    async def delete_response(http: HttpRequest) -> JSONResponse:
        store.delete(http.path_params["id"])
        return JSONResponse({"id": http.path_params["id"], "object": "response", "deleted": True})

    async def input_items(http: HttpRequest) -> JSONResponse:
        return JSONResponse(page_of(store.get(http.path_params["id"]).input, http.query_params))

    middleware = [Middleware(Log), Middleware(Guard, key=options.api_key)]
    if options.cors_origin:
        # Before the key is asked for: a browser sends none with its first question.
        cors = Middleware(
            CORSMiddleware,
            allow_origins=options.cors_origin,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        middleware.insert(1, cors)
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/responses", response, methods=["POST"]),
            Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
            Route("/v1/responses/{id}", stored_response),
            Route("/v1/responses/{id}", delete_response, methods=["DELETE"]),
            Route("/v1/responses/{id}/input_items", input_items),
        ],
        middleware=middleware,
        exception_handlers={RequestError: _refusal, HTTPException: _refusal, Exception: _failure},
    )


class JSONResponse(Response):
    """JSON with other characters than ASCII escaped: repeated text of a request may have lone surrogates, which UTF-8
    cannot encode."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


class Answering:
    """The response to one request: it waits for its turn, and ends the generation when the client leaves."""

    def __init__(self, service: Service, request: Request, answer: Answer) -> None:
        self._service, self._request, self._answer = service, request, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_connected(receive, self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is written waits here until it is sent: a client that reads slowly holds up nobody else."""
        written: asyncio.Queue[Part | Exception | None] = asyncio.Queue()
        writing = asyncio.ensure_future(self._write(written))
        try:
            part = _checked(await written.get())
            if self._request.stream:
                return await self._stream(part, written, send)
            while part is not None:
                self._answer.take(part)
                part = _checked(await written.get())
            await JSONResponse(self._answer.whole())(scope, receive, send)
        except Exception as error:
            raise _request_error(error, self._request) from error
        finally:
            _note(scope, self._answer.statistics)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, written: asyncio.Queue[Part | Exception | None]) -> None:
        """The answer to each prompt: its pieces, then its result. At the end None, or what went wrong."""
        try:
            async with self._service.turn(self._request) as answers:
                for answer in answers:
                    async with answer.begun() as (prompt, generation):
                        for piece in prompt:
                            written.put_nowait(piece)
                        async for piece in generation:
                            if not self._request.only_echo:
                                written.put_nowait(piece)
                        result = generation.result
                    if self._request.only_echo:
                        nothing = replace(result.statistics, generated_tokens=0, finish_reason="length")
                        result = replace(result, text="", tokens=[], statistics=nothing)
                    written.put_nowait(result)
            written.put_nowait(None)
        except Exception as error:
            written.put_nowait(error)

    async def _stream(self, part: Part | None, written: asyncio.Queue[Part | Exception | None], send: Send) -> None:
        """Server-sent events. What goes wrong before the first token is an error with its status, later an event."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def event(data: object) -> None:
            text = data if isinstance(data, str) else json.dumps(data)  # ASCII: some clients split lines at U+2028
            name = f"event: {data['type']}\n" if isinstance(data, dict) and "type" in data else ""
            await send({"type": "http.response.body", "body": f"{name}data: {text}\n\n".encode(), "more_body": True})

        try:
            while part is not None:
                for chunk in self._answer.chunks(part):
                    await event(chunk)
                part = _checked(await written.get())
            for chunk in self._answer.last():
                await event(chunk)
        except Exception as error:
            for chunk in self._answer.failed(_request_error(error, self._request)):
                await event(chunk)
        if self._answer.end is not None:
            await event(self._answer.end)
        await send({"type": "http.response.body", "body": b""})


def _request_error(error: Exception, request: Request) -> RequestError:
    """What the client is told; the log has faults of the server."""
    known = request_error(error, {"max_new_tokens": request.limit_field, "schema": request.schema_field})
    if known is None or known.status == 500:
        log.error("an answer failed: %s", error, exc_info=known is None)
    return known or RequestError(500, "the server failed; its log says why")


def _checked(part: Part | Exception | None) -> Part | None:
    if isinstance(part, Exception):
        raise part
    return part


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or stop it when the client closes its connection."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        unfinished = [one for one in (task, leaving) if not one.done()]
        for one in unfinished:
            one.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    if not task.cancelled():
        task.result()


def _note(scope: Scope, found: Sequence[Statistics]) -> None:
    """What the log says of the answers that have ended."""
    if found:
        prompt, generated = sum(one.prompt_tokens for one in found), sum(one.generated_tokens for one in found)
        rate = fmean(one.decode_token_per_sec for one in found)
        scope["streamfuse.note"] = f", {prompt} + {generated} tokens, {rate:.0f} tokens/s, {found[-1].finish_reason}"


async def _read(http: HttpRequest, read: Callable[[object], Read]) -> Read:
    """Parses a request's body and passes it to `read`; in a thread if large, so as not to block the event loop."""
    body = await _body(http)

    def work() -> Read:
        return read(_parsed(body))

    return await asyncio.to_thread(work) if len(body) > _LARGE_BODY_BYTES else work()


async def _body(http: HttpRequest) -> bytearray:
    """Reads the body of a request.

    Raises:
        RequestError: the Content-Type is not application/json (415), the body exceeds MOST_BODY_BYTES (413), or the
            client disconnected (400).
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # web pages may send other types to any server without asking it (CORS)
        raise RequestError(415, "the header Content-Type must be application/json", code="unsupported_media_type")
    body = bytearray()
    try:
        async for part in http.stream():
            body += part
            if len(body) > MOST_BODY_BYTES:
                raise RequestError(413, f"the body is larger than {MOST_BODY_BYTES >> 20} MiB", code="body_too_large")
    except ClientDisconnect:
        raise RequestError(400, "the body ended early", code="invalid_json") from None
    return body


def _parsed(body: bytearray) -> object:
    try:
        return json.loads(body, parse_constant=_not_json, parse_int=integer, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}", code="invalid_json") from None


def _not_json(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _finite(word: str) -> float:
    number = float(word)
    if math.isinf(number):
        raise ValueError(f"{word:.40} is larger than a number can be")
    return number


def _refusal(http: HttpRequest, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        words = f"{http.method} {http.url.path:.100}: {error.detail}"
        if error.status_code == 404:
            words += _way(http.url.path)
        error = RequestError(error.status_code, words, headers=dict(error.headers or {}))  # Allow, of 405
    assert isinstance(error, RequestError), "it is registered for these two"
    return _response(error)


def _way(path: str) -> str:
    """What a client that asks for a path which is not there may have meant."""
    return "" if path.startswith("/v1/") else "; the base URL of the API ends in /v1"


def _failure(http: HttpRequest, error: Exception) -> JSONResponse:
    """uvicorn logs the error."""
    return _response(RequestError(500, "the server failed; its log says why"))


def _response(error: RequestError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def _host(header: str) -> str:
    """The name or address in a Host header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Lets nobody in without the key. Where there is none, only the names of this machine are served: a web page whose
    name leads to a loopback address (DNS rebinding) is refused."""

    def __init__(self, app: App, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._objection(scope) if scope["type"] == "http" else None
        await (self._app if error is None else _response(error))(scope, receive, send)

    def _objection(self, scope: Scope) -> RequestError | None:
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"authorization")}
        if self._key is None:
            if is_loopback(_host(headers.get(b"host", b"localhost").decode("latin-1"))):
                return None
            return RequestError(
                403, "this server answers to localhost only; start it with --api-key", code="foreign_host"
            )
        if scope["path"] == "/health":
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key.encode()):
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        return RequestError(401, "the API key is missing or wrong", code="invalid_api_key", headers=challenge)


class Log:
    """A line for each request, without what it says."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.monotonic(), "left by the client"

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            status = "500"
            raise
        finally:
            seconds, path = time.monotonic() - started, ascii(scope["path"])[1:-1]
            log.info(
                "%s %.100s %s in %.2f s%s", scope["method"], path, status, seconds, scope.get("streamfuse.note", "")
            )
