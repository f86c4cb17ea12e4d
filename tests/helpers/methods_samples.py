"""A small made-up result of `streamfuse research compare`, as its `--json` prints it. No figure in it was measured."""

from __future__ import annotations

from typing import Any

DATA = {"e2e": 1.0, "spec-bench": 0.7}  # how well the made-up drafts do there
WORDS = ["The", " sky", " is", " blue", " because", " the", " air", " scatters", " short", " waves", " more", " than",
         " long", " ones", ".", "\n", "So", " what", " reaches", " us", " from", " all", " sides", " is", " blue",
         " <light>", "."]  # fmt: skip


def method(gain: float, drafter: str, lossless: bool = True, over_time: bool = False, **more: Any) -> dict[str, Any]:
    """`gain`: speed-up on e2e."""
    results = {}
    for data, share in DATA.items():
        speedup = round(1 + (gain - 1) * share, 3)
        ratio = round(1.25 * speedup, 3) if drafter != "none" else 1.0
        results[data] = {
            "call_reduction_ratio": ratio,
            "mean_accepted_tokens": round(0.97 * ratio, 3),
            "tokens_per_second": round(150 * speedup, 1),
            "tokens_per_second_interval": [round(140 * speedup, 1), round(160 * speedup, 1)],
            "speedup": speedup,
            "speedup_interval": [round(0.93 * speedup, 3), round(1.08 * speedup, 3)]
            if drafter != "none"
            else [1.0, 1.0],
            "first_token_ms": 31.5,
            "equal_texts": lossless,
            "share_of_equal_tokens": None if lossless else 0.62,
            "quality": {"rougeL": 41.5 if lossless else 39.0},
            "acceptance": []
            if drafter == "none"
            else [[round(share * 0.7 ** (depth / 2) * part, 3) for part in (0.7, 0.15, 0.05)] for depth in range(4)],
            "passes": {"target: decode": 90}
            if drafter == "none"
            else {"target: decode": 10, "target: verify_4": 5, "target: verify_8": 25, f"{drafter} model: decode": 80},
            "generated_tokens": 90,
            "over_time": [[100 * i, 1.2 + 0.9 * gain * i / (i + 4)] for i in range(1, 13)] if over_time else None,
        }
    return {
        "about": f"drafts by {drafter}",
        "source": "A. Author, 2024, arXiv 2401.00001",
        "drafter": drafter,
        "acceptor": "match" if lossless else "typical",
        "tree": "best first",
        "lossless": lossless,
        "promises": "tokens" if lossless else None,
        "extra_parameters": 0 if drafter == "none" else 1_234_567,
        "extra_bytes": 0 if drafter == "none" else 2_500_000,
        "peak_memory_bytes": 165_000_000 if drafter == "none" else 1_183_000_000,
        "results": results,
        "computed": {"phone A": {data: round(0.9 * gain, 2) for data in DATA}} if drafter != "none" else {},
        **more,
    }


def answer(source: str, per_pass: int, ms: float) -> dict[str, Any]:
    """Passes of `per_pass` tokens, all but the last drafted; every third pass refuses two drafts."""
    tokens, rejected = [], []
    for index, text in enumerate(WORDS):
        number, place = divmod(index, per_pass)
        own = index == 0 or place == per_pass - 1
        tokens.append({"text": text, "ms": 30 + ms * number, "source": "target" if own else source})
        if place == per_pass - 1 and number % 3 == 0:
            rejected += [{"at": index, "text": " red", "depth": 1}, {"at": index, "text": "\n", "depth": 2}]
    return {"tokens": tokens, "rejected": rejected}


def course() -> dict[str, Any]:
    """Three visits of 12 answers; what learns begins as the frozen one and needs a pass less every third answer."""
    visits = [
        {"data": data, "again": again, "answers": [[30, 15 - i // 3, 15] for i in range(12)], "equal_texts": True}
        for data, again in (("e2e", False), ("spec-bench", False), ("e2e", True))
    ]
    return {"updates": 4, "visits": visits}


def made_up() -> dict[str, Any]:
    """A new one at every call, for tests that change it."""
    return {
        "model": "made-up/model <1>",
        "machine": {"processor": "Imaginary 9000", "cores": 2, "gb_s": 30.5},
        "command": "streamfuse research compare build/demo --data e2e --width 8",
        "settings": {"max_new_tokens": 64, "repetitions": 3, "temperature": 0.0, "seed": 0, "width": 8},
        "data": {data: {"prompts": 12} for data in DATA},
        "methods": {
            "plain": method(1.0, "none"),
            "plain, core": method(1.04, "none"),
            "streams, ours": method(2.1, "streams", over_time=True),
            "Medusa heads": method(1.7, "heads"),
            "Medusa heads, typical acceptance": method(1.9, "heads", lossless=False),
            "draft model, chain": method(1.2, "draft", over_time=True),
            "draft model, online": method(1.4, "draft"),
            "streams, online": method(2.0, "streams", online=course()),
            "prompt look-up": method(1.3, "lookup"),
            "n-gram table": method(0.95, "ngram"),
        },
        "costs": {
            "here": {"target: decode": 6.0, "target: verify_4": 9.0, "target: verify_8": 15.0,
                     "target: verify_16": 24.0, "target: streams": 2.4, "draft model: decode": 1.5},
            "phone A": {"target: decode": 10.0, "target: verify_4": 11.0, "target: verify_8": 14.0,
                        "target: verify_16": 22.0, "target: streams": 3.0, "draft model: decode": 2.0},
        },
        "sample": {
            "data": "e2e",
            "prompt": "Why is the sky blue?",
            "plain": {"tokens": [{"text": text, "ms": 30 + 6.0 * index} for index, text in enumerate(WORDS)]},
            "methods": {
                "streams, ours": answer("streams", 4, 11.0),
                "draft model, chain": answer("draft", 3, 13.0),
                "prompt look-up": answer("lookup", 2, 8.0),
            },
        },
        "an addition": {"unknown": True},
    }  # fmt: skip


def with_peers(result: dict[str, Any]) -> dict[str, Any]:
    """The result with two other programs beside."""
    figures = {
        "call_reduction_ratio": 1.4, "mean_accepted_tokens": 1.35, "first_token_ms": 40.0, "quality": None,
        "generated_tokens": 90, "tokens_per_second": 120.0, "tokens_per_second_interval": [110.0, 130.0],
        "speedup": 1.2, "speedup_interval": [1.1, 1.3], "over_core_plain": 0.8,
        "over_core_plain_interval": [0.7, 0.9], "equal_texts": True, "share_of_equal_tokens": 0.71,
    }  # fmt: skip
    result["peers"] = {
        name: {
            "about": "another",
            "program": "llama-server 1",
            "plain": "llama.cpp",
            "results": {data: dict(figures) for data in DATA},
        }
        for name in ("llama.cpp", "llama.cpp, draft model")
    }
    return result
