"""An HTTP server for one bundle, with the endpoints of OpenAI's API (docs/serve.md).

`options` and `errors` import no other package; the rest needs starlette and uvicorn, the extra `serve`.
"""
