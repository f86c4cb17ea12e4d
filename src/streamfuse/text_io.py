"""Between text and token ids: the tokenizer of a bundle and its chat template. The runtime itself speaks ids only.

Templates come from model authors, so they run in Jinja's sandbox: they can format messages and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


class TextError(ValueError):
    """A tokenizer or template that cannot be used, or a request that it cannot serve; one line."""


class TextIO:
    """Encodes prompts and chats, decodes answers."""

    def __init__(
        self,
        tokenizer_file: Path,
        chat_template: str | None,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises bare Exception
            raise TextError(f"{tokenizer_file}: not a tokenizer ({_one_line(error)})") from None
        self._template = None if chat_template is None else _compile(chat_template)
        self._marks = {
            "bos_token": self._word(bos_token_id),
            "eos_token": self._word(eos_token_ids[0] if eos_token_ids else None),
        }

    @property
    def can_chat(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the marks that the tokenizer itself puts around one."""
        return list(self._tokenizer.encode(text).ids)

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of text that a template wrote: the template has put every mark there already."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def render(self, messages: Sequence[Message]) -> str:
        """The chat as the model was trained to read it, up to where its answer begins.

        Raises:
            TextError: there is no template, or it refuses these messages.
        """
        if self._template is None:
            raise TextError("this bundle has no chat template; use --raw to complete plain text")
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._marks
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TextError(f"the chat template refuses these messages ({_one_line(error)})") from None

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat."""
        return self.encode_rendered(self.render(messages))

    def has(self, token_id: int) -> bool:
        """Whether the tokenizer knows this id."""
        return 0 <= token_id < 2**32 and self._tokenizer.id_to_token(token_id) is not None

    def _word(self, token_id: int | None) -> str:
        return "" if token_id is None else (self._tokenizer.id_to_token(token_id) or "")


@dataclass(slots=True)
class Conversation:
    """The turns of a chat, and the exact tokens of each, so that the cache of a session is never read again.

    A model may spell its answer in other tokens than the tokenizer would. The next prompt therefore continues from the
    tokens that were generated wherever the template leaves the answer's text as it was.
    """

    text_io: TextIO
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    _read_text: str = ""
    _read_ids: list[int] = field(default_factory=list)
    _asked: tuple[str, list[int]] = field(default=("", []), repr=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self._read_text, self._read_ids = "", []

    def ask(self, user: str) -> list[int]:
        """Add a turn of the user; the whole context as token ids. Follow it with `answer` or `take_back`."""
        rendered = self.text_io.render([*self.messages, {"role": "user", "content": user}])
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
            self._read_text, self._read_ids = rendered + text, [*ids, *token_ids]
        else:  # a stop string or an unfinished character is in the tokens and not in the text
            self._read_text, self._read_ids = "", []

    def take_back(self) -> None:
        """The last question was not answered: forget it."""
        self.messages.pop()

    def note(self) -> bytes:
        """The conversation as JSON, in the form of core/bundle's sf_text_save."""
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


def _compile(template: str) -> jinja2.Template:
    """A template as Hugging Face transformers compiles it (utils/chat_template_utils.py)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TextError(f"the chat template is not valid Jinja ({_one_line(error)})") from None


def _refuse(message: str) -> Any:
    raise jinja2.TemplateError(message)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
