"""Data readers: every format in our own and in the public originals' names, and what is wrong named by line and field.

Run: python -m pytest tests/train/test_train_readers.py
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import CHAT_TEMPLATE, IM_END, byte_tokenizer
from tokenizer_samples import KINDS, llama_like, metaspace_like, opened
from tokenizers import AddedToken

from streamfuse.runtime.text import Tokenizer
from streamfuse.train.formats import DataError, Example, Sample, reader
from streamfuse.train.readers import encode_prompt, merged, read_samples, spread, to_examples
from streamfuse.train.templates import Template

SCHEMA = "CREATE TABLE t (a VARCHAR)"


def write(path: Path, *rows: object, tail: str = "") -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows) + tail)
    return path


def read(tmp_path: Path, *rows: object, **options: Any) -> list[Sample]:
    return read_samples(write(tmp_path / "d.jsonl", *rows), **options)


@pytest.fixture
def text(tmp_path: Path) -> Tokenizer:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json", CHAT_TEMPLATE, None, [IM_END])


@pytest.mark.parametrize(
    ("row", "turns", "references", "source"),
    [
        ({"prompt": "name[A], food[B]", "completion": " It is B. "}, ["name[A], food[B]"], ["It is B."], "e2e"),
        ({"prompt": "name[A]", "references": ["x", "y"]}, ["name[A]"], ["x", "y"], "e2e"),
        ({"meaning_representation": "name[A]", "human_reference": "x"}, ["name[A]"], ["x"], "e2e"),
        ({"mr": "name[A]", "ref": "x"}, ["name[A]"], ["x"], "e2e"),
        ({"meaning_representation": "name[A]", "target": "x", "references": []}, ["name[A]"], ["x"], "e2e"),
        ({"context": SCHEMA, "question": "q", "answer": "SELECT a"}, [SCHEMA + "\nq"], ["SELECT a"], "sql"),
        ({"id": "1", "dialogue": "A: hi", "summary": "s", "topic": "t"}, ["A: hi"], ["s"], "dialogsum"),
        ({"dialogue": "A: hi", "references": ["s", "t"]}, ["A: hi"], ["s", "t"], "dialogsum"),
        ({"dialogue": "A: hi", "summary2": "t", "summary1": "s"}, ["A: hi"], ["s", "t"], "dialogsum"),
        ({"prompt": "Why?", "source": "gsm8k"}, ["Why?"], [], "gsm8k"),
        ({"prompt": "Why?", "completion": "So."}, ["Why?"], ["So."], "chat"),
        ({"question_id": 1, "category": "writing", "turns": ["a", "b"]}, ["a", "b"], [], "writing"),
        ({"messages": [{"role": "user", "content": "Why?"}]}, ["Why?"], [], "messages"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            ["a"],
            ["b"],
            "messages",
        ),
        ({"prompt_id": 1, "category": "math", "prompt": ["a", "b"]}, ["a", "b"], [], "math"),
    ],
)
def test_a_format_is_told_by_its_fields(
    row: dict[str, Any], turns: list[str], references: list[str], source: str, tmp_path: Path
) -> None:
    (sample,) = read(tmp_path, row)
    assert (list(sample.turns), list(sample.references), sample.source) == (turns, references, source)
    assert sample.schema == (SCHEMA if source == "sql" else "")
    assert sample.number == row.get("question_id", row.get("prompt_id"))


def test_the_categories_of_mt_bench_count_as_one(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["a"]},
        {"question_id": 130, "category": "coding", "turns": ["b"]},
        {"question_id": 200, "category": "qa", "turns": ["c"]},
        {"category": "coding", "turns": ["d"]},  # a user's own
    ]
    assert [sample.kind for sample in read(tmp_path, *rows)] == ["mt-bench", "mt-bench", "qa", "coding"]


def test_what_was_said_before_the_last_turn_is_read_with_it(tmp_path: Path, text: Tokenizer) -> None:
    chat = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    ]  # fmt: skip
    first, other = read(tmp_path, {"messages": chat}, {"messages": chat[3:]})
    assert encode_prompt(first, text) == text.encode_chat(chat)  # type: ignore[arg-type]
    assert len(merged([first, other])) == 2


TOOLS_TEMPLATE = (
    "{# <tool_call> #}"
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}"
    "{% if m.name %} {{ m.name }} {{ m.tool_call_id }}{% endif %}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments.zone }}){% endfor %}{% endfor %}<assistant>"
)
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
CALLING = [
    {"role": "user", "content": "What time is it?", "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "9:00", "tool_call_id": "c1"},
    {"role": "assistant", "content": "Nine."},
    {"role": "user", "content": "And now?"},
]


def test_tools_and_calls_of_a_chat_reach_the_template(tmp_path: Path) -> None:
    text = opened(metaspace_like(), TOOLS_TEMPLATE)
    asked, plain = read(tmp_path, {"messages": CALLING, "tools": [CLOCK]}, {"messages": CALLING, "tools": None})
    called: Any = {**CALL, "function": {"name": "clock", "arguments": {"zone": "UTC"}}}
    assert asked.before[1] == {"role": "assistant", "content": "", "tool_calls": [called]}
    assert asked.before[2] == {"role": "tool", "content": "9:00", "tool_call_id": "c1"}
    chat = [*asked.before, {"role": "user", "content": "And now?"}]
    assert text.render(chat, tools=[CLOCK]) == (
        "[clock]<user>What time is it?<assistant>clock(UTC)<tool clock c1>9:00<assistant>Nine.<user>And now?<assistant>"
    )
    assert encode_prompt(asked, text) == text.encode_chat(chat, tools=[CLOCK])
    assert encode_prompt(plain, text) == text.encode_chat(chat) != encode_prompt(asked, text)
    assert len(merged([asked, plain])) == 2
    assert read(tmp_path, {"messages": CALLING, "tools": json.dumps([CLOCK])}) == [asked]


def test_an_answer_of_calls_is_a_prompt_and_not_trained_on(tmp_path: Path, text: Tokenizer) -> None:
    (sample,) = read(tmp_path, {"messages": CALLING[:2], "tools": [CLOCK]})
    assert (sample.turns, sample.references) == (("What time is it?",), ())
    with pytest.raises(DataError, match=r"d\.jsonl: the answer of a row has tool_calls, .*streamfuse data distill"):
        to_examples([sample], text, IM_END, 1000, source="d.jsonl")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tools": "clock"}, "line 1: field 'tools' must be a list of {'type': 'function'"),
        ({"tools": [{"name": "clock"}]}, "line 1: field 'tools' must be a list of {'type': 'function'"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "a message of the assistant"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": ["clock"]}]},
            "each of 'tool_calls' must be",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "1"}}]}]},
            "arguments a JSON object or the text of one",
        ),
        ({"messages": [{"role": "tool", "content": "9", "tool_call_id": 1}]}, "field 'tool_call_id' of a message must"),
        (
            {"messages": [{"role": "assistant", "content": None}]},
            "line 1: message 1: its content must be text, not None",
        ),
        (
            {"messages": [{"role": "function", "content": "9"}]},
            "must be one of system, developer, user, assistant, tool",
        ),
        ({"messages": [{"role": "assistant", "content": "", "function_call": {}}]}, "write it as 'tool_calls'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "line 1: message 1: the model reads text",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "line 1: the user message is not UTF-8 text"),
        ({"tools": [{"type": "function", "function": {"name": "\ud800"}}]}, "field 'tools' cannot be written as JSON"),
        (
            {"tools": '[{"type": "function", "function": {"name": "f", "parameters": {"maximum": NaN}}}]'},
            "line 1: field 'tools' cannot be written as JSON",
        ),
    ],
)
def test_tools_and_calls_of_another_form_are_named(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, {"messages": CALLING, **row})
    assert words in str(error.value)


def test_arguments_that_json_does_not_have_are_named() -> None:
    """A column of a data set may have dates."""
    call = {"function": {"name": "clock", "arguments": {"at": datetime(2020, 1, 1)}}}
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}
    with pytest.raises(DataError, match=r"row 3: field 'tool_calls' cannot be written as JSON \(.*; write such values"):
        reader("messages")(row, "data, row 3")


def test_messages_are_read_as_requests_are(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    developer, user = {"role": "developer", "content": "s"}, {"role": "user", "content": parts}
    chat = [developer, user, {"role": "assistant", "content": parts}]
    (sample,) = read(tmp_path, {"messages": chat})
    assert sample.before == ({"role": "system", "content": "s"},)
    assert (sample.turns, sample.references) == (("a\nb",), ("a\nb",))


def test_a_system_message_is_for_chats_without_one(tmp_path: Path, text: Tokenizer) -> None:
    own, user = {"role": "system", "content": "s"}, {"role": "user", "content": "a"}
    with_own, without = read(tmp_path, {"messages": [own, user]}, {"messages": [user]})
    assert encode_prompt(with_own, text, "t") == text.encode_chat([own, user])
    assert encode_prompt(without, text, "t") == text.encode_chat([{"role": "system", "content": "t"}, user])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("Why?", r"line 1: the messages must be a list of \{\"role\": text, \"content\": text\}, not 'Why\?'"),
        ([{"role": "user"}], r"line 1: message 1 must be \{\"role\": text, \"content\": text\}"),
        ([], "line 1: field 'messages' must end with a user's message, or with one and its answer"),
        (
            [{"role": "assistant", "content": "b"}],
            "line 1: field 'messages' must end with a user's message, or with one and its answer",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            "line 1: field 'messages' must end with a user's message, or with one and its answer",
        ),
    ],
)
def test_chats_without_a_question_are_refused(messages: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read(tmp_path, {"messages": messages})


def test_a_distilled_file_brings_its_tokens_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    row = {"id": 0, "source": "gsm8k", "input_ids": [1, 2], "completion_ids": [3]}
    path = write(tmp_path / "d.jsonl", row, tail='{"id": 1, "input_ids": [1], "compl')
    assert read_samples(path) == [Sample((), (), "gsm8k", ids=Example([1, 2, 3], 2))]


def test_a_template_makes_prompt_and_answer_of_any_fields(tmp_path: Path) -> None:
    row = {"title": "T", "body": "B", "tags": ["x", "y"], "label": 3}
    (sample,) = read(tmp_path, row, template=Template("{title}: {body}", "{label}", chat_template=None))
    assert (sample.turns, sample.references) == (("T: B",), ("3",))
    form = Template("{% for tag in tags %}{{ tag }} {% endfor %}", "{{ label + 1 }}", chat_template=None)
    (sample,) = read(tmp_path, row, template=form)
    assert (sample.turns, sample.references) == (("x y",), ("4",))
    (sample,) = read(tmp_path, row, template=Template("{title}", chat_template=None))
    assert sample.references == ()


@pytest.mark.parametrize("form", ["messages", "spec-bench", "distilled"])
def test_a_template_does_not_go_with_complete_prompts(form: str, tmp_path: Path) -> None:
    template = Template("Translate: {text}", chat_template=None)
    with pytest.raises(DataError, match=f"--template does not go with --format {form}"):
        read(tmp_path, {"messages": []}, template=template, format=form)


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ("{", {}, r"d.jsonl, line 2: not valid JSON"),
        ([1], {}, "line 2: must be a JSON object, not list"),
        ({"text": "x"}, {}, "line 2: no field 'prompt'; the row has text"),
        ({"prompt": None}, {}, "line 2: field 'prompt' must be a text or a number, not NoneType"),
        ({"prompt": " "}, {}, "line 2: the template '{prompt}' renders to empty text"),
        ({"prompt": "x"}, {"format": "sql"}, "line 1: no field 'context'"),
        ({"prompt": "x"}, {"format": "spec-bench"}, "line 1: field 'prompt' must be a list of texts"),
        ({"prompt": "x"}, {"format": "distilled"}, "line 1: field 'input_ids' must be a list of token ids"),
        ({"prompt": "x", "references": "y"}, {}, "line 2: field 'references' must be a list of texts"),
        ({"prompt": "x"}, {"format": "nope"}, "format 'nope' does not exist; the formats are e2e, sql,"),
        ({"prompt": "x"}, {"template": Template("{prompt.a}")}, "line 1: the template '{prompt.a}' cannot be rendered"),
        ({"prompt": "x"}, {"template": Template("{{ a }}")}, "line 1: the template '{{ a }}' cannot be rendered"),
        ({"prompt": "x"}, {"template": Template("{prompt}", "{a}")}, "line 1: no field 'a'"),
    ],
)
def test_what_is_wrong_is_named(row: object, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, {"prompt": "fine"}, row, **options)
    assert words.replace("\\", "") in str(error.value)


def test_rows_of_no_known_format_empty_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: fields text, label match no format; docs/training.md"):
        read(tmp_path, {"text": "x", "label": 1})
    with pytest.raises(DataError, match=r"d.jsonl: has no rows"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"nope.jsonl: no such file"):
        read_samples(tmp_path / "nope.jsonl")


def test_rows_that_ask_the_same_are_one_sample_and_a_part_is_spread_over_all(tmp_path: Path) -> None:
    rows = [{"mr": f"name[{name}]", "ref": ref} for name, ref in (("A", "x"), ("B", "y"), ("A", "z"), ("A", "x"))]
    samples = merged(read(tmp_path, *rows))
    assert [(sample.turns[0], sample.references) for sample in samples] == [
        ("name[A]", ("x", "z")),
        ("name[B]", ("y",)),
    ]
    text, calls = Sample(("a",), ("b",)), Sample(("a",), calls=True)
    for both in ([text, calls], [calls, text]):
        (one,) = merged(both)
        assert (one.references, one.calls) == (("b",), True)
    many = [Sample((str(i),)) for i in range(10)]
    assert [sample.turns[0] for sample in spread(many, 4)] == ["0", "2", "5", "7"]
    assert spread(many, None) == spread(many, 99) == many
    assert len(read(tmp_path, *rows, limit=2)) == 2


def test_examples_are_the_chat_and_each_answer_with_its_end(text: Tokenizer) -> None:
    sample = Sample(("Hi",), ("hello there", "hey", "a longer answer"))
    prompt = encode_prompt(sample, text)
    assert text.decode(prompt) == "user\nHi\nassistant\n"
    examples = to_examples([sample], text, IM_END, max_tokens=len(prompt) + 12)
    assert [text.decode(one.input_ids[one.start :]) for one in examples] == ["hello there", "hey", "a longer ans"]
    assert [one.input_ids[-1] == IM_END for one in examples] == [True, True, False]
    assert all(one.input_ids[: one.start] == prompt for one in examples)
    short = Sample(("Hi",), ("ok",))  # with its end, three tokens
    assert len(to_examples([sample, short], text, IM_END, 1000)) == 3
    with pytest.raises(DataError, match="the data: every answer is shorter than 4 tokens once"):
        to_examples([short, Sample(("Hi",))], text, IM_END, 1000)


def test_answers_that_are_dropped_or_cut_are_told(text: Tokenizer) -> None:
    samples, told = [Sample(("Hi",), ("hello there", "ok", "hello again, a long one"))], list[str]()
    most = len(encode_prompt(samples[0], text)) + 12
    to_examples(samples, text, IM_END, most, tell=told.append)
    assert told == [
        f"the data: of 3 answers, 1 are cut at --max-tokens {most}, and 1 are left out because fewer than 4 tokens of "
        "them remain."
    ]
    to_examples([Sample(("Hi",), ("hello there",))], text, IM_END, most, tell=told.append)
    assert len(told) == 1


ANSWERS = ("hello world", "the answer", "w", "  two  spaces", "a\nb", "日本 a")
END = 9  # any id: the end of a turn is appended as it is


def answer_ids(text: Tokenizer, answer: str, before: tuple[dict[str, Any], ...] = (), end: int = END) -> list[int]:
    """The tokens of an answer without its end, however short it is."""
    (example,) = to_examples([Sample(("Hi",), (answer,), before=before)], text, end, 1000)
    assert example.input_ids[-1] == end
    return example.input_ids[example.start : -1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_has_the_tokens_that_it_has_behind_its_prompt(kind: str) -> None:
    """No space in front of its first word, which SentencePiece writes in front of a text."""
    tokenizer = KINDS[kind]()
    text = opened(tokenizer, CHAT_TEMPLATE)
    prompt = text.render([{"role": "user", "content": "Hi"}])

    def ids(words: str) -> list[int]:
        return list(tokenizer.encode(words, add_special_tokens=False).ids)

    for answer in ANSWERS:
        long = answer + " and more of it"
        assert answer_ids(text, long) == ids(prompt + long)[len(ids(prompt)) :]


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("' ' + m.content | trim", "▁he"),
        ("m.content | trim", "he"),
        ("' ' + m.content", "▁he"),
        ("'<t>' + m.content", "he"),
    ],
)
def test_an_answer_has_the_space_that_the_chat_template_writes_before_it(written: str, first: str) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}[I] {{ m.content }} [/I]{% else %}{{ "
    text = opened(tokenizer := metaspace_like(), template + written + " }}</s>{% endif %}{% endfor %}")
    found = answer_ids(text, "hello world")
    assert tokenizer.id_to_token(found[0]) == first
    assert text.decode(found) == "hello world"


def test_a_template_that_refuses_a_chat_with_an_answer_at_its_end_is_used_for_prompts() -> None:
    refusal = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no question') }}{% endif %}"
    text = opened(metaspace_like(), refusal + CHAT_TEMPLATE)
    assert answer_ids(text, "hello world") == answer_ids(opened(metaspace_like(), CHAT_TEMPLATE), "hello world")


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_that_an_answer_spells_are_text(kind: str) -> None:
    """They would end the turn, or begin another one."""
    tokenizer = KINDS[kind]()
    added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    end = next((tokenizer.token_to_id(word) for word in ("</s>", "<|im_end|>") if word in added), END)
    text = opened(tokenizer, CHAT_TEMPLATE, eos=[end])
    control = {word for word in added if text.encode_rendered(word) == [tokenizer.token_to_id(word)]}
    control = {word for word in control if added[word] or word in CHAT_TEMPLATE or tokenizer.token_to_id(word) == end}
    assert control - {"[UNK]"}  # which a word without a token has
    for word in control - {"[UNK]"}:
        for answer in (f"so {word} it is", f"{word}user\nand more", f"that is the end{word}"):
            found = answer_ids(text, answer, end=end)
            assert tokenizer.token_to_id(word) not in found
            spelt = text.decode(found)
            assert "".join(spelt.lower().split()) == "".join(answer.lower().split())


def test_tags_of_thoughts_and_calls_in_an_answer_are_the_tokens_that_the_model_writes() -> None:
    """Tokenizers list them beside the special tokens, as tokens that are shown."""
    tokenizer = llama_like()
    tags = [AddedToken(tag, special=False) for tag in ("<think>", "</think>", "<|im_plain|>", "<tool_call>")]
    tokenizer.add_tokens(tags)
    text = opened(tokenizer, CHAT_TEMPLATE, eos=[2])
    answer = "<think>the <|im_end|> of it</think>so it <|im_plain|> is <tool_call>in"
    found = answer_ids(text, answer)
    assert [tokenizer.id_to_token(id) for id in found if id >= tokenizer.token_to_id("<think>")] == [
        "<think>", "</think>", "<|im_plain|>", "<tool_call>",
    ]  # fmt: skip
    assert tokenizer.token_to_id("<|im_end|>") not in found
    assert text.decode(found) == answer
    named = ({"role": "system", "content": "Think between <think> and </think>."},)
    assert answer_ids(text, answer, named) == found


@pytest.mark.parametrize("answer", ["<think>\nthe end</think>so", "<think>the end</think>so", "the end</think>so"])
def test_an_answer_does_not_open_the_thoughts_that_its_prompt_has_opened(answer: str) -> None:
    tokenizer = llama_like()
    tokenizer.add_tokens([AddedToken(tag, special=False) for tag in ("<think>", "</think>")])
    text = opened(tokenizer, CHAT_TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}", eos=[2])
    assert text.decode(answer_ids(text, answer)) == "the end</think>so"


def test_one_unusual_answer_says_which_it_is() -> None:
    tokenizer = metaspace_like()
    tokenizer.add_special_tokens([AddedToken("§")])
    text = opened(tokenizer, CHAT_TEMPLATE)
    assert tokenizer.token_to_id("§") not in answer_ids(text, "it is § here")
    with pytest.raises(DataError, match=r"the data: an answer is not UTF-8 text \(character 3\)"):
        answer_ids(text, "it \ud800")


def test_an_answer_beside_marks_in_its_chat_is_found() -> None:
    text = opened(metaspace_like(), CHAT_TEMPLATE)
    before = ({"role": "user", "content": "a\ufdd1b"}, {"role": "assistant", "content": "\ufdd1"})
    assert answer_ids(text, "\ufdd1hel\ufdd0lo", before) == answer_ids(text, "hello")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "text answers need a chat template, and the model has none"),
        (
            "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
            "the chat template changes the text of a message",
        ),
        ("{{ messages | length }}", "the chat template changes the text of a message"),
    ],
)
def test_answers_that_the_chat_template_cannot_tell_from_its_own_text_are_refused(
    template: str | None, words: str
) -> None:
    with pytest.raises(DataError, match=rf"d\.jsonl: {words}"):
        to_examples([Sample(("Hi",), ("hello",))], opened(metaspace_like(), template), END, 1000, source="d.jsonl")


def test_a_model_without_an_end_token_takes_distilled_tokens_and_no_answers_in_text(text: Tokenizer) -> None:
    distilled = Sample((), ids=Example([1, 2, 3, 4, 5, 6], 2))
    assert to_examples([distilled, Sample(("Hi",))], text, None, 6) == [distilled.ids]
    with pytest.raises(DataError, match=r"d\.jsonl: text answers need an end-of-sequence token, and the model has"):
        to_examples([distilled, Sample(("Hi",), ("hello there",))], text, None, 1000, source="d.jsonl")


def test_distilled_tokens_are_taken_as_they_are_and_must_be_of_the_vocabulary(text: Tokenizer) -> None:
    sample = Sample((), ids=Example([1, 2, 3, 4, 5, 6], 2))
    assert to_examples([sample], text, IM_END, 6) == [sample.ids]
    assert encode_prompt(sample, text) == [1, 2]
    with pytest.raises(DataError, match="the data: token id 6 is not below the model's vocab_size, 6; another model"):
        to_examples([sample], text, IM_END, 6, vocab_size=6)


def test_a_data_set_is_read_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'streamfuse[train]'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "e2e"
    folder.mkdir()
    write(folder / "train.jsonl", {"meaning_representation": "name[A]", "human_reference": "x"})
    write(folder / "test.jsonl", {"meaning_representation": "name[B]", "human_reference": "y"})
    assert [sample.turns for sample in read_samples(folder)] == [("name[A]",)]
    assert [sample.turns for sample in read_samples(folder, split="test")] == [("name[B]",)]
    with pytest.raises(DataError, match="no such file, and not a Hugging Face data set that can be read"):
        read_samples(folder, split="nope")


def test_a_data_set_with_a_loading_script_is_read_from_the_hubs_own_copy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'streamfuse[train]'")
    asked = []

    def load_dataset(path: str, name: str | None, *, split: str, revision: str | None = None) -> list[dict[str, str]]:
        asked.append((path, name, split, revision))
        assert not logging.getLogger("huggingface_hub.utils").isEnabledFor(logging.WARNING)  # its lines of retries
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found e2e_nlg.py")
        return [{"question": "q"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    caplog.set_level(logging.WARNING, "huggingface_hub")
    (sample,) = read_samples("owner/name:main", template=Template("{question}"), split="validation")
    assert sample.turns == ("q",)
    assert logging.getLogger("huggingface_hub").level == logging.WARNING, "the process's log is as before"
    assert asked[-1] == ("owner/name", "main", "validation", "refs/convert/parquet")
    with pytest.raises(DataError, match="owner/name, train, row 1: no field 'x'; the row has question"):
        read_samples("owner/name", template=Template("{x}"))


def test_reading_data_imports_no_pytorch() -> None:
    code = "import sys; import streamfuse.train.readers; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
