"""Answers of each family: tool calls, thinking, channels, results, and what is saved of them.

Run: python -m pytest tests/text/test_tool_calls.py
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tool_families import (
    CHATML,
    COMMAND,
    GEMMA,
    GEMMA_3,
    GEMMA_4,
    GRANITE,
    HERMES,
    JAMBA,
    LFM2,
    LLAMA,
    LLAMA_4,
    MESSAGE_TOOLS,
    MINICPM,
    MINIMAX,
    MINISTRAL,
    MISTRAL,
    NEMOTRON,
    NO_TOOLS,
    OWN_FORMS,
    PHI_4,
    PYTHONIC,
    QWEN_XML,
    SEED,
    SPECIAL,
    made,
    pairs,
)
from tool_samples import TOOLS

from streamfuse.runtime.text import Conversation, TextError, TextStream

PARIS = ("get_weather", {"city": "Paris"})
FULL = ("get_weather", {"city": 'a "b" é\n', "days": 2, "x": -1.5, "y": None, "z": [True, {"q": []}]})
FULL_JSON = json.dumps(FULL[1], ensure_ascii=False)
ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {  # template, answer, content, calls
    "hermes": (HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "",
               [PARIS]),
    "hermes, text and two": (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": ' + FULL_JSON + "}\n</tool_call>\n"
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        "Let me see.",
        [FULL, ("now", {})],
    ),
    "hermes, a mark in a text": (
        HERMES,
        '<tool_call>{"name": "now", "arguments": {"a": "</tool_call> \\" <tool_call>"}}</tool_call>',
        "",
        [("now", {"a": '</tool_call> " <tool_call>'})],
    ),
    "hermes, arguments as text": (
        HERMES, '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", {"a": 1})]
    ),
    "hermes, cut off after its JSON": (HERMES, '<tool_call>\n{"name": "now", "arguments": {}}', "", [("now", {})]),
    "a list, as SmolLM2 writes": (
        CHATML,
        '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now"}]</tool_call>',
        "",
        [PARIS, ("now", {})],
    ),
    "qwen xml": (
        QWEN_XML,
        "ok\n<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "<parameter=tags>\n[\"a\"]\n</parameter>\n</function>\n</tool_call>",
        "ok",
        [("get_weather", {"city": "12", "days": 2, "tags": ["a"]})],
    ),
    "llama": (LLAMA, '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    "llama, marked": (LLAMA, '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    "llama, two": (
        LLAMA,
        '{"name": "now", "parameters": {}}; {"type": "function", "name": "now", "parameters": {"a": 1}}',
        "",
        [("now", {}), ("now", {"a": 1})],
    ),
    "functiongemma": (
        GEMMA,
        "<start_function_call>call:get_weather{city:<escape>a, {b} <end_function_call><escape>,days:2,z:[true,"
        "{q:[]}],y:null}<end_function_call>",
        "",
        [("get_weather", {"city": "a, {b} <end_function_call>", "days": 2, "z": [True, {"q": []}], "y": None})],
    ),
    "gemma 4": (
        GEMMA_4, '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', "", [PARIS]
    ),
    "gemma 3": (
        GEMMA_3, 'Yes.\n```tool_code\nprint(get_weather(city="Paris"))\n```', "Yes.", [PARIS]
    ),
    "lfm2": (
        LFM2,
        "<|tool_call_start|>[get_weather(city='a \"b\" é\\n', days=2, x=-1.5, y=None, z=[True, {'q': []}]), now()]"
        "<|tool_call_end|>",
        "",
        [FULL, ("now", {})],
    ),
    "mistral": (
        MISTRAL, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]
    ),
    "mistral, newer": (MINISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "", [PARIS]),
    "mistral, newer, text and two": (
        MINISTRAL,
        "ok[TOOL_CALLS]get_weather[ARGS]" + FULL_JSON + "[TOOL_CALLS]now[CALL_ID]call00002[ARGS]{}",
        "ok",
        [FULL, ("now", {})],
    ),
    "python, quotes of three": (
        GEMMA_3,
        '```tool_code\nrun(code="""a\n"b\\"" ```\n""", x=\'\', y="""""")\n```',
        "",
        [("run", {"code": 'a\n"b"" ```\n', "x": "", "y": ""})],
    ),
    "phi 4": (
        PHI_4, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>', "", [PARIS]
    ),
    "granite": (GRANITE, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    "jamba": (
        JAMBA,
        'ok <tool_calls>[\n    {"name": "get_weather", "arguments": {"city": "Paris"}},\n    {"name": "now"}\n]'
        "</tool_calls>",
        "ok",
        [PARIS, ("now", {})],
    ),
    "minimax": (
        MINIMAX,
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n{"name": "now"}\n</tool_calls>',
        "",
        [PARIS, ("now", {})],
    ),
    "seed": (
        SEED,
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        "",
        [PARIS],
    ),
    "nemotron": (
        NEMOTRON, '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>', "", [PARIS]
    ),
    "command": (
        COMMAND,
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n]'
        "<|END_ACTION|>",
        "",
        [PARIS],
    ),
    "minicpm": (
        MINICPM,
        '<|tool_call_start|>\n```python\nget_weather(city="```")\nnow(a=true)\n```\n<|tool_call_end|>',
        "",
        [("get_weather", {"city": "```"}), ("now", {"a": True})],
    ),
    "llama 4": (LLAMA_4, '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    "llama 4, marked": (
        LLAMA_4,
        '<|python_start|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|python_end|>',
        "",
        [PARIS],
    ),
    "python alone": (PYTHONIC, '[get_weather(city="Paris"), now()]', "", [PARIS, ("now", {})]),
    "python alone, marked": (
        PYTHONIC, '<|python_start|>[get_weather(city="Paris")]<|python_end|>', "", [PARIS]
    ),
    "a template without tools": (
        NO_TOOLS, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]
    ),
    "a template with the tools of a message": (
        MESSAGE_TOOLS, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]
    ),
    "a number beyond 64 bits": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": 18446744073709551615}}</tool_call>', "",
        [("now", {"a": 18446744073709551615})],
    ),
    "a number beyond a double": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": [-1e999, "1e999"]}}</tool_call>', "",
        [("now", {"a": [-1e308, "1e999"]})],
    ),
    "a field twice": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1, "b": 2, "a": 3}}</tool_call>', "",
        [("now", {"a": 3, "b": 2})],
    ),
}  # fmt: skip
NO_CALLS = {
    "no JSON": (HERMES, "a <tool_call>\n{name: now}\n</tool_call> b"),
    "JSON of no call": (HERMES, '<tool_call>{"a": 1}</tool_call>'),
    "a name that is no text": (HERMES, '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    "arguments that are no object": (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    "cut off": (HERMES, '<tool_call>\n{"name": "now", "argu'),
    "a mark that never ends": (HERMES, "<tool_ca"),
    "brackets without end": (HERMES, "<tool_call>" + "[" * 5000 + "</tool_call>"),
    "an answer in JSON": (LLAMA, '{"a": 1}'),
    "an answer in JSON with a name": (LLAMA, '{"name": "Bob", "age": 7}'),
    "a call behind text": (LLAMA, 'Yes: {"name": "now", "parameters": {}}'),
    "braces without end": (GEMMA, "<start_function_call>call:now" + "{a:" * 5000 + "<end_function_call>"),
    "a link": (PYTHONIC, "[now(1)](https://a.b) is one"),
    "a call of no tool in Python": (PYTHONIC, "[print(a=1)]"),
    "a call in Python behind text": (PYTHONIC, "Yes: [now()]"),
    "no name": (GEMMA, "<start_function_call>call:{}<end_function_call>"),
    "code": (LFM2, "<|tool_call_start|>[now(1 + 2)]<|tool_call_end|>"),
    "calls in calls": (GEMMA_3, "```tool_code\n" + "print(" * 5000 + "```"),
    "no function": (QWEN_XML, "<tool_call>\n<parameter=a>\n1\n</parameter>\n</tool_call>"),
}


def written(template: str, answer: str, stops: tuple[str, ...] = ()) -> tuple[Conversation, list[tuple[str, str]]]:
    """The conversation after this answer, and the parts as they came."""
    text = made(template)
    conversation = Conversation(text, tools=TOOLS)
    conversation.ask("x")
    stream, parts = conversation.stream(stops), []
    for token in text.encode_rendered(answer):
        parts += stream.push(token)
        if stream.stopped:
            break
    parts += stream.end()
    return conversation, parts


def streamed(stream: TextStream, tokens: list[int]) -> list[tuple[str, str]]:
    """The parts of an answer, joined."""
    parts = [part for token in tokens for part in stream.push(token)]
    return merged([*parts, *stream.end()])


def merged(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for channel, text in parts:
        if found and found[-1][0] == channel:
            found[-1] = (channel, found[-1][1] + text)
        else:
            found.append((channel, text))
    return found


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_of_each_family_are_found(name: str) -> None:
    template, answer, content, calls = ANSWERS[name]
    conversation, parts = written(template, answer)
    assert pairs(conversation.tool_calls) == calls
    message = conversation.messages[-1]
    assert message["content"] == content
    functions = [call["function"] for call in message["tool_calls"]]
    assert [(function["name"], function["arguments"]) for function in functions] == calls
    assert [call["id"] for call in message["tool_calls"]] == [f"call{i + 1:05}" for i in range(len(calls))]
    assert "".join(text for channel, text in parts if channel == "answer") == content
    assert any(channel == "tool_call" for channel, _ in parts)


@pytest.mark.parametrize("name", NO_CALLS)
def test_what_is_no_valid_call_is_text(name: str) -> None:
    template, answer = NO_CALLS[name]
    conversation, parts = written(template, answer)
    assert conversation.tool_calls == []
    shown = answer
    for word in SPECIAL:
        shown = shown.replace(word, "")
    assert conversation.messages[-1] == {"role": "assistant", "content": shown}
    answered = "".join(text for channel, text in parts if channel == "answer")
    assert "".join(answered.split()) == "".join(shown.split())


@pytest.mark.parametrize("name", ANSWERS)
def test_a_call_is_the_same_wherever_its_text_is_split(name: str) -> None:
    """Each character alone, and all tokens that end at a split."""
    template, answer, content, calls = ANSWERS[name]
    text = made(template)
    whole = merged(written(template, answer)[1])
    for place in range(1, len(answer)):
        if any(0 < place - at < len(word) for word in SPECIAL for at in found(answer, word)):
            continue  # one token
        conversation = Conversation(text, tools=TOOLS)
        conversation.ask("x")
        stream, parts = conversation.stream(), []
        for token in [*text.encode_rendered(answer[:place]), *text.encode_rendered(answer[place:])]:
            parts += stream.push(token)
        parts += stream.end()
        assert pairs(conversation.tool_calls) == calls
        assert conversation.messages[-1]["content"] == content
        assert merged(parts) == whole


def found(text: str, word: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(word, place)]


@pytest.mark.parametrize("template", [LFM2, GEMMA_3])
def test_a_call_is_found_in_few_brackets_of_print_and_text_in_many(template: str) -> None:
    family = ("<|tool_call_start|>[", "]<|tool_call_end|>") if template == LFM2 else ("```tool_code\n", "```")
    for depth, calls in ((0, [("now", {})]), (64, [("now", {})]), (65, []), (5_000, [])):
        answer = "print(" * depth + "now()" + ")" * depth
        conversation, _ = written(template, answer.join(family))
        assert pairs(conversation.tool_calls) == calls
    conversation, _ = written(template, family[0] + "print(" * 5_000)
    assert conversation.tool_calls == []


def test_without_tools_a_call_is_text() -> None:
    text = made(HERMES)
    conversation = Conversation(text)
    conversation.ask("x")
    answer = ANSWERS["hermes"][1]
    conversation.answer(text.encode_rendered(answer))
    assert conversation.tool_calls == []
    assert conversation.messages[-1]["content"] == answer


def test_an_answer_without_calls_has_none_and_the_next_one_may() -> None:
    text = made(HERMES)
    conversation = Conversation(text, tools=TOOLS)
    answer = ANSWERS["hermes"][1]
    for restriction, expected in (("", []), (None, [PARIS])):
        conversation.ask("x")
        parts = streamed(conversation.stream(restriction=restriction), text.encode_rendered(answer))
        assert pairs(conversation.tool_calls) == expected
        assert [channel for channel, _ in parts] == ["tool_call" if expected else "answer"]


@pytest.mark.parametrize(
    ("restriction", "channels"),
    [
        (None, ["thinking", "answer"]),
        ("", ["answer"]),
        ("[^x]*", ["answer"]),
        ("[^x]*</think>Fine[.]", ["thinking", "answer"]),
        (r"[^x]*<\/think>Fine[.]", ["thinking", "answer"]),
    ],
)
@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_a_restricted_answer_has_thoughts_where_the_restriction_spells_their_end(
    prompt: str, restriction: str | None, channels: list[str]
) -> None:
    text = made(CHATML + prompt + "{# </think> #}")
    conversation = Conversation(text)
    conversation.ask("x")
    answer = ("" if prompt else "<think>") + "hm</think>Fine."
    parts = streamed(conversation.stream(restriction=restriction), text.encode_rendered(answer))
    assert [channel for channel, _ in parts] == channels
    assert "".join(part for channel, part in parts if channel == "answer") == (
        answer if channels == ["answer"] else "Fine."
    )


@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_a_tag_in_a_text_of_an_answer_with_a_schema_is_text(prompt: str) -> None:
    text = made(CHATML + prompt + "{# </think> #}")
    conversation = Conversation(text)
    conversation.ask("x")
    answer = '{"a": "Use <think> and </think>."}'
    parts = streamed(conversation.stream(restriction=""), text.encode_rendered(answer))
    assert parts == [("answer", answer)]
    assert conversation.messages[-1]["content"] == answer


def test_thinking_is_a_channel_and_stays_in_the_message() -> None:
    answer = "<think>\nhm <b>\n</think>\n\nFine < 3."
    conversation, parts = written(HERMES, answer)
    assert merged(parts) == [("thinking", "hm <b>"), ("answer", "Fine < 3.")]
    assert conversation.messages[-1]["content"] == answer


@pytest.mark.parametrize(
    ("template", "answer", "parts"),
    [
        (HERMES, "<think></think>Fine.", [("thinking", ""), ("answer", "Fine.")]),
        (HERMES, "<think>\n\n</think>\nFine.", [("thinking", ""), ("answer", "Fine.")]),
        (HERMES, "So<think></think>", [("answer", "So<think></think>")]),
        (HERMES, "\n <think>\n</think>Fine.", [("thinking", ""), ("answer", "Fine.")]),
        (MISTRAL, "So [THINK]hm[/THINK]fine.", [("answer", "So"), ("thinking", "hm"), ("answer", "fine.")]),
        (MISTRAL, "[THINK][/THINK]Fine.", [("thinking", ""), ("answer", "Fine.")]),
        (CHATML + "<think>{# </think> #}", "</think>Fine.", [("thinking", ""), ("answer", "Fine.")]),
    ],
)
def test_tokens_of_empty_thoughts_are_told_from_those_of_the_answer(
    template: str, answer: str, parts: list[tuple[str, str]]
) -> None:
    assert merged(written(template, answer)[1]) == parts


def test_an_answer_that_mentions_the_mark_of_thoughts_stays_whole() -> None:
    answer = "Use re.sub(r'<think>.*?</think>', '', t)."
    assert merged(written(HERMES, answer)[1]) == [("answer", answer)]
    assert merged(written(HERMES, f"<think>hm</think>{answer}")[1]) == [("thinking", "hm"), ("answer", answer)]
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    conversation, parts = written(HERMES, f"A <think> mark.\n{call}<think>hm</think>")
    assert [channel for channel, _ in merged(parts)] == ["answer", "tool_call", "thinking"]
    assert [one["function"]["name"] for one in conversation.messages[-1]["tool_calls"]] == ["now"]


def test_thoughts_between_special_tokens_keep_their_marks_in_the_message() -> None:
    answer = "[THINK]hm[/THINK]Fine."
    conversation, parts = written(MISTRAL, answer)
    assert merged(parts) == [("thinking", "hm"), ("answer", "Fine.")]
    assert conversation.messages[-1]["content"] == answer


@pytest.mark.parametrize("template", [NO_TOOLS, MESSAGE_TOOLS])
def test_tools_that_a_template_does_not_write_are_in_the_system_message(template: str) -> None:
    rendered = made(template).render([{"role": "user", "content": "x"}], tools=TOOLS)
    assert "get_weather" in rendered
    assert "<tool_call>" in rendered


@pytest.mark.parametrize("name", OWN_FORMS)
def test_a_call_in_a_form_of_its_own_is_asked_for_in_a_known_one(name: str) -> None:
    """The prompt shows the form that is looked for in the answer, which the template itself does not know."""
    template = OWN_FORMS[name]
    answer = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    conversation, _ = written(template, answer)
    assert pairs(conversation.tool_calls) == [PARIS]
    shown = made(template).render(conversation.messages, tools=TOOLS)
    assert shown == made(NO_TOOLS.replace("<start_of_turn>", "<|im_start|>")).render(conversation.messages, tools=TOOLS)
    assert shown.startswith("<|im_start|>system\nYou may call functions")
    assert f"<|im_start|>assistant\n{answer}<|im_end|>" in shown


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
LOSES_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize("template", [NO_SYSTEM, LOSES_SYSTEM])
def test_tools_are_in_the_first_question_where_a_template_writes_no_system_message(template: str) -> None:
    text = made(template)
    conversation = Conversation(text, "Be brief.", tools=TOOLS)
    first = conversation.ask("Weather?")
    shown = text.render(conversation.messages, tools=TOOLS)
    assert shown.startswith("user: Be brief.\n\nYou may call functions")
    assert shown.endswith("</tool_call>\n\nWeather?\n")
    conversation.answer(text.encode_rendered(ANSWERS["hermes"][1]))
    assert conversation.ask_results([{"content": "20"}])[: len(first)] == first
    assert text.render(conversation.messages, tools=TOOLS).endswith("user: <tool_response>\n20\n</tool_response>\n")
    asked = [{"role": "user", "content": "x"}]
    assert text.render(asked) == "user: x\n"


def test_an_empty_list_of_tools_is_none_for_a_template() -> None:
    template = "{% if tools is not none %}Environment: ipython{% endif %}" + CHATML
    asked = [{"role": "user", "content": "x"}]
    assert made(template).render(asked, tools=[]) == made(template).render(asked)
    assert Conversation(made(template), tools=[]).ask("x") == Conversation(made(template)).ask("x")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "90210"),
        ({"type": ["string", "null"]}, "90210"),
        ({"enum": ["1", "2"]}, "1"),
        ({"$ref": "#/$defs/Floor"}, "1"),
        ({"allOf": [{"$ref": "#/$defs/Floor"}]}, "1"),
        ({"$ref": "#/$defs/Loop"}, 1),
        ({"type": "string"}, "True"),
        ({"type": "boolean"}, True),
        ({"type": ["integer", "null"]}, None),
        ({"type": "string"}, '"1.2.3"'),
        ({"type": ["string", "integer"]}, '"1.2.3"'),
        ({"type": ["string", "integer"]}, 90210),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, 90210),
        ({}, 90210),
    ],
)
def test_a_value_without_quotes_is_text_where_its_schema_allows_only_that(schema: dict[str, Any], value: Any) -> None:
    text = made(QWEN_XML)
    known = {"Floor": {"enum": ["1", "2"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 2}}
    tools = [{"name": "post", "parameters": {"type": "object", "properties": {"zip": schema}, "$defs": known}}]
    conversation = Conversation(text, tools=tools)
    conversation.ask("x")
    answer = f"<tool_call>\n<function=post>\n<parameter=zip>\n{value}\n</parameter>\n</function>\n</tool_call>"
    conversation.answer(text.encode_rendered(answer))
    assert pairs(conversation.tool_calls) == [("post", {"zip": value})]


def test_a_chat_goes_on_after_a_call_with_a_number_beyond_64_bits() -> None:
    conversation, _ = written(*ANSWERS["a number beyond 64 bits"][:2])
    assert conversation.ask_results([{"content": "a"}])


@pytest.mark.parametrize("spelt", ["", "{# </think> #}"], ids=["opened alone", "and closed"])
def test_thoughts_that_the_prompt_begins_are_thinking(spelt: str) -> None:
    _, parts = written(CHATML + "<think>\n" + spelt, "hm</think>Fine.")
    assert merged(parts) == [("thinking", "hm"), ("answer", "Fine.")]


def test_thoughts_text_and_calls_in_one_answer() -> None:
    answer = '<think>a</think>b\n<tool_call>\n{"name": "now"}\n</tool_call>\nc'
    conversation, parts = written(HERMES, answer)
    assert merged(parts) == [
        ("thinking", "a"),
        ("answer", "b"),
        ("tool_call", '{"name": "now"}'),
        ("answer", "c"),
    ]
    assert pairs(conversation.tool_calls) == [("now", {})]


def test_a_message_that_ends_with_the_tag_opens_no_thoughts() -> None:
    text = made("{% for m in messages %}{{ m.content }}{% endfor %}")
    conversation = Conversation(text)
    conversation.ask("Complete this: <think>")
    assert streamed(conversation.stream(), text.encode_rendered("Fine.")) == [("answer", "Fine.")]


def test_a_model_that_does_not_think_writes_the_tag_as_text() -> None:
    _, parts = written(CHATML, "Use <think> here.")
    assert merged(parts) == [("answer", "Use <think> here.")]


def test_a_stop_string_ends_the_channels_too() -> None:
    conversation, parts = written(HERMES, "<think>a</think>b STOP <tool_call>", (" STOP",))
    assert merged(parts) == [("thinking", "a"), ("answer", "b")]
    assert conversation.messages[-1]["content"] == "<think>a</think>b"


def test_results_go_back_and_the_next_prompt_keeps_the_tokens_of_the_call() -> None:
    text = made(HERMES)
    conversation = Conversation(text, tools=TOOLS)
    first = conversation.ask("Weather?")
    answer = text.encode_rendered(ANSWERS["hermes"][1])
    stream = conversation.stream()
    for token in answer:
        stream.push(token)
    stream.end()
    ids = conversation.ask_results([{"content": {"t": 20}}])
    assert ids[: len(first) + len(answer)] == [*first, *answer]
    assert conversation.messages[-1] == {
        "role": "tool", "content": '{"t": 20}', "name": "get_weather", "tool_call_id": "call00001"
    }  # fmt: skip
    assert ids == text.encode_chat(conversation.messages, tools=TOOLS)
    conversation.take_back()
    assert pairs(conversation.tool_calls) == [PARIS]


@pytest.mark.parametrize(
    ("results", "names"),
    [
        ([{"content": "a"}, {"content": "b"}], ["get_weather", "now"]),
        ([{"content": "a", "name": "now"}, {"content": "b", "name": "get_weather"}], ["now", "get_weather"]),
        ([{"content": "a", "tool_call_id": "call00002"}], ["now"]),
    ],
)
def test_results_find_their_calls(results: list[dict[str, Any]], names: list[str]) -> None:
    conversation, _ = written(*ANSWERS["hermes, text and two"][:2])
    conversation.ask_results(results)
    turns = conversation.messages[-len(names) :]
    assert [turn["name"] for turn in turns] == names
    assert [turn["content"] for turn in turns] == ["a", "b"][: len(names)]


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "must be a JSON list"),
        ([{"name": "now"}], "item 1: it has no content"),
        ([{"content": "a", "name": "other"}], "item 1: the last answer has no call 'other'"),
        ([{"content": "a"}, {"content": "b"}, {"content": "c"}], "item 3: the last answer has no call more"),
        ([{"content": "a", "tool_call_id": "call00009"}], "no call 'call00009' that waits"),
    ],
)
def test_results_of_no_call_are_refused(results: Any, words: str) -> None:
    conversation, _ = written(*ANSWERS["hermes, text and two"][:2])
    with pytest.raises(TextError, match=words):
        conversation.ask_results(results)
    assert conversation.ask("never mind")


