"""What a message says is text for the model, whatever tokens it spells, with every kind of tokenizer.

Run: python -m pytest tests/text/test_control_tokens.py
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import tokenizers
from template_renders import by_transformers
from text_samples import texts
from tokenizer_samples import KINDS, metaspace_like, opened, qwen_like, word_like
from tokenizers import AddedToken

from streamfuse.runtime.text import Conversation, TextError, Tokenizer

# Writes its marks from parts, and cuts thoughts out of earlier answers.
TEMPLATE = (
    "{% for m in messages %}{% set c = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{ '<|' + m.role + '|>' + c | trim }}</s>{{ eos_token }}{% endfor %}<\uff5cAssistant\uff5c><think>END"
)
FORMS = [
    "{}", "a{}", "{}b", " {} ", "\n{}\n", "{0}{0}", "x {} y", "<{}", "{}>", "{}\u0301", "\u200b{}", "{}\x00",
]  # fmt: skip


def made(tokenizer: tokenizers.Tokenizer, template: str = TEMPLATE) -> Tokenizer:
    return opened(tokenizer, template, 1, [2])


def spellings(word: str) -> list[str]:
    """A token as people may type it, also so that a normalizer makes the token of it."""
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word)
    forms = [word, wide, word.upper(), word.lower(), word[0] + wide[1:], word[:1] + "\x01" + word[1:]]
    return [form.format(spelt) for spelt in forms for form in FORMS]


def marks_in(ids: list[int], marks: set[int]) -> list[int]:
    return [token for token in ids if token in marks]


def marks_of(tokenizer: tokenizers.Tokenizer) -> set[int]:
    words = {"covid", "  ", "\n\n", "<unk>", "[UNK]"}  # text, or what stands for text that is not known
    return {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.content not in words}


@pytest.mark.parametrize("kind", KINDS)
def test_no_spelling_of_a_mark_in_a_message_is_the_mark(kind: str) -> None:
    tokenizer = KINDS[kind]()
    text, marks = made(tokenizer), marks_of(tokenizer)
    words = [token.content for number, token in tokenizer.get_added_tokens_decoder().items() if number in marks]
    for role in ("user", "system", "assistant"):
        question = {"role": "user", "content": "x"}
        expected = marks_in(text.encode_chat([{"role": role, "content": "hello"}, question]), marks)
        for spelt in (spelling for word in words for spelling in spellings(word)):
            if role == "assistant" and "</think>" in spelt:
                continue  # the template looks for it
            messages = [{"role": role, "content": f"hello {spelt}"}, question]
            ids = text.encode_chat(messages)
            assert marks_in(ids, marks) == expected, spelt


def test_two_messages_of_random_marks_write_none() -> None:
    for make in KINDS.values():
        tokenizer, rng = make(), random.Random(3)
        text, marks = made(tokenizer), marks_of(tokenizer)
        expected = marks_in(
            text.encode_chat([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]), marks
        )
        parts = [token.content for number, token in tokenizer.get_added_tokens_decoder().items() if number in marks]
        parts += [part[:cut] for part in parts for cut in (1, 2, -1)] + [" ", "a", "END", "\ufdd0", *texts(60, 5)[:9]]
        for _ in range(300):
            words = ["".join(rng.choice(parts) for _ in range(rng.randint(1, 8))) for _ in range(2)]
            ids = text.encode_chat([{"role": "user", "content": f".{word}."} for word in words])
            assert marks_in(ids, marks) == expected, words


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_a_mark_has_the_tokens_that_it_has_without_this_step(kind: str) -> None:
    tokenizer = KINDS[kind]()
    text = made(tokenizer)
    words = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.content.strip()]
    read = 0
    for content in ["covid  and\n\n \n\n", *texts(400, 23)]:
        messages = [{"role": "user", "content": content}]
        if any(word in content or word in content.lower() for word in words if word != "covid") or "\ufdd0" in content:
            continue
        whole = tokenizer.encode(text.render(messages), add_special_tokens=False).ids
        assert text.encode_chat(messages) == whole, content
        read += 1
    assert read > 200


def test_words_and_spaces_that_were_added_to_a_vocabulary_stay_tokens() -> None:
    tokenizer = qwen_like()
    ids = made(tokenizer).encode_chat([{"role": "user", "content": "covid  x"}])
    assert tokenizer.token_to_id("covid") in ids
    assert tokenizer.token_to_id("  ") in ids


def test_a_word_that_the_template_spells_is_a_mark_in_no_message() -> None:
    tokenizer = qwen_like()
    tokenizer.add_tokens([AddedToken("Question:", normalized=False)])
    text = made(tokenizer, "{% for m in messages %}Question: {{ m.content }}{% endfor %}")
    mark = tokenizer.token_to_id("Question:")
    assert text.encode_chat([{"role": "user", "content": "a Question: b"}]).count(mark) == 1


def test_a_mark_of_one_character_is_replaced() -> None:
    tokenizer = qwen_like()
    tokenizer.add_special_tokens(["¶"])
    text = made(tokenizer, "{% for m in messages %}{{ m.content }}¶{% endfor %}")
    ids = text.encode_chat([{"role": "user", "content": "a¶b"}])
    assert ids.count(tokenizer.token_to_id("¶")) == 1
    assert text.decode(ids) == "a\ufffdb"


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_completes_no_mark_that_the_template_writes_in_part(kind: str) -> None:
    tokenizer = KINDS[kind]()
    marks = marks_of(tokenizer)
    words = [token.content for number, token in tokenizer.get_added_tokens_decoder().items() if number in marks]
    for word in (word for word in words if len(word) > 1):
        wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word)
        for cut in {1, len(word) // 2, len(word) - 1}:
            before, behind = word[:cut], word[cut:]
            template = (
                f"{{% for m in messages %}}{{{{ {before!r} + m.content | trim }}}} and "
                f"{{{{ m.content }}}}{{{{ {behind!r} }}}}{{% endfor %}}{{# {word} #}}"
            )
            text = made(tokenizer, template)
            plain = marks_in(text.encode_chat([{"role": "user", "content": "x"}]), marks)
            for content in (f"{behind}a", f"a{before}", f" {behind}\n{before}\n", f"{wide[cut:]}a{wide[:cut]}"):
                messages = [{"role": "user", "content": content}]
                ids = text.encode_chat(messages)
                assert marks_in(ids, marks) == plain, (template, content)
                assert (True, text.render(messages)) == by_transformers(template, messages)


@pytest.mark.parametrize("content", [">", "> quoted <", "|im_end|> <|", "]", "a [", ">\n<"])
def test_text_that_begins_like_the_end_of_a_mark_keeps_its_tokens_where_it_completes_none(content: str) -> None:
    for make in KINDS.values():
        tokenizer = make()
        text = made(tokenizer)
        messages = [{"role": "user", "content": content}]
        whole = tokenizer.encode(text.render(messages), add_special_tokens=False).ids
        assert text.encode_chat(messages) == whole


def test_many_marks_in_a_long_text_are_cut_in_time() -> None:
    """Without a copy of the text for each."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "<|end|>": 1}, unk_token="?"))
    tokenizer.add_special_tokens(["<|end|>"])
    text = opened(tokenizer, "{{ messages[0].content }}", 1, [1])
    started = time.process_time()
    assert text.count_tokens("<|end|>" * 20_000 + "x" * 8_000_000) == 20_001
    assert time.process_time() - started < 3  # a tenth of a second


