"""Between text and token ids: the tokenizer of a bundle and its chats. The runtime itself speaks ids only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE

from streamfuse.chat_template import Message, Template, TextError, one_line
from streamfuse.control_tokens import CUT, ControlTokens

__all__ = ["Conversation", "Message", "TextError", "TextIO", "load_tokenizer"]


_MODEL = "assistant"  # the role of what the model wrote


class TextIO:
    """Encodes prompts and chats, decodes answers.

    In a chat only the template writes control tokens. What a message says is text, also where it spells one of them:
    `<|im_end|>` in a question is ten characters for the model to read, and not the end of the question. A raw prompt
    (`encode`) is read as it stands, control tokens and all.
    """

    def __init__(
        self,
        tokenizer: Path | Tokenizer,
        chat_template: str | None,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
        ends = (self._word(number) for number in (bos_token_id, *eos_token_ids))
        self._control = ControlTokens(self._tokenizer, chat_template or "", ends)
        self._source = chat_template or ""
        added = self._tokenizer.get_added_tokens_decoder().items()
        self._special = {number: token.content for number, token in added if token.special}
        self._template = None if chat_template is None else Template(chat_template)
        self._marks = {
            "bos_token": self._word(bos_token_id),
            "eos_token": self._word(eos_token_ids[0] if eos_token_ids else None),
        }

    @property
    def can_chat(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the marks that the tokenizer itself puts around one."""
        return self._ids(_utf8(text, "prompt"), marks=True)

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of text that a template wrote: the template has put every mark there already."""
        return [token for part in text.split(CUT) for token in self._ids(part, marks=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        with _as_sentence("the tokenizer refuses these tokens"):
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def special(self, token_id: int) -> str:
        """What a special token is spelt as, which `decode` leaves out; empty for any other."""
        return self._special.get(token_id, "")

    def render(self, messages: Sequence[Message]) -> str:
        """The chat as the model was trained to read it, up to where its answer begins.

        Raises:
            TextError: there is no template, or it refuses these messages.
        """
        return self.render_cut(messages).replace(CUT, "")

    def render_cut(self, messages: Sequence[Message]) -> str:
        """The same for `encode_rendered`: control tokens that messages spell are cut in two, at `CUT`.

        A template may look for control tokens in the model's own turns, as for the `</think>` behind which an answer
        begins. Those that change what it writes stay whole in these turns, and no others. A control token of which the
        template writes one part and a message the other is cut between the two.
        """
        turns = self.checked(messages)
        own = [message["content"] for message in turns if message["role"] == _MODEL]
        kept = {word for text in own for word in self._control.in_text(text.replace(CUT, "")) if word in self._source}
        rendered = self._render_cut(turns, kept)
        for word in sorted(kept):
            with suppress(TextError):
                without = self._render_cut(turns, kept - {word})
                if without.replace(CUT, "") == rendered.replace(CUT, ""):
                    rendered, kept = without, kept - {word}
        with suppress(TextError):
            edged = self._render_cut(turns, kept, edges=True)
            if edged.replace(CUT, "") == rendered.replace(CUT, ""):
                return self._control.cut_spanning(rendered, edged)
        return rendered

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat."""
        return self.encode_rendered(self.render_cut(messages))

    def check_chat(self) -> None:
        """TextError where the template refuses a plain chat: a question, and a second one after an answer."""
        question, answer = {"role": "user", "content": "Why?"}, {"role": _MODEL, "content": "Because."}
        if self.can_chat:
            self.encode_chat([question])
            self.encode_chat([question, answer, question])

    def cut(self, text: str) -> str:
        """Text with a `CUT` in each control token that it spells."""
        return self._control.cut(text)

    def _render_cut(self, turns: Sequence[Message], kept: Set[str], edges: bool = False) -> str:
        """`kept` are the control tokens that stay whole in the model's turns; `edges`: messages are also cut at their
        ends, where a control token may span one."""
        if self._template is None:
            raise TextError(
                "this bundle has no chat template, so it takes neither chats nor system messages; give it raw text"
            )
        return self._template.render([self._cut_turn(turn, kept, edges) for turn in turns], self._marks)

    def _cut_turn(self, turn: Message, kept: Set[str], edges: bool) -> Message:
        whole = kept if turn["role"] == _MODEL else frozenset()
        cut = {name: self._control.cut(text, whole) for name, text in turn.items()}
        if edges:
            cut = {name: self._control.cut_edges(text) for name, text in cut.items()}
        return {**cut, "role": self._control.cut_role(turn["role"])}

    def checked(self, messages: Sequence[object]) -> list[Message]:
        """The same messages, copied. TextError names the first that is none."""
        return [self._checked(number, message) for number, message in enumerate(messages, 1)]

    @staticmethod
    def _checked(number: int, message: object) -> Message:
        """A message, if it is one."""
        if not isinstance(message, Mapping) or not all(name in message for name in ("role", "content")):
            raise TextError(f'message {number} must be {{"role": text, "content": text}}, not {message!r:.40}')
        for name, text in message.items():
            if not isinstance(text, str):
                raise TextError(f"message {number}: its {name} must be text, not {text!r:.40}")
            _utf8(text, name if name == "role" else f"{message['role']} message")
        return dict(message)

    def has(self, token_id: int) -> bool:
        """Whether the tokenizer knows this id."""
        return 0 <= token_id < 2**32 and self._tokenizer.id_to_token(token_id) is not None

    def _ids(self, text: str, marks: bool) -> list[int]:
        with _as_sentence("the tokenizer refuses this text"):
            return list(self._tokenizer.encode(text, add_special_tokens=marks).ids)

    def _word(self, token_id: int | None) -> str:
        return "" if token_id is None else (self._tokenizer.id_to_token(token_id) or "")