def test_results_without_a_call_are_refused() -> None:
    conversation, _ = written(HERMES, "Fine.")
    with pytest.raises(TextError, match="no tool was called"):
        conversation.ask_results([{"content": "a"}])


def test_a_conversation_with_calls_is_saved_and_restored() -> None:
    conversation, _ = written(*ANSWERS["hermes, text and two"][:2])
    other = Conversation(made(HERMES), tools=TOOLS)
    other.take_note(conversation.note())
    assert other.messages == conversation.messages
    assert other.tool_calls == conversation.tool_calls
    results = [{"content": "1"}, {"content": "2"}]
    assert other.ask_results(results) == conversation.ask_results(results)


def test_numbers_of_calls_go_on_through_a_conversation() -> None:
    text = made(HERMES)
    conversation, _ = written(*ANSWERS["hermes"][:2])
    conversation.ask_results([{"content": "20"}])
    answer = ANSWERS["hermes"][1]
    conversation.answer(text.encode_rendered(answer))
    assert [call["id"] for call in conversation.tool_calls] == ["call00002"]


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    text = made(CHATML)
    conversation = Conversation(text, "Be brief.", tools=TOOLS)
    conversation.ask("Weather?")
    shown = text.render(conversation.messages, tools=TOOLS)
    assert shown.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert all(json.dumps(tool, ensure_ascii=False) in shown for tool in TOOLS)
    answer = ANSWERS["hermes"][1]
    first = text.encode_chat(conversation.messages, tools=TOOLS)
    conversation.answer(text.encode_rendered(answer))
    ids = conversation.ask_results([{"content": "20"}])
    shown = text.render(conversation.messages, tools=TOOLS)
    assert f"assistant\n{answer}<|im_end|>" in shown
    assert "user\n<tool_response>\n20\n</tool_response>" in shown
    assert ids[: len(first)] == first


