"""An HTTP server for one bundle, with the endpoints of OpenAI's API (docs/serve.md).

`app` needs starlette and `server` uvicorn, the extra `serve`; the other modules import neither.
"""
