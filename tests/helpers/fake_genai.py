"""The classes of onnxruntime_genai as far as `bench/external/onnx_genai.py` uses them, in Python."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_llama_server as fake


class FakeGenai:
    """The next token is arithmetic, and a pass of a token takes a while.

    Guidance forces the token after each that is divisible by 3, which is then 1: with `enable_ff_tokens` it comes with
    the pass before. A guidance whose text contains "unknown" is refused.
    """

    PASS_S, __version__ = 0.002, "0"

    def __init__(self, fault: bool = False) -> None:
        self.settings: dict[str, Any] = {}
        self.guidance: tuple[str, str, bool] | None = None
        self.appended: list[list[int]] = []
        self.fault = fault

    def Config(self, folder: str) -> Any:
        if not Path(folder).is_dir():
            raise RuntimeError("no genai_config.json")
        return SimpleNamespace(overlay=lambda text: self.settings.update(json.loads(text)))

    def Model(self, config: Any) -> Any:
        return config

    def GeneratorParams(self, model: Any) -> Any:
        self.guidance = None

        def set_guidance(kind: str, text: str, ff_tokens: bool) -> None:
            self.guidance = (kind, text, ff_tokens)

        return SimpleNamespace(
            set_search_options=lambda **options: self.settings.update(options), set_guidance=set_guidance
        )

    def Generator(self, model: Any, parameters: Any) -> FakeGenerator:
        if self.guidance is not None and "unknown" in self.guidance[1]:
            raise RuntimeError("Error creating grammar: Unimplemented keys")
        self.appended = []
        return FakeGenerator(self)


class FakeGenerator:
    """A token that ends the text is written nowhere."""

    def __init__(self, api: FakeGenai) -> None:
        self._api, self._guidance = api, api.guidance
        self._text: list[int] = []
        self._done = False

    def append_tokens(self, ids: list[int]) -> None:
        self._api.appended.append(ids)
        self._text.extend(ids)

    def token_count(self) -> int:
        return len(self._text)

    def is_done(self) -> bool:
        return self._done

    def get_sequence(self, row: int) -> list[int]:
        return list(self._text)

    def generate_next_token(self) -> None:
        if self._api.fault:
            raise RuntimeError("the session is lost")
        time.sleep(self._api.PASS_S)
        self._write()
        if self._guidance is not None and self._guidance[2] and self._forced:
            self._write()

    @property
    def _forced(self) -> bool:
        return self._guidance is not None and self._text[-1] % 3 == 0

    def _write(self) -> None:
        token = 1 if self._forced else fake.following(self._text[-1])
        self._done = token in self._api.settings["model"]["eos_token_id"]
        if not self._done:
            self._text.append(token)