def test_random_answers_are_text_or_calls() -> None:
    """Whatever a model writes: no error, no lost text, and every call is a name with an object."""
    rng = random.Random(9)
    marks = [*SPECIAL, "<tool_call>", "</tool_call>", "<think>", "</think>", "<end_function_call>", "<tool_call|>"]
    parts = [
        *marks, "call:a{", "}", '{"name": "a"', ', "arguments": {}}', '"', "'", "[", "]", "(", ")", "a(b=", "1", " ",
        "[a(b=", "<|python_start|>", "```python", "<|START_ACTION|>",
        "<escape>", "<function=a>", "<parameter=b>", "</parameter>", "</function>", "```tool_code\n", "```", "\n", "é",
        "\\", '<|"|>', ":", ";", "<|tool_call>",
    ]  # fmt: skip
    families = (
        HERMES, LLAMA, GEMMA, QWEN_XML, GEMMA_4, LFM2, MISTRAL, MINISTRAL, PHI_4, GEMMA_3, COMMAND, MINICPM, PYTHONIC,
        LLAMA_4,
    )  # fmt: skip
    for template in families:
        for _ in range(40):
            answer = "".join(rng.choice(parts) for _ in range(rng.randint(1, 25)))
            conversation, pieces = written(template, answer)
            message = conversation.messages[-1]
            shown = answer
            for word in SPECIAL:
                shown = shown.replace(word, "")
            if conversation.tool_calls:
                assert all(call["name"] and isinstance(call["arguments"], dict) for call in conversation.tool_calls)
            else:
                assert message == {"role": "assistant", "content": shown}
            assert len("".join(text for channel, text in pieces if channel != "tool_call")) <= len(shown)
