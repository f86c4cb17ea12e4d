"""Rows of other programs in the comparison of methods: for `--json`, and as a table for terminal, Markdown and page.

Their arithmetic and their weights' rounding differ from ours, so their texts do: a share says how much of ours they
begin with, and only their own plain decoding is held against their speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfuse.bench.shared.statistics import Estimate

from .core import CORE_PLAIN
from .measure import MethodsResult, figures
from .methods import BASELINE
from .peers import Peer
from .tables import NOTHING, Result, Table, at, items, number, text_of, with_interval

COLUMNS = [
    "peer (another program)",
    "tokens per pass",
    "tokens/s (95 % interval)",
    "over its own plain (95 % interval)",
    "over our core's plain (95 % interval)",
    "first token, ms",
    "text",
]
_KEPT = ("call_reduction_ratio", "mean_accepted_tokens", "first_token_ms", "quality", "generated_tokens")


def peer_rows(result: MethodsResult, peers: Sequence[Peer]) -> dict[str, Any]:
    """The object `peers` of `--json`: those that ran, by name, with the data sets that they answered to the end."""
    rows = {}
    for peer in peers:
        data = [one for one in result.data if peer.name in result.tasks[one.name].systems]
        if data:
            statistics = result.answers(peer.name, data[0].name)[0].statistics or {}
            rows[peer.name] = {
                "about": peer.about,
                "plain": peer.plain,
                "program": statistics["program"],
                "results": {one.name: _result(result, peer, one.name) for one in data},
            }
    return rows


def _result(result: MethodsResult, peer: Peer, name: str) -> dict[str, Any]:
    task, data = result.tasks[name], next(one for one in result.data if one.name == name)
    answers, ours = result.answers(peer.name, name), result.answers(BASELINE, name)
    found = figures(data, answers, ours, result.text, lossless=False)
    own = result.answers(peer.plain, name) if peer.plain in task.systems else None
    rate = task.rates[peer.name]
    return {
        **{key: found[key] for key in _KEPT},
        "tokens_per_second": rate.value,
        "tokens_per_second_interval": rate.interval,
        **_estimated("speedup", task.ratio(peer.name, peer.plain)),
        **_estimated("over_core_plain", task.ratio(peer.name, CORE_PLAIN)),
        "equal_texts": None if own is None else [a.token_ids for a in answers] == [a.token_ids for a in own],
        "share_of_equal_tokens": found["share_of_equal_tokens"],
    }


def _estimated(name: str, ratio: Estimate | None) -> dict[str, Any]:
    return {name: ratio and ratio.value, f"{name}_interval": ratio and ratio.interval}


def peers_table(result: Result, data: str) -> Table:
    """One row per peer that answered this data set; columns as `COLUMNS`."""
    rows = []
    for name, peer in items(result, "peers").items():
        if found := items(peer, "results", data):
            rates = [
                with_interval(found.get(key), found.get(f"{key}_interval"), form)
                for key, form in (("tokens_per_second", ".1f"), ("speedup", ".2f"), ("over_core_plain", ".2f"))
            ]
            rows.append(
                [name, text_of(found.get("call_reduction_ratio")), *rates, text_of(found.get("first_token_ms"), ".1f"),
                 _text(result, name, data)]
            )  # fmt: skip
    return list(COLUMNS), rows


def peers_short(result: Result, data: str) -> Table:
    """The same for a terminal of 80 columns: `speed` is over the peer's own plain decoding, `ours` over our core's."""
    rows = []
    for name, peer in items(result, "peers").items():
        if found := items(peer, "results", data):
            share = number(found.get("share_of_equal_tokens"))
            drawn = bool(number(at(result, "settings", "temperature")))
            rows.append(
                [name, text_of(found.get("mean_accepted_tokens")), text_of(found.get("tokens_per_second"), ".1f"),
                 text_of(found.get("speedup")), text_of(found.get("over_core_plain")),
                 NOTHING if share is None or drawn else f"{100 * share:.0f} %"]
            )  # fmt: skip
    return ["peer", "tokens", "per s", "speed", "ours", "text"], rows


def programs(result: Result) -> list[str]:
    """Versions of the peers' programs, each once, as far as they are known."""
    programs = [at(peer, "program") for peer in items(result, "peers").values()]
    return list(dict.fromkeys(str(one) for one in programs if one))


def _text(result: Result, name: str, data: str) -> str:
    """Whether speculation kept its own program's text, and how much of ours that is; a dash where texts are drawn."""
    found = at(result, "peers", name, "results", data)
    share = number(at(found, "share_of_equal_tokens"))
    if share is None or number(at(result, "settings", "temperature")):
        return NOTHING
    words = [f"{100 * share:.0f} % of our plain's tokens"]
    if at(result, "peers", name, "plain") != name and (equal := at(found, "equal_texts")) is not None:
        words.insert(0, "its own plain's" if equal else "NOT its own plain's")
    return ", ".join(words)
