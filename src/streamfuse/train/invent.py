"""Prompts that nobody wrote: a chat model goes on with its own template at the place where the user speaks.

After Magpie (Xu et al., 2024, arXiv 2406.08464): a model tuned on chats has learnt users' turns as well, so what it
samples there is spread like the prompts that it was tuned on. For streams of a model whose prompts nobody has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from streamfuse.model.transformer import Transformer
from streamfuse.text_io import TextIO

from .distill import rows_written
from .formats import DataError
from .generate import DistillConfig, generate_batch

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for what the user says
_SHORTEST = 12  # characters; less is no prompt
_PATIENCE = 8  # batches without a prompt


def user_turn(text: TextIO, begin: str = "", system: str | None = None) -> tuple[list[int], int]:
    """Token ids of a chat up to what the user says (`begin` included), and the token that ends the user's turn.

    Raises:
        TextError: the chat template cannot be used.
        DataError: the template changes what the user says, or marks no end of it.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    parts = text.render([*messages, {"role": "user", "content": _MARK}]).split(_MARK)
    after = text.encode_rendered(parts[1]) if len(parts) == 2 else []
    if not after:
        raise DataError("the chat template does not say where a user's turn begins and ends")
    return text.encode_rendered(parts[0] + begin), after[0]


def invent(
    model: Transformer, text: TextIO, out: Path, count: int, config: DistillConfig, begin: str, system: str | None
) -> Iterator[int]:
    """Sample users' turns until `out` holds `count`, `{"id", "source", "prompt"}` a line.

    Yields how many are there, then how many each batch added. Turns that do not end within `config.max_new_tokens`,
    that are too short or there already are dropped. An id is the sample's place in the order of all samples, with
    numbers of its own: a stopped run goes on with the same prompts.

    Raises:
        DataError: `out` holds something else, or the model writes nothing that could be a prompt.
    """
    opening, end = user_turn(text, begin, system)
    known, next_id = _written(out)
    yield len(known)
    in_vain = 0  # batches in a row
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        while len(known) < count:
            ids = range(next_id, next_id + config.batch_size)
            seeds = [(config.seed << 32) + one for one in ids]
            before = len(known)
            for one, tokens in zip(ids, generate_batch(model, [opening] * len(ids), config, seeds), strict=True):
                prompt = (begin + text.decode(tokens[: tokens.index(end)])).strip() if end in tokens else ""
                if len(prompt) < max(_SHORTEST, len(begin) + 2) or prompt in known or len(known) == count:
                    continue
                known.add(prompt)
                row = {"id": one, "source": "invented", "prompt": prompt}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            next_id = ids.stop
            in_vain = 0 if len(known) > before else in_vain + 1
            if in_vain == _PATIENCE:
                raise DataError(
                    f"{out}: {len(known)} prompts; the last {_PATIENCE * len(ids)} samples were all too short, "
                    "too long or there already. Try another --begin, or more --max-new-tokens"
                )
            yield len(known) - before


def _written(path: Path) -> tuple[set[str], int]:
    """The prompts in the file and the id to go on with."""
    known: set[str] = set()
    next_id = 0
    for row in rows_written(path, "a prompt of `streamfuse invent`"):
        known.add(str(row.get("prompt")))
        next_id = row["id"] + 1
    return known, next_id
