"""The server as a process: its socket, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading

import uvicorn

from streamfuse.api import Model
from streamfuse.durable import reason
from streamfuse.serve.app import application
from streamfuse.serve.errors import ServeError
from streamfuse.serve.options import ServeOptions
from streamfuse.serve.service import Service

_LAST_SECONDS = 5  # of an answer that was ended, to be sent
_FORCED_SECONDS = 1  # the same after a second Ctrl-C


class Server:
    """Listens from the start; `run` answers until SIGINT, SIGTERM or `stop`. The model stays open."""

    def __init__(self, model: Model, options: ServeOptions, *, speculative: bool = True) -> None:
        """ServeError where it cannot listen."""
        self._socket = _listen(options.host, options.port)
        self.name = options.model_name or model.manifest.model.name
        self._service = Service(model, self.name, options.queue, options.max_new_tokens, speculative)
        config = uvicorn.Config(
            application(self._service, options), http="h11", ws="none", lifespan="off", server_header=False,
            log_config=None, log_level="error", access_log=False,
            timeout_graceful_shutdown=round(options.grace) + _LAST_SECONDS,
        )  # fmt: skip
        self._uvicorn = _Uvicorn(config, self._service, options.grace)

    @property
    def url(self) -> str:
        """What clients take as their base URL."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._service.waiting

    def run(self) -> None:
        """Answer requests. After a signal no new ones are taken, and the answer that is written has some seconds."""
        if threading.current_thread() is not threading.main_thread():
            return asyncio.run(self._uvicorn.serve(sockets=[self._socket]))
        # uvicorn sends a signal once more after its shutdown, which has done all that there is to do.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            asyncio.run(self._uvicorn.serve(sockets=[self._socket]))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End as after a signal. Any thread may call it."""
        self._uvicorn.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn waits for the answers that are being sent; here those that wait end at once, the others after `grace`, or
    with a second Ctrl-C."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self._service, self._grace = service, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.close()
        ending = asyncio.get_running_loop().call_later(self._grace, self._service.stop)
        try:
            await super().shutdown(sockets)
            if self.force_exit and self.server_state.tasks:
                self._service.stop()
                await asyncio.wait(self.server_state.tasks, timeout=_FORCED_SECONDS)
        finally:
            ending.cancel()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        # Python adds the address to what the system says; of a name that is not found, the system has no number.
        named = error.errno is None or isinstance(error, socket.gaierror)
        why = reason(error) if named else os.strerror(error.errno or 0)
        raise ServeError(f"cannot listen on {host}, port {port} ({why}); choose another --host or --port") from None