@contextmanager
def _as_sentence(what: str) -> Iterator[None]:
    """TextError for whatever the library raises: bare Exception, or where it breaks a PanicException, which is none."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TextError(f"{what} ({one_line(error)})") from None


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file. What is for training in it is dropped: lengths (truncation, padding), random merges.

    Raises:
        TextError: the file is not a tokenizer.
    """
    with _as_sentence(f"{path}: not a tokenizer"):
        tokenizer = Tokenizer.from_buffer(path.read_bytes())  # from_file takes no path that is not UTF-8
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, BPE):
        tokenizer.model.dropout = None
    return tokenizer


@dataclass(slots=True)
class Conversation:
    """The turns of a chat, and the exact tokens of each, so that the cache of a session is never read again.

    A model may spell its answer in other tokens than the tokenizer would. The next prompt therefore continues from the
    tokens that were generated wherever the template leaves the answer's text as it was. It begins with the system
    message and the turns of `history`; TextError where one of those is no {"role", "content"} of texts.
    """

    text_io: TextIO
    system: str | None = None
    history: Sequence[Mapping[str, str]] = ()
    messages: list[Message] = field(init=False)
    _read_text: str = ""
    _read_ids: list[int] = field(default_factory=list)
    _asked: tuple[str, list[int]] = field(default=("", []), repr=False)

    def __post_init__(self) -> None:
        self.history = self.text_io.checked(self.history)
        self.reset()

    def reset(self) -> None:
        """Forget all turns but those that it began with."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.messages = [*first, *map(dict, self.history)]
        self._read_text, self._read_ids = "", []

    def ask(self, user: str) -> list[int]:
        """Add a turn of the user; the whole context as token ids. Follow it with `answer` or `take_back`."""
        rendered = self.text_io.render_cut([*self.messages, {"role": "user", "content": user}])
        self.messages.append({"role": "user", "content": user})
        if self._read_ids and rendered.startswith(self._read_text):
            ids = self._read_ids + self.text_io.encode_rendered(rendered[len(self._read_text) :])
        else:
            ids = self.text_io.encode_rendered(rendered)
        self._asked = (rendered, ids)
        return ids

    def answer(self, text: str, token_ids: Sequence[int]) -> None:
        """Add the model's turn, whole or cut short."""
        rendered, ids = self._asked
        self.messages.append({"role": "assistant", "content": text})
        if self.text_io.decode(token_ids) == text:
            self._read_text, self._read_ids = rendered + self.text_io.cut(text), [*ids, *token_ids]
        else:  # a stop string or an unfinished character is in the tokens and not in the text
            self._read_text, self._read_ids = "", []

    def take_back(self) -> None:
        """The last question was not answered: forget it."""
        self.messages.pop()

    def note(self) -> bytes:
        """The conversation as JSON, in the form of sf_text_save (text/)."""
        state = {"messages": self.messages, "read_text": self._read_text, "read_ids": self._read_ids}
        return json.dumps(state, ensure_ascii=False).encode()

    def take_note(self, note: bytes) -> None:
        """The conversation that `note` gave. TextError for anything else; then nothing has changed."""
        try:
            state = json.loads(note.decode())
            messages = [{"role": m["role"], "content": m["content"]} for m in state["messages"]]
            text, ids = state["read_text"], state["read_ids"]
            sound = (
                all(isinstance(value, str) for message in messages for value in message.values())
                and isinstance(text, str)
                and isinstance(ids, list)
                and all(type(token) is int and self.text_io.has(token) for token in ids)
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise TextError("the saved session holds no conversation; it was not saved by a chat")
        self.messages, self._read_text, self._read_ids = messages, text, ids


def _utf8(text: str, what: str) -> str:
    """`text`, if it is one and can be written as UTF-8; Python keeps bytes that are not as lone surrogates."""
    if not isinstance(text, str):
        raise TextError(f"the {what} must be text, not {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"the {what} is not UTF-8 text (character {error.start + 1}); convert it") from None
    return text
