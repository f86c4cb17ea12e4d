"""Python's answers for the tests of other languages, which ask while they run.

Run: PYTHONPATH=src python tests/helpers/peer.py

Reads one JSON object per line, and writes one for each:

    {"bundle": folder, "turns": [prompt, ...], "config": options of a generation, "system": text or null, "raw": false,
     "context_policy": of a chat or null, "adapter": a task adapter of the bundle or null,
     "restore": file or null, "save": file or null,
     "stops": null or for each turn a number of tokens or null,
     "scores": null or pairs of a prompt and an answer to score}
    {"turns": [{"text", "tokens", "sources", "log_probs", "top_log_probs", "statistics", "seconds"}, ...],
     "messages": [...], "scores": null or the log-probabilities of each answer} or {"error": sentence}

Each request has a sequence of its own: a chat, or for raw prompts a session. A turn with a number in `stops` is
stopped once so many tokens were delivered; 0: before its prompt is read.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import streamfuse
from streamfuse.api import Chat, Model


@lru_cache
def opened(folder: str) -> Model:
    return streamfuse.load(folder)


def turn(ask: Callable[[], Any], stop_after: int | None = None) -> dict[str, Any]:
    """What a generation gives, to its end; `seconds` count from the question on."""
    started = time.perf_counter()
    stream = ask()
    if stop_after == 0:
        stream.stop()
    pieces = []
    for piece in stream:
        pieces.append(piece)
        if sum(one.token is not None for one in pieces) == stop_after:
            stream.stop()
    seconds = time.perf_counter() - started
    return {
        "text": stream.text,
        "tokens": [piece.token for piece in pieces if piece.token is not None],
        "sources": [piece.source for piece in pieces if piece.token is not None],
        "log_probs": [piece.log_prob for piece in pieces if piece.log_prob is not None],
        "top_log_probs": [[one._asdict() for one in piece.top_log_probs] for piece in pieces if piece.top_log_probs],
        "statistics": stream.statistics.to_dict(),
        "seconds": seconds,
    }


def chat_turns(chat: Chat, asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("restore"):
        chat.restore(asked["restore"])
    stops = asked.get("stops") or [None] * len(asked["turns"])
    asks = (partial(chat.stream, prompt, **asked["config"]) for prompt in asked["turns"])
    turns = [turn(ask, stop) for ask, stop in zip(asks, stops, strict=True)]
    if asked.get("save"):
        chat.save(asked["save"])
    return {"turns": turns, "messages": chat.messages}


def scored(model: Model, asked: dict[str, Any]) -> list[list[float]] | None:
    system, raw = asked.get("system"), bool(asked.get("raw"))
    pairs = asked.get("scores")
    return pairs and [model.score(prompt, given, system=system, raw=raw).log_probs for prompt, given in pairs]


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    if "seed" in asked["config"]:
        asked["config"]["seed"] %= 1 << 64  # other languages have signed numbers
    model = opened(asked["bundle"])
    if asked.get("adapter"):
        model = model.adapter(asked["adapter"])
    if not asked.get("raw"):
        with model.chat(asked.get("system"), context_policy=asked.get("context_policy") or "fail") as chat:
            return {**chat_turns(chat, asked), "scores": scored(model, asked)}
    session, config = model.session(), model.config(**asked["config"])
    prompts = [model.encode(prompt, raw=True) for prompt in asked["turns"]]
    turns = [turn(partial(session.generate, ids, config, raw=True)) for ids in prompts]
    session.close()
    return {"turns": turns, "messages": [], "scores": scored(model, asked)}


def main() -> None:
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except (ValueError, RuntimeError) as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
