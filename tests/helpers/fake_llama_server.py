"""A program that speaks as llama.cpp's server does, for `research/external/llama_server.py`: tokens are arithmetic.

Its "model" is a JSON file; `fault` there says what goes wrong: `start`, `answer`, `crash`,
`garbage`, `tokens`, `reads again`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

VOCAB, PASS_MS, PROMPT_TOKEN_MS = 61, 5.0, 0.5
DRAFTED_PER_PASS = 1  # with a draft model: each pass but the first accepts one
HELP = (
    "--spec-type [none|draft-simple|ngram-simple] --spec-draft-n-max N --spec-ngram-simple-size-n N --cache-ram N "
    "--no-op-offload"
)


def following(token: int) -> int:
    return (2 * token + 3) % VOCAB  # no token comes again for a while


def timings(prompt_tokens: int, tokens: int, drafted: bool) -> dict[str, Any]:
    accepted = (tokens - 1) // (1 + DRAFTED_PER_PASS) if drafted and tokens else 0
    times = {"prompt_n": prompt_tokens, "prompt_ms": PASS_MS + PROMPT_TOKEN_MS * (prompt_tokens - 1),
            "predicted_n": tokens, "predicted_ms": PASS_MS * max(tokens - accepted - 1, 0)}  # fmt: skip
    return {**times, "draft_n": 2 * accepted, "draft_n_accepted": accepted} if drafted else times


class Slot(BaseHTTPRequestHandler):
    fault: str = ""
    drafted = False
    cached: list[int] = []  # noqa: RUF012 (one slot of one process)

    def do_GET(self) -> None:
        self.reply({"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, wanted = asked["prompt"], asked["n_predict"]
        if self.fault == "answer":
            print("error: the cache is on fire", file=sys.stderr, flush=True)
            os._exit(3)
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "garbage":
            self.wfile.write(b"\xff\x00 no HTTP\n")
            return
        known = len(prompt) - 1 if asked["cache_prompt"] and Slot.cached == prompt[:-1] else 0
        if self.fault == "reads again":
            known = 0
        tokens = [following(prompt[-1])]
        while len(tokens) < wanted:
            tokens.append(following(tokens[-1]))
        Slot.cached = prompt
        answer = {"tokens": tokens[:wanted], "timings": timings(len(prompt) - known, wanted, self.drafted)}
        self.reply({"content": "text"} if self.fault == "tokens" else answer)

    def reply(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Nothing: what a server writes is read for errors."""


def main() -> None:
    if "--help" in sys.argv:
        print(HELP)
        return
    if "--version" in sys.argv:
        print("version: 7 (fake)", "built with care", sep="\n", file=sys.stderr)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", type=Path)
    parser.add_argument("-md", type=Path)
    parser.add_argument("--port", type=int)
    flags, _ = parser.parse_known_args()
    if "--no-op-offload" not in sys.argv:
        sys.exit("error: a GPU would compute prompts")
    Slot.fault = json.loads(flags.m.read_text()).get("fault", "")
    Slot.drafted = flags.md is not None
    if Slot.fault == "start":
        sys.exit("error: this model cannot be loaded")
    HTTPServer(("127.0.0.1", flags.port), Slot).serve_forever()


if __name__ == "__main__":
    main()
