"""llama.cpp's own server: plain decoding, and its own speculation with a draft model or by look-up.

Needs the program `llama-server` in PATH, or named by `STREAMFUSE_LLAMA_SERVER`; docs/methods.md says where to get it.
The server runs as a child on 127.0.0.1, with one slot, on the processor only, and ends with the block that opened it.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamfuse.bench.external.answers import answer_of
from streamfuse.bench.shared.processes import end_with_parent, ending
from streamfuse.bench.shared.systems import Answer, ExternalSystemDied, ExternalSystemError, Request

PROGRAM, VARIABLE = "llama-server", "STREAMFUSE_LLAMA_SERVER"
_START_S, _ANSWER_S, _STOP_S, _END_S, _POLL_S = 120.0, 600.0, 10.0, 1.0, 0.05


def find_program() -> Path:
    """The program. ExternalSystemError where there is none."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named or PROGRAM)
    if found is None:
        where = f"{VARIABLE} names {named}, which is no program" if named else f"no {PROGRAM} in PATH"
        raise ExternalSystemError(f"{where}; install llama.cpp (docs/methods.md), or name the program in {VARIABLE}")
    return Path(found)


def help_of(program: Path) -> str:
    """Its own `--help`: flags change from version to version. ExternalSystemError: it does not run."""
    return _said(program, "--help")


def version_of(program: Path) -> str:
    """As in `llama-server, version: 1234 (abcdef0)`. ExternalSystemError: it does not run."""
    lines = [line.strip() for line in _said(program, "--version").splitlines() if "version" in line]
    return ", ".join([PROGRAM, *lines[:1]])


