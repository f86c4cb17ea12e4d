"""Text and token ids: the tokenizer and chat template of a bundle or checkpoint, streams of text, conversations.

The work is done by text/ (Rust), as on phones. The loop itself speaks ids only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from streamfuse.native.library import path_argument
from streamfuse.options import OptionError
from streamfuse.runtime.text_library import (
    END,
    BundleHandle,
    GrammarError,
    TextError,
    TextHandle,
    ids_argument,
    text_library,
)

if TYPE_CHECKING:
    from streamfuse.runtime.grammar import Grammar

__all__ = [
    "CONTENT_END",
    "CUT",
    "ROLES",
    "ContextPolicy",
    "Conversation",
    "GrammarError",
    "Message",
    "TextError",
    "TextStream",
    "Tokenizer",
    "checked",
    "utf8",
]

# {"role": "system" | "user" | "assistant" | "tool", "content": text}, with any other fields that the template reads.
# The content may be None beside `tool_calls`.
Message = dict[str, Any]

# Splits a control token in rendered text, so that it is encoded as text. This noncharacter of Unicode occurs in no
# text. The text after it is encoded as a continuation.
CUT = "\ufdd0"

# What happens to a question that does not fit into the context: an error, or the oldest turns are dropped.
ContextPolicy = Literal["fail", "drop_oldest"]


class Tokenizer:
    """Encodes prompts and chats, decodes answers. Any threads may use it.

    In a chat only the template writes control tokens. What a message says is text, also where it spells one of them:
    `<|im_end|>` in a question is ten characters for the model to read, and not the end of the question. A raw prompt
    (`encode`) is read as it stands, control tokens and all.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        chat_template: str | None = None,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        """Of a tokenizer.json. What is for training in it is dropped: lengths (truncation, padding), random merges.

        `vocab_size` is the model's number of logits, for constraints; by default the tokenizer's number of tokens.

        Raises:
            TextError: the file is not a tokenizer, or the template is not valid Jinja.
        """
        model: dict[str, Any] = {"bos_token_id": bos_token_id, "eos_token_ids": list(eos_token_ids)}
        if chat_template is not None:
            model["chat_template"] = utf8(chat_template, "chat template")
        if vocab_size is not None:
            model["vocab_size"] = vocab_size
        facts, path = _json(model), path_argument(file)
        self._handle = TextHandle(lambda place: text_library().sf_text_open(path, *facts, place))

    @classmethod
    def of_bundle(cls, bundle: BundleHandle) -> Tokenizer:
        """That of an open bundle, with its chat template."""
        made = cls.__new__(cls)
        made._handle = TextHandle(lambda place: text_library().sf_new_text(bundle.pointer, place))
        return made

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template."""
        return self._handle.can_chat

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the marks that the tokenizer itself puts around one."""
        return self._ids(utf8(text, "prompt"), marks=True)

    def encode_rendered(self, text: str, *, continues: bool = False) -> list[int]:
        """Token ids of text that a template wrote: the template has put every mark there already.

        `continues`: other text precedes it, so it gets no space that some tokenizers write in front of a text.
        """
        utf8(text, "text")
        return self._ids(CUT + text if continues else text, marks=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat, up to where its answer begins.

        `tools` are functions that the model may call, in OpenAI's form, and `variables` further variables of the
        template, such as {"enable_thinking": False} or `documents`, as for transformers' apply_chat_template.

        Raises:
            TextError: there is no template, or it refuses these messages.
        """
        return self._set(tools, variables).ids("sf_text_encode_chat", *_json(checked(messages)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self._handle.text("sf_text_decode", *ids_argument(token_ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, possibly part of a character; for a special token, its name. Empty for unknown ids."""
        return self._handle.token_bytes(token)

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text in a message: without what the chat template adds, and with the characters of
        a control token as text. Without a template, that of a raw prompt without the tokens around it."""
        data = utf8(text, "text").encode()
        return self._handle.numbers(1, "sf_text_count", data, len(data))[0]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as the model was trained to read it, up to where its answer begins. TextError as `encode_chat`."""
        return self._set(tools, variables).text("sf_text_render", *_json(checked(messages)))

    def render_cut(self, messages: Sequence[Mapping[str, Any]], *, variables: Mapping[str, Any] | None = None) -> str:
        """The same for `encode_rendered`: control tokens that messages spell are cut in two by `CUT`."""
        return self._set(None, variables).text("sf_text_render_cut", *_json(checked(messages)))

    def encode_unfinished(
        self, messages: Sequence[Mapping[str, Any]], *, variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a chat up to the end of its last message, which the model is to continue.

        Raises:
            TextError: as `encode_chat`; or the template leaves the content of this message out.
        """
        *before, last = checked(messages)
        marked = {**last, "content": last["content"] + CONTENT_END}
        text, mark, _ = self.render_cut([*before, marked], variables=variables).rpartition(CONTENT_END)
        if not mark:
            raise TextError("the chat template leaves out the last message, so it cannot be continued")
        return self.encode_rendered(text)

    def check_chat(self) -> None:
        """TextError where the template refuses a plain chat, a question and a second one after an answer, or leaves the
        question out."""
        question, answer = {"role": "user", "content": "Why is it so?"}, {"role": "assistant", "content": "Because."}
        for messages in ([question], [question, answer, question]) if self.can_chat else ():
            if question["content"] not in self.render(messages):
                raise TextError("the chat template leaves out the question, so the model would not read it")

    def constraint(
        self,
        schema: Mapping[str, Any] | bool | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Grammar:
        """A constraint for one text: a JSON schema (a value or its JSON text), a regular expression that the whole text
        matches, or a Lark grammar. docs/structured.md says what is supported.

        Raises:
            GrammarError: the grammar is invalid, not supported or too large.
            ValueError: not exactly one of the three is given.
        """
        from streamfuse.runtime.grammar import Grammar, source_of  # needs numpy, which text alone does not

        # of a clone: compiling may take seconds, and this handle serves other threads meanwhile
        return Grammar(self._handle.clone(), *source_of(schema, regex, grammar))

    def stream(self, stop_strings: Sequence[str] = (), before: Sequence[int] = ()) -> TextStream:
        """A text that is written token by token. `before` are the tokens of a prompt that it continues."""
        return TextStream(self._handle.clone(), stop_strings, before)

    def _set(self, tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any] | None) -> TextHandle:
        """A handle with these; they stay on it."""
        handle = self._handle if tools is None and variables is None else self._handle.clone()
        if tools is not None:
            handle.call("sf_text_set_tools", *_json(list(tools)))
        if variables is not None:
            handle.call("sf_text_set_variables", *_json(dict(variables)))
        return handle

    def _ids(self, text: str, marks: bool) -> list[int]:
        data = text.encode()
        return self._handle.ids("sf_text_encode", data, len(data), marks)


class TextStream:
    """The text to show: never a part of a character or the beginning of a stop string, cut before the first.

    A stop string may contain whole special tokens, which are not shown. Bytes of a character that never completes are
    dropped. Text comes in parts, the channel of each and the text: "answer", or "thinking" or "tool_call" for what an
    answer of a conversation has between the tags of the model's family, which are in no part. The beginning of a
    possible tag is held back. A token of thoughts that completes no text, or only one of their tags, has an
    empty part of the channel "thinking".
    """

    def __init__(
        self,
        handle: TextHandle,
        stop_strings: Sequence[str],
        before: Sequence[int],
        restriction: str | None = None,
    ) -> None:
        self._handle = handle
        self.stopped = False
        stops = _json([utf8(stop, "stop string") for stop in stop_strings])
        data = None if restriction is None else utf8(restriction, "restriction").encode()
        handle.call("sf_text_begin", *stops, *ids_argument(before), data, len(data or b""))

    def push(self, token: int) -> list[tuple[str, str]]:
        """Text that may be shown now. Afterwards `stopped` says whether a stop string is complete."""
        parts, code = self._handle.parts("sf_text_push", token)
        self.stopped = code == END
        return parts

    def end(self, stopped: bool = False) -> list[tuple[str, str]]:
        """Text that was held back. In a conversation the answer is complete; one that was `stopped` before its first
        token is forgotten, and its question too."""
        return self._handle.parts("sf_text_end", stopped)[0]

    def token_text(self, token: int) -> str:
        """The text of a token, with U+FFFD for part of a character; for a special token, its name."""
        return self._handle.token_bytes(token).decode(errors="replace")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls of an answer that has ended: {"id", "name", "arguments"}."""
        return self._handle.items("sf_text_tool_calls")


class Conversation:
    """The turns of a chat, and the exact tokens of each, so that the cache of a session is never read again.

    A model may spell its answer in other tokens than the tokenizer would. The next prompt therefore continues from the
    tokens that were generated wherever the template leaves the answer's text as it was. It begins with the system
    message and the turns of `history`; TextError where one of those is no message. `tools` and `variables` are as for
    `Tokenizer.encode_chat`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        system: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        words = None if system is None else utf8(system, "system message").encode()
        turns = checked(history)
        handle = tokenizer._set(tools, variables)
        self._handle = handle.clone() if handle is tokenizer._handle else handle
        self._handle.call("sf_text_set_first", words, len(words or b""), *_json(turns))

    @property
    def messages(self) -> list[Message]:
        """The turns so far."""
        return self._handle.items("sf_text_messages")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls of the last answer: {"id", "name", "arguments"}."""
        return self._handle.items("sf_text_tool_calls")

    def reset(self) -> None:
        """Forget all turns but those that it began with."""
        self._handle.call("sf_text_reset")

    def set(self, tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> None:
        """Tools and variables of the template from now on, as for `Tokenizer.encode_chat`."""
        self._handle.call("sf_text_set_tools", *_json(list(tools)))
        self._handle.call("sf_text_set_variables", *_json(dict(variables)))

    def set_limit(self, capacity: int, max_new_tokens: int, policy: ContextPolicy = "fail") -> None:
        """What happens to a question that does not fit into a context of `capacity` tokens: PromptError (fail), or the
        oldest turns are dropped until `max_new_tokens` are left for the answer (drop_oldest), as sf_text_set_limit
        (text/streamfuse_bundle.h) says. Before the first call no question is refused. OptionError for another policy.
        """
        policies = get_args(ContextPolicy)
        if policy not in policies:
            raise OptionError(f"--context-policy must be one of {', '.join(policies)}, not {policy!r:.40}")
        most = min(max_new_tokens, capacity)  # larger ones mean the same
        self._handle.call("sf_text_set_limit", capacity, most, policies.index(policy))

    @property
    def dropped(self) -> tuple[int, int]:
        """Turns that were dropped for the question that is asked, and by how many tokens that shortened the context."""
        turns, tokens = self._handle.numbers(2, "sf_text_dropped")
        return turns, tokens

    def ask(self, user: str) -> list[int]:
        """Add a turn of the user; the whole context as token ids. Follow it with `stream`, `answer` or `take_back`.

        Raises:
            PromptError: it does not fit into the context (`set_limit`); the conversation is as before.
        """
        data = utf8(user, "user message").encode()
        return self._handle.ids("sf_text_ask", data, len(data))

    def ask_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Add messages of any roles, the last of which is answered. Then as `ask`."""
        return self._handle.ids("sf_text_ask_messages", *_json(list(messages)))

    def ask_results(self, results: Sequence[Mapping[str, Any]]) -> list[int]:
        """Add the results of the last answer's tool calls: {"content"}, with the call's "tool_call_id", or the
        function's "name", or in the order of the calls. Then as `ask`."""
        return self._handle.ids("sf_text_ask_results", *_json(list(results)))

    def call_constraint(self, choice: str = "auto") -> Grammar:
        """A constraint for the answer that is asked for: each call fits its function's schema (auto), there is none
        (none), or the answer is one call, of any function (required) or of the one that is named.

        Raises:
            GrammarError: a schema is not supported.
            TextError: there are no tools, or none of this name.
        """
        from streamfuse.runtime.grammar import Grammar

        return Grammar(self._handle, "calls", choice)

    def answer_constraint(
        self,
        *,
        schema: Mapping[str, Any] | bool | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> Grammar:
        """The constraint of `Tokenizer.constraint`, or one tool call instead.

        Raises:
            GrammarError: as there; or the parameters of a function with `"strict": true` are not supported.
        """
        from streamfuse.runtime.grammar import Grammar, source_of

        return Grammar(self._handle, *source_of(schema, regex, grammar), or_call=True)

    def stream(self, stop_strings: Sequence[str] = (), restriction: str | None = None) -> TextStream:
        """The answer that is asked for; its `end` adds it to the conversation, and no call of `answer` is needed.
        `restriction` is what restricts it: the text of a regex or grammar, or "" for a schema. Such an answer has no
        calls, whatever it looks like, and thoughts only if the restriction spells the tag that ends them."""
        return TextStream(self._handle, stop_strings, (), restriction)

    def answer(self, token_ids: Sequence[int]) -> None:
        """Add the model's turn, whole or cut short, where all its tokens are known."""
        stream = self.stream()
        for token in token_ids:
            stream.push(token)
        stream.end()

    def take_back(self) -> None:
        """The last question was not answered: forget it. Nothing happens where none is asked."""
        self._handle.call("sf_text_take_back")

    def note(self) -> bytes:
        """The conversation as JSON, in the form of sf_text_save (text/streamfuse_bundle.h)."""
        return self._handle.data("sf_text_save")[0]

    def take_note(self, note: bytes) -> None:
        """The conversation that `note` gave. TextError for anything else; then nothing has changed."""
        self._handle.call("sf_text_restore", note, len(note))


CONTENT_END = "\ufdd1"  # marks the end of a message's content in a rendered chat: a noncharacter, which no text has
_FORM = '{"role": text, "content": text}'  # of a message

# The roles of OpenAI's API, and those that chat templates have for them.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def checked(messages: object) -> list[Message]:
    """The same messages, copied. TextError names the first that is none."""
    if isinstance(messages, (str, bytes, bytearray, Mapping)) or not isinstance(messages, Iterable):
        raise TextError(f"the messages must be a list of {_FORM}, not {messages!r:.40}")
    return [_checked(number, message) for number, message in enumerate(messages, 1)]


def _checked(number: int, message: object) -> Message:
    if not isinstance(message, Mapping) or "role" not in message or not message.keys() & {"content", "tool_calls"}:
        raise TextError(f"message {number} must be {_FORM}, not {message!r:.40}")
    role, content = message["role"], message.get("content")
    if not isinstance(role, str):
        raise TextError(f"message {number}: its role must be text, not {role!r:.40}")
    if isinstance(content, list):
        content = _joined(number, content)
        message = {**message, "content": content}
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise TextError(f"message {number}: its content must be text, not {content!r:.40}")
    for name, value in message.items():
        if isinstance(value, str):
            utf8(value, name if name == "role" else f"{role} message")
    return dict(message)


def _joined(number: int, parts: list[Any]) -> str:
    """The text of parts {"type": "text", "text": text}, a line each."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise TextError(f"message {number}: the model reads text only, and a part of its content is {part!r:.60}")
    return "\n".join(part["text"] for part in parts)


def utf8(text: str, what: str) -> str:
    """`text`, if it is one and can be written as UTF-8; Python keeps bytes that are not as lone surrogates."""
    if not isinstance(text, str):
        raise TextError(f"the {what} must be text, not {text!r:.40}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"the {what} is not UTF-8 text (character {error.start + 1}); convert it") from None
    return text


def _json(value: Any) -> tuple[bytes, int]:
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise TextError(f"it cannot be written as JSON ({error})") from None
    return data, len(data)
