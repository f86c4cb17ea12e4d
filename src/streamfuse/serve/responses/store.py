"""Responses that can be asked for again and continued, in memory."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

from streamfuse.serve.errors import RequestError
from streamfuse.serve.responses.items import Item

MOST_RESPONSES = 256
MOST_BYTES = 64 << 20
_ITEM_BYTES = 1024  # estimated overhead of an item in memory


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it was sent, and the items of its conversation before it."""

    response: dict[str, Any]
    input: list[Item]

    @property
    def items(self) -> list[Item]:
        """The conversation so far."""
        return [*self.input, *self.response["output"]]


class Store:
    """The responses that were used last: at most `most` of them, in at most about `most_bytes`. Thread-safe."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._stored: OrderedDict[str, tuple[Stored, int]] = OrderedDict()  # with its bytes, the oldest first
        self._items: dict[str, tuple[Item, int]] = {}  # by id, each with the number of stored responses that have it
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, response: dict[str, Any], given: list[Item]) -> None:
        """Keep a response and its input."""
        # Items that responses share are counted for each of them, so the total is an upper estimate.
        stored = Stored(response, given)
        size = len(json.dumps([response, given])) + _ITEM_BYTES * len(stored.items)
        with self._lock:
            self._stored[response["id"]] = stored, size
            self._bytes += size
            for item in stored.items:
                self._items[item["id"]] = item, self._items.get(item["id"], (item, 0))[1] + 1
            while len(self._stored) > self._most or self._bytes > self._most_bytes:
                self._drop(next(iter(self._stored)))

    def get(self, id_: str, param: str | None = None) -> Stored:
        """A response. RequestError, which names the field `param`, if it is not stored."""
        with self._lock:
            found = self._stored.get(id_)
            if found is not None:
                self._stored.move_to_end(id_)
                return found[0]
        kept = "the server keeps only recently used responses, in memory, and none with store: false"
        if param is None:
            raise RequestError(404, f"response {id_!r:.80} not found: {kept}", code="response_not_found")
        # Some clients look for these words, and send the whole conversation then.
        message = f"previous response {id_!r:.80} not found: {kept}"
        raise RequestError(400, message, param, "previous_response_not_found")

    def delete(self, id_: str) -> None:
        """Forget a response; others that continue it keep its items."""
        with self._lock:
            self.get(id_)
            self._drop(id_)

    def item(self, id_: str) -> Item | None:
        """An item of a stored conversation."""
        return self._items.get(id_, (None, 0))[0]

    def _drop(self, id_: str) -> None:
        stored, size = self._stored.pop(id_)
        self._bytes -= size
        for item in stored.items:
            count = self._items[item["id"]][1] - 1
            if count:
                self._items[item["id"]] = item, count
            else:
                del self._items[item["id"]]


def page_of(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of items, for the query parameters `limit`, `order` and `after`."""
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not re.fullmatch("[0-9]{1,3}", limit) or not 1 <= int(limit) <= 100:
        raise RequestError(400, f"limit must be an integer from 1 to 100, not {limit!r:.40}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise RequestError(400, f"order must be asc or desc, not {order!r:.40}", "order", "invalid_value")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise RequestError(400, f"after: there is no item {after!r:.80}", "after", "invalid_value")
        ordered = ordered[places[-1] + 1 :]  # an item may be there twice
    found, left = ordered[: int(limit)], ordered[int(limit) :]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {"first_id": None, "last_id": None}
    return {"object": "list", "data": found, **ends, "has_more": bool(left)}
