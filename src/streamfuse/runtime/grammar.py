"""Grammars that text/ compiles for a vocabulary: JSON schemas, regular expressions, Lark (sf_text_constrain)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_uint8, c_uint32, c_uint64
from typing import Any

import numpy as np

from streamfuse.runtime.backend import BoolArray, IntArray
from streamfuse.runtime.handle import Handle
from streamfuse.runtime.structures import ConstraintTable
from streamfuse.runtime.text_library import OK, GrammarError, TextError, TextHandle, text_error

__all__ = ["Grammar", "GrammarError"]

_KINDS = {"schema": 1, "regex": 2, "grammar": 3}  # SF_JSON_SCHEMA, SF_REGEX, SF_LARK


class Grammar:
    """A constraint (runtime.constraint.Constraint) of one text. `Tokenizer.constraint` makes it.

    It may be given to one text (`CoreSession.start`), which takes it over: after that its methods raise ValueError.
    """

    def __init__(self, text: TextHandle, kind: str, source: str, *, or_call: bool = False) -> None:
        """`kind` is schema (its JSON text), regex, grammar (Lark), or calls (a tool choice: auto, none, required or the
        name of a function). `or_call`: the text may be a tool call instead.

        Raises:
            GrammarError: the grammar is invalid, not supported or too large.
        """
        try:
            data = source.encode()
        except UnicodeEncodeError as error:
            raise GrammarError(f"the {kind} is not UTF-8 text (character {error.start + 1})") from None
        self._table = ConstraintTable()
        self.vocab_size = text.vocab_size
        if kind == "calls":
            text.call("sf_text_constrain_calls", data, len(data), byref(self._table))
            if not self._table.size:
                raise TextError("there are no tools, so nothing restricts the calls")
        else:
            function = "sf_text_constrain_answer_or_call" if or_call else "sf_text_constrain"
            text.call(function, _KINDS[kind], data, len(data), byref(self._table))
        release = self._table.release
        self._handle = Handle(self._table.context, release, "constraint", ValueError, one_thread=True)
        self._bits = np.zeros(-(-self.vocab_size // 32), "<u4")

    def constraint_table(self) -> ConstraintTable:
        """The C structure for a new owner, which releases it."""
        self._handle.give_away()
        return self._table

    def accept(self, token: int) -> None:
        """Append a token that is allowed. GrammarError if it is not."""
        self._call(self._table.accept, token)

    def rollback(self, n: int) -> None:
        """Drop the last `n` accepted tokens."""
        self._call(self._table.rollback, n)

    def state(self) -> int:
        """A sum of MAY_END, MUST_END, UNRESTRICTED and MAY_GROW (runtime.constraint)."""
        state = c_int32()
        self._call(self._table.state, byref(state))
        return state.value

    def allows(self, tokens: Sequence[int] | IntArray) -> BoolArray:
        """[n]: whether each of `tokens`, int64 [n], may follow."""
        given = np.ascontiguousarray(tokens, np.int64)
        allowed = np.zeros(len(given), np.uint8)
        pointer = given.ctypes.data_as(POINTER(c_int64))
        self._call(self._table.allows, pointer, len(given), allowed.ctypes.data_as(POINTER(c_uint8)))
        return allowed.view(np.bool_)

    def mask(self) -> BoolArray:
        """[vocab_size]: whether each token may follow."""
        self._call(self._table.mask, self._bits.ctypes.data_as(POINTER(c_uint32)))
        bits = np.unpackbits(self._bits.view(np.uint8), count=self.vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def forced(self, room: int) -> list[int]:
        """The tokens that spell the only text that can follow, at most `room`; none if there is a choice."""
        tokens, n = (c_int64 * max(room, 0))(), c_int32()
        self._call(self._table.forced, tokens, room, byref(n))
        return list(tokens[: n.value])

    def choice_key(self) -> int:
        """A number that states with the same few next bytes share; 0 where more than 40 bytes may come next."""
        key = c_uint64()
        self._call(self._table.choice_key, byref(key))
        return key.value

    def close(self) -> None:
        """Release it, unless a text has taken it over."""
        self._handle.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._handle as context:
            code = function(context, *arguments)
            if code != OK:
                raise text_error(code, ctypes.string_at(self._table.error(context)).decode(errors="replace"))


def source_of(schema: Mapping[str, Any] | bool | str | None, regex: str | None, grammar: str | None) -> tuple[str, str]:
    """The kind and the text of the one that is given. ValueError where not exactly one is."""
    given = {"schema": schema, "regex": regex, "grammar": grammar}
    named = [(kind, value) for kind, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError("give exactly one of schema, regex and grammar")
    kind, value = named[0]
    return kind, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