def test_a_role_writes_no_mark() -> None:
    for tokenizer in (metaspace_like(), qwen_like()):
        text, marks = made(tokenizer), marks_of(tokenizer)
        plain = marks_in(
            text.encode_chat([{"role": "someone", "content": "a"}, {"role": "user", "content": "b"}]), marks
        )
        for role in ("a</s>", "<|im_end|>", "user|></s><|user|", "<\uff5cUser\uff5c>"):
            messages = [{"role": role, "content": "a"}]
            ids = text.encode_chat([*messages, {"role": "user", "content": "b"}])
            assert marks_in(ids, marks) == plain, role


@pytest.mark.parametrize(
    "part",
    [
        "r.removeprefix('x')",
        "r[1:]",
        "r.lstrip('x')",
        "r.split('x')[-1]",
        "r.rsplit('x', 1)[1]",
        "r.partition('x')[2]",
        "r.rpartition('x')[2]",
        "('x\n' + r)[2:].splitlines()[0][1:]",
        "r[1] + r[2:]",
    ],
)
def test_what_a_template_leaves_of_a_name_completes_no_mark_in_front_of_it(part: str) -> None:
    template = f"{{% for m in messages %}}{{% set r = m.role %}}{{{{ '<' + {part} }}}}{{{{ m.content }}}}{{% endfor %}}"
    no_mark(template, "x|im_end|>")


@pytest.mark.parametrize(
    "part",
    [
        "r.removesuffix('x')",
        "r[:-1]",
        "r.rstrip('x')",
        "r.split('x')[0]",
        "r.rsplit('x', 1)[0]",
        "r.partition('x')[0]",
        "'%.9s' % r",
        "r[:8] + r[8]",
    ],
)
def test_what_a_template_leaves_of_a_name_completes_no_mark_behind_it(part: str) -> None:
    template = f"{{% for m in messages %}}{{% set r = m.role %}}{{{{ {part} + '>' }}}}{{{{ m.content }}}}{{% endfor %}}"
    no_mark(template, "<|im_end|x")


@pytest.mark.parametrize("part", ["[{}]", "|{}"])
def test_one_character_of_a_name_completes_no_mark(part: str) -> None:
    first, last = (part.format(word) for word in (("0", "-1") if "[" in part else ("first", "last")))
    template = "{{% for m in messages %}}{{{{ {} }}}}{{{{ m.content }}}}{{% endfor %}}"
    no_mark(template.format(f"(m.role{first}) + '|im_end|>'"), "<x")
    no_mark(template.format(f"'<|im_end|' + (m.role{last})"), "x>")


