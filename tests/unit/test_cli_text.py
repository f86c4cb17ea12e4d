"""Templates are rendered as Hugging Face does, in a sandbox, and a chat continues from the very tokens it generated.

Run: python -m pytest tests/unit/test_cli_text.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle_samples import CHAT_TEMPLATE, IM_END, byte_tokenizer
from streamfuse.text_io import Conversation, TextError, TextIO


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return path


def test_text_survives_the_way_to_ids_and_back(tokenizer_file: Path) -> None:
    text_io = TextIO(tokenizer_file, None)
    assert text_io.decode(text_io.encode("na\u00efve \U0001f642")) == "na\u00efve \U0001f642"
    assert not text_io.can_chat


def test_a_template_sees_messages_and_marks(tokenizer_file: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    text_io = TextIO(tokenizer_file, template, bos_token_id=256, eos_token_ids=[IM_END])
    assert text_io.render([{"role": "user", "content": " hi "}]) == "<|im_start|>user:hi<|im_end|>"


def test_templates_use_the_extras_of_transformers(tokenizer_file: Path) -> None:
    template = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    rendered = TextIO(tokenizer_file, template).render([{"role": "user", "content": "<\u00e9>"}] * 2)
    assert rendered == '{"role": "user", "content": "<\u00e9>"}'


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "not valid Jinja"),
        ("{{ raise_exception('only user turns') }}", "only user turns"),
        ("{{ messages[0].missing.deeper }}", "refuses"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
    ],
)
def test_bad_and_hostile_templates_are_one_clear_error(template: str, words: str, tokenizer_file: Path) -> None:
    with pytest.raises(TextError, match=words) as caught:
        TextIO(tokenizer_file, template).render([{"role": "user", "content": "hi"}])
    assert "\n" not in str(caught.value)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        TextIO(tmp_path / "tokenizer.json", None)


def test_the_next_turn_continues_from_the_generated_tokens(tokenizer_file: Path) -> None:
    """An answer may be spelt in other tokens than the tokenizer's; here one token stands twice and says nothing."""
    text_io = TextIO(tokenizer_file, CHAT_TEMPLATE)
    conversation = Conversation(text_io, "be brief")
    first = conversation.ask("one")
    generated = [*text_io.encode("yes"), 256]  # 256 is special: it is not in the text
    conversation.answer("yes", generated)
    second = conversation.ask("two")
    assert second[: len(first) + len(generated)] == [*first, *generated]
    assert text_io.decode(second[len(first) + len(generated) :]) == "\nuser\ntwo\nassistant\n"


def test_tokens_beyond_the_text_do_not_enter_the_history(tokenizer_file: Path) -> None:
    text_io = TextIO(tokenizer_file, CHAT_TEMPLATE)
    conversation = Conversation(text_io)
    conversation.ask("one")
    conversation.answer("yes", text_io.encode("yes STOP"))
    assert "STOP" not in text_io.decode(conversation.ask("two"))


def test_a_template_that_changes_the_answer_is_read_anew(tokenizer_file: Path) -> None:
    text_io = TextIO(tokenizer_file, "{% for m in messages %}{{ m.content | trim }};{% endfor %}")
    conversation = Conversation(text_io)
    conversation.ask("one")
    conversation.answer(" yes ", text_io.encode(" yes "))
    assert text_io.decode(conversation.ask("two")) == "one;yes;two;"


def test_an_unanswered_question_can_be_taken_back(tokenizer_file: Path) -> None:
    conversation = Conversation(TextIO(tokenizer_file, CHAT_TEMPLATE), "be brief")
    conversation.ask("one")
    conversation.take_back()
    assert [message["role"] for message in conversation.messages] == ["system"]
