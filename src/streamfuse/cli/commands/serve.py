"""`streamfuse serve`: a bundle behind the endpoints of OpenAI's API, for clients that speak HTTP."""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

import typer

from streamfuse.api import load
from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import say
from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.engine import settle, tell_defaults, tell_emulated, tell_provider
from streamfuse.cli.shared.help import COMMON
from streamfuse.extras import need
from streamfuse.serve.options import KEY_VARIABLE, ServeOptions


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


@with_options(ServeOptions)
def serve(
    bundle: options.BundleFolder,
    *,
    no_speculation: Annotated[options.NoSpeculation, COMMON] = False,
    no_cost_cache: options.NoCostCache = False,
    memory: Annotated[options.Memory, COMMON] = None,
    threads: options.Threads = None,
    provider: options.Provider = None,
    public_key: options.PublicKey = None,
    **flags: Any,
) -> None:
    """Serve a bundle through OpenAI's HTTP API.

    Prints the base URL for clients. Ctrl-C ends the server.

    Endpoints: GET /health, GET /v1/models, POST /v1/chat/completions and POST
    /v1/completions; docs/serve.md lists the fields of requests. One answer is
    generated at a time; other requests wait in a queue.

    [bold]Examples[/bold]

    streamfuse serve build/demo

    streamfuse serve build/demo --port 0 --model-name demo

    streamfuse serve build/demo --cors-origin http://localhost:3000

    streamfuse serve build/demo --host 0.0.0.0 --api-key "$(cat key.txt)"

    [bold]A request[/bold]

    curl http://127.0.0.1:8000/v1/completions --json '{"prompt": "The sky is", "max_tokens": 20}'
    """
    need("serve")
    from streamfuse.serve.server import Server

    flags["api_key"] = flags["api_key"] if flags["api_key"] is not None else os.environ.get(KEY_VARIABLE) or None
    config = ServeOptions(**given(ServeOptions, flags))
    model = load(
        bundle, threads=threads, provider=provider, cost_cache=not no_cost_cache, public_key=public_key, memory=memory
    )
    tell_emulated(model.bundle)
    tell_defaults(options.defaults(model.manifest, {}))
    server = Server(model, config, speculative=not no_speculation)
    with model:
        settle(model, plan=not no_speculation)
        tell_provider(model.backend)
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
        logging.getLogger("streamfuse.serve").setLevel(logging.INFO)
        say(f"{server.name} is served; Ctrl-C ends it.")
        print(server.url, flush=True)
        server.run()