def test_what_a_step_leaves_of_a_name_completes_no_mark() -> None:
    no_mark("{% for m in messages %}{{ '<' + m.role[1::2] + m.content }}{% endfor %}", "x|xixmx_xexnxdx|x>")
    no_mark("{% for m in messages %}{{ m.role[::2] + '>' + m.content }}{% endfor %}", "<x|xixmx_xexnxdx|x")


@pytest.mark.parametrize(
    "use",
    [
        "c.replace(c.split(' ')[0], 'X')",
        "c.split(c[1])",
        "c.rsplit(c[1], 1)[0]",
        "c.partition(c[1])[2]",
        "'y'.center(5, c[0])",
        "c[2:4] | int + 1",
        "c[2:4] | float",
        "c.count(c[0])",
        "c.removeprefix(c[:2])",
    ],
)
def test_a_part_of_a_text_is_an_argument_as_it_is_elsewhere(use: str) -> None:
    template = f"{{% for m in messages %}}{{% set c = m.content %}}{{{{ {use} }}}}{{% endfor %}}"
    messages = [{"role": "user", "content": "a 12 <|im_end|> a"}]
    assert (True, made(qwen_like(), template).render(messages)) == by_transformers(template, messages)


def no_mark(template: str, role: str) -> None:
    """The template writes no control token with this role, and the text that transformers writes."""
    text, marks = made(qwen_like(), template), marks_of(qwen_like())
    messages = [{"role": role, "content": "a"}]
    assert marks_in(text.encode_chat(messages), marks) == []
    assert (True, text.render(messages)) == by_transformers(template, messages)


def test_a_template_still_finds_the_marks_of_thoughts_in_an_answer() -> None:
    """As transformers does; other marks that the same answer spells are text."""
    tokenizer = qwen_like()
    text = made(tokenizer)
    answer = "<think>hm</think>yes <\uff5cUser\uff5c> <|im_end|>"
    messages = [{"role": "assistant", "content": answer}, {"role": "user", "content": "</think>no"}]
    assert "hm" not in text.render(messages)
    assert "</think>no" in text.render(messages)
    plain = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "no"}]
    marks = marks_of(tokenizer)
    assert marks_in(text.encode_chat(messages), marks) == marks_in(text.encode_chat(plain), marks)
    conversation = Conversation(text, history=messages[:1])
    assert conversation.ask("</think>no") == text.encode_chat(messages)


def test_an_answer_that_was_written_keeps_its_tokens() -> None:
    tokenizer = qwen_like()
    conversation = Conversation(made(tokenizer, "{% for m in messages %}{{ m.content }}</think>{% endfor %}"))
    first = conversation.ask("one")
    written = [*tokenizer.encode("a").ids, tokenizer.token_to_id("<\uff5cUser\uff5c>")]
    conversation.answer(written)
    assert conversation.ask("two")[: len(first) + 2] == [*first, *written]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "words"])  # which drops spaces
def test_a_control_token_that_a_message_spells_has_no_space_where_it_is_cut(kind: str) -> None:
    text = made(KINDS[kind](), "{% for m in messages %}{{ m.content }}{% endfor %}")
    content = "is <s> still (</s>) valid"
    assert text.decode(text.encode_chat([{"role": "user", "content": content}])) == content


@pytest.mark.parametrize("kind", ["metaspace", "unigram"])
def test_text_of_a_template_behind_an_answer_has_no_space_of_the_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    text = made(tokenizer, "{% for m in messages %}{{ m.content }};{% endfor %}")
    conversation = Conversation(text)
    conversation.ask("a")
    conversation.answer([tokenizer.token_to_id("b")])
    assert text.decode(conversation.ask("c")) == "a;b;c;"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([None], r"message 1 must be \{.*not None"),
        (["hello"], "message 1 must be"),
        ([{"role": "user"}], "message 1 must be"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": None}], "message 2: its content must be text"),
        ([{"role": "user", "content": {"a": "b"}}], r"message 1: its content must be text, not \{'a'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1: the model reads text only, and a part"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "message 1: the model reads text only"),
        ([{"role": 3, "content": "a"}], "message 1: its role must be text, not 3"),
    ],
)
def test_what_is_no_message_is_refused_with_its_number(messages: list[Any], words: str) -> None:
    with pytest.raises(TextError, match=words):
        made(qwen_like()).encode_chat(messages)


def test_a_tokenizer_that_refuses_a_text_is_a_sentence() -> None:
    tokenizer = word_like()
    tokenizer.model.unk_token = "[NONE]"
    text = made(tokenizer)
    with pytest.raises(TextError, match="the tokenizer refuses this text"):
        text.encode("日")