def _said(program: Path, flag: str) -> str:
    try:
        done = subprocess.run([program, flag], capture_output=True, text=True, errors="replace", timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExternalSystemError(f"{program}: does not run ({error}); name another one in {VARIABLE}") from None
    return done.stdout + done.stderr


def draft_flags(words: str, draft: Path, length: int, threads: int) -> list[str]:
    """Flags for drafts of `length` tokens by the model `draft`; `words` are those of `help_of`."""
    most = "--spec-draft-n-max" if "--spec-draft-n-max" in words else "--draft-max"
    kind = ["--spec-type", "draft-simple"] if "draft-simple" in words else []
    return [*kind, "-md", str(draft), most, str(length), "-td", str(threads), "-tbd", str(threads), "-ngld", "0"]


def look_up_flags(words: str, match: int, length: int) -> list[str]:
    """Flags for drafts of `length` tokens that followed the last `match` tokens before.

    ExternalSystemError where the version has no such mode.
    """
    if "ngram-simple" not in words:
        raise ExternalSystemError(
            f"this {PROGRAM} has no look-up of its own; install a newer llama.cpp (docs/methods.md)"
        )
    flag = "--spec-ngram-simple-size" if "--spec-ngram-simple-size-n" in words else "--spec-ngram-size"
    return ["--spec-type", "ngram-simple", f"{flag}-n", str(match), f"{flag}-m", str(length)]


class LlamaServer:
    """A server with one GGUF: a system, and a context manager that starts and ends the child.

    The clock is the server's own. A first request reads the prompt but for its last token. The second finds that in the
    slot's cache and reads one token, so its `prompt_ms` is the pass of the last prompt token and `predicted_ms` all
    that follows: the clock of every other system, without HTTP and JSON.

    The server ends a text at every token that its GGUF calls an end; an answer is cut at `stop_ids` besides.

    Args:
        program: command and first arguments.
        model: the GGUF.
        threads: for single tokens and for prompts alike.
        capacity: tokens of context.
        stop_ids: tokens that end an answer, as in the bundle that it is compared with.
        flags: further ones, of `draft_flags` or `look_up_flags`.
        words: those of `help_of`.
        version: that of `version_of`.

    Raises:
        ExternalSystemError: on entry where the server does not start, on an answer where it fails.
    """

    def __init__(
        self,
        name: str,
        program: Sequence[str | Path],
        model: Path,
        threads: int,
        capacity: int,
        stop_ids: Sequence[int],
        flags: Sequence[str] = (),
        words: str = "",
        version: str = "",
    ) -> None:
        self.name, self._version = name, version
        self._stop_ids, self._model = frozenset(stop_ids), model
        self._port = _free_port()
        self._command = [
            *map(str, program), "-m", str(model), "--host", "127.0.0.1", "--port", str(self._port), "-np", "1",
            "-c", str(capacity), "-t", str(threads), "-tb", str(threads), "-ngl", "0", *flags,
        ]  # fmt: skip
        if "--cache-ram" in words:  # a copy of every prompt would be kept between two requests
            self._command += ["--cache-ram", "0"]
        if "--no-op-offload" in words:  # else prompts are processed on a GPU, even with all weights in CPU memory
            self._command += ["--no-op-offload"]
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None

    def __enter__(self) -> LlamaServer:
        self._said = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
                preexec_fn=end_with_parent(), start_new_session=True,
            )  # fmt: skip
            self._wait()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise ExternalSystemError(
                    f"{self._command[0]}: {error.strerror}; name another one in {VARIABLE}"
                ) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._said.close()

    @property
    def pid(self) -> int | None:
        """Of the child; None before it was started."""
        return None if self._process is None else self._process.pid

    def answer(self, request: Request) -> Answer:
        read_ms = 0.0
        if head := list(request.prompt_ids[:-1]):
            read_ms = self._complete(request, head, 0)[1]["prompt_ms"]
        tokens, timings = self._complete(request, list(request.prompt_ids), request.max_new_tokens)
        if timings["prompt_n"] != 1:
            raise ExternalSystemError(
                f"{self.name} read {timings['prompt_n']} prompt tokens again, so its clock is another; install a newer "
                "llama.cpp (docs/methods.md), or drop it from --peers"
            )
        # Each pass gives the tokens that it accepts and one of its own.
        passes = max(1, timings["predicted_n"] - timings.get("draft_n_accepted", 0))
        decode_ms, first_ms = timings["prompt_ms"] + timings["predicted_ms"], read_ms + timings["prompt_ms"]
        written = timings["predicted_n"]
        return answer_of(tokens, self._stop_ids, written, passes, decode_ms, first_ms, self._version)

    def _complete(self, request: Request, ids: list[int], new_tokens: int) -> tuple[list[int], Mapping[str, Any]]:
        """Tokens and timings; 0 new tokens only reads `ids`, into an empty slot."""
        reply = self._ask(
            {
                "prompt": ids, "n_predict": new_tokens, "cache_prompt": new_tokens > 0, "return_tokens": True,
                "temperature": request.temperature, "seed": request.seed & 0xFFFFFFFF, "samplers": ["temperature"],
            }
        )  # fmt: skip
        tokens, timings = reply.get("tokens"), reply.get("timings")
        wanted = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms")
        if (
            not isinstance(tokens, list)
            or not all(type(token) is int for token in tokens)
            or not isinstance(timings, dict)
            or not all(isinstance(timings.get(name), (int, float)) for name in wanted)
        ):
            raise ExternalSystemError(
                f"{self.name} answers without tokens or timings; install a newer llama.cpp (docs/methods.md)"
            )
        return tokens, timings

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            status, text = self._request("POST", "/completion", json.dumps(body), _ANSWER_S)
            reply = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ExternalSystemDied(
                f"{self.name} {self._ending()} in an answer ({self._last_words() or error})"
            ) from None
        if status != http.client.OK or not isinstance(reply, dict):
            raise ExternalSystemError(f"{self.name} refuses a prompt of {len(body['prompt'])} tokens: {text[:300]}")
        return reply

    def _request(self, verb: str, path: str, body: str | None = None, timeout: float = 1.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
        try:
            connection.request(verb, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def _wait(self) -> None:
        """Until the model is loaded."""
        assert self._process is not None, "it was started just now"
        end = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < end:
            try:
                if self._request("GET", "/health")[0] == http.client.OK:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(_POLL_S)
        why = ending(self._process.returncode) if self._process.poll() is not None else "is not ready"
        raise ExternalSystemError(f"{self._model}: {self.name} {why} ({self._last_words()}); drop it from --peers")

    def _ending(self) -> str:
        """How a server that gave no whole reply ended; one that is still there is stopped."""
        assert self._process is not None, "it was asked something"
        try:
            return ending(self._process.wait(_END_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "gave no whole reply and was stopped"

    def _last_words(self) -> str:
        """The last line that the server wrote; of those that speak of an error, where there are any."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return next(iter([line for line in lines if "error" in line.lower()][-1:] or lines[-1:]), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
