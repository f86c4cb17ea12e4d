"""Synthetic prompts: a chat model continues its own chat template at the user's turn.

After Magpie (Xu et al., 2024, arXiv 2406.08464): a model that is tuned on chats has learnt user turns too, so its
samples there are distributed like the prompts that it was tuned on. For streams of a model without prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamfuse.digest import sha256_of
from streamfuse.runtime.text import CONTENT_END, Message, Tokenizer

from .config import DistillConfig
from .distill import (
    Answering,
    Item,
    appending,
    check_context,
    check_provenance,
    first_row_facts,
    provenance_of,
    rows_written,
)
from .formats import DataError
from .readers import with_system

_PROMPT = "a prompt of `streamfuse data synthesize`"
_SHORTEST = 12  # minimum length of a prompt in characters
_PATIENCE = 8  # give up after this many full batches without a prompt
_LEAST_BATCH = 8
_BUNDLE_BATCH = 512


@dataclass(frozen=True, slots=True)
class Opening:
    """A position where a prompt begins: the preceding chat as token ids, and the beginning of each of its prompts."""

    input_ids: list[int]
    begin: str = ""
    before: tuple[Message, ...] = ()  # the earlier messages, which are stored in the file's row


def user_turn(text: Tokenizer, before: Sequence[Message] = (), begin: str = "") -> tuple[list[int], int]:
    """Token ids of a chat up to the user's message (including `begin`), and the token that ends the user's turn.

    Raises:
        TextError: the chat template cannot be used.
        DataError: the template changes the user's message, or has no token after it.
    """
    parts = text.render_cut([*before, {"role": "user", "content": begin + CONTENT_END}]).split(CONTENT_END)
    after = text.encode_rendered(parts[1], continues=True) if len(parts) == 2 else []
    if not after:
        raise DataError("the chat template does not mark where a user's turn begins and ends")
    return text.encode_rendered(parts[0]), after[0]


def openings(
    text: Tokenizer, begin: Sequence[str] = (), system: str | None = None, after: Path | None = None
) -> tuple[list[Opening], int]:
    """The positions where prompts begin, and the token that ends a user's turn.

    `begin` has beginnings of prompts, which are used in turn; if it is empty, the model chooses. Trailing spaces are
    dropped, since word tokens include the space before them. `after` is a file of answers (`streamfuse data distill`):
    prompts follow the finished ones, as a user's second turn. `system` is the system message of chats that have none.

    Raises:
        TextError, DataError: as `user_turn`; or `after` has other contents, or no finished answers.
    """
    places, end = [], 0
    chats: list[tuple[Message, ...]] = [()] if after is None else _chats(text, after)
    for before in chats:
        chat = tuple(with_system(system, before))
        for one in (words.rstrip(" ") for words in begin or ("",)):
            ids, end = user_turn(text, chat, one)
            places.append(Opening(ids, one, chat if after else ()))
    return places, end


def prompt_provenance(
    config: DistillConfig,
    folder: Path | None,
    begin: Sequence[str],
    system: str | None,
    after: Path | None,
    **more: Any,
) -> dict[str, Any]:
    """What determines the prompts of a file: as `provenance_of`, and the settings of `openings`."""
    answers = after and sha256_of([after])[:16]
    return provenance_of(config, folder, begin=list(begin), system=system, after=answers, **more)


def for_bundle(config: DistillConfig) -> DistillConfig:
    """The settings with a batch that is worth loading a bundle for. The prompts do not depend on it."""
    return replace(config, batch_size=_BUNDLE_BATCH)


def check_prompts(out: Path, count: int, provenance: Mapping[str, Any], stage: str | None = None) -> list[Item]:
    """The rows of `out`, which `synthesize` can continue. `stage`: as in `check_provenance`.

    Raises:
        DataError: it has other contents or another provenance.
    """
    rows = list(rows_written(out, _PROMPT))
    check_provenance(out, provenance, _PROMPT, stage)
    return rows


def _chats(text: Tokenizer, after: Path) -> list[tuple[Message, ...]]:
    """The chats up to each finished answer. Those with tools are left out: an answer may be a call, which no user
    replies to."""
    rows = rows_written(after, "an answer of `streamfuse data distill`")
    try:
        chats: list[tuple[Message, ...]] = [
            (
                *row.get("before", ()),
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": text.decode(row["completion_ids"]).strip()},
            )
            for row in rows
            if row["finished"] and row["prompt"] and "tools" not in row
        ]
    except KeyError as error:
        raise DataError(f"{after}: no field {error}; not answers of `streamfuse data distill`") from None
    if not chats:
        raise DataError(
            f"{after}: it has no finished answers to prompts without tools; use a larger --max-new-tokens in distill"
        )
    return chats


def synthesize(
    answering: Answering,
    text: Tokenizer,
    out: Path,
    count: int,
    config: DistillConfig,
    places: list[Opening],
    end: int,
    provenance: Mapping[str, Any],
    context: int | None = None,
) -> Iterator[int]:
    """Sample user turns until `out` has `count` of them, one JSON object `{"id", "source", "prompt"}` per line, with
    `"messages"` instead of the prompt if it follows other messages.

    Yields how many exist, then how many each batch of `config.batch_size` samples added. `places` (from `openings`) are
    used in turn; those longer than `config.max_prompt_tokens` are skipped. Turns that do not end within
    `config.max_new_tokens`, that are too short or duplicates are dropped. An id is the sample's index among all
    samples, which have their own random numbers: an interrupted run resumes with the same prompts. The first row also
    has `"provenance"`, as in distill.py. `context`: the model's, in tokens; None: the caller has checked it.

    Raises:
        DataError: `out` has other contents or another provenance, or another process is writing it; or the model
            generates nothing that could be a prompt.
    """
    places = [place for place in places if len(place.input_ids) <= config.max_prompt_tokens]
    if not places:
        raise DataError(f"every chat to follow is longer than {config.max_prompt_tokens} tokens; raise the limit")
    if context is not None:
        check_context([place.input_ids for place in places], config, context)
    in_vain = 0  # consecutive samples without a prompt
    with appending(out) as file:
        rows = check_prompts(out, count, provenance)
        first_row = first_row_facts(out, provenance)
        known = {_prompt_in(row) for row in rows}
        next_id = rows[-1]["id"] + 1 if rows else 0
        yield len(known)
        while len(known) < count:
            # Most samples become prompts, so a batch much larger than what is missing would be written in vain.
            size = min(config.batch_size, max(_LEAST_BATCH, 2 * (count - len(known))))
            ids = range(next_id, next_id + size)
            taken = [places[one % len(places)] for one in ids]
            items: list[Item] = [
                {"id": one, "input_ids": place.input_ids} for one, place in zip(ids, taken, strict=True)
            ]
            written = {item["id"]: tokens for group in answering(items, config) for item, tokens, _ in group}
            before = len(known)
            for one, place in zip(ids, taken, strict=True):
                tokens = written[one]
                turn = text.decode(tokens[: tokens.index(end)]) if end in tokens else ""
                prompt = (place.begin + turn).strip() if turn else ""
                if len(prompt) < max(_SHORTEST, len(place.begin) + 2) or prompt in known or len(known) == count:
                    continue
                known.add(prompt)
                file.write(json.dumps({**_row(one, prompt, place), **first_row}, ensure_ascii=False) + "\n")
                first_row = {}
            file.flush()
            next_id = ids.stop
            in_vain = 0 if len(known) > before else in_vain + size
            if in_vain >= _PATIENCE * config.batch_size:
                raise DataError(
                    f"{out}: {len(known)} prompts; the last {in_vain} samples were all too short, "
                    "too long or duplicates. Try another --begin, or more --max-new-tokens"
                )
            yield len(known) - before


def _row(one: int, prompt: str, place: Opening) -> dict[str, object]:
    message = {"messages": [*place.before, {"role": "user", "content": prompt}]} if place.before else {"prompt": prompt}
    return {"id": one, "source": "synthesized", **message}


def _prompt_in(row: dict[str, Any]) -> str:
    return str(row["messages"][-1]["content"] if "messages" in row else row.get("prompt"))
