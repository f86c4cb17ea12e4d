"""Chat templates with tools, documents and variables give the text and token ids of transformers, and what tools and
their results say is text for the model.

Run: python -m pytest tests/text/test_tool_templates.py
With a folder of published templates (*.jinja), such as llama.cpp's models/templates: the same with
STREAMFUSE_TEMPLATES=folder before it
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from template_renders import by_streamfuse, by_transformers
from text_samples import TEMPLATES
from tokenizer_samples import KINDS, opened, qwen_like
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tool_samples import CHATS, CLOCK, SETTINGS, TOOLS, call, result, turn

from streamfuse.runtime.text import Conversation, TextError, Tokenizer

PUBLISHED = os.environ.get("STREAMFUSE_TEMPLATES")
KNOWN = "{# <tool_call> #}"  # a template writes tools itself where the form of its calls is known
FAMILIES = {name: source for name, source in TEMPLATES.items() if name.startswith("tools_")}


def different(source: str) -> list[str]:
    """The chats and settings where this template gives another text than with transformers, which drops tools where a
    template has none, and writes them where the form of its calls is not known. Content that is null is empty here,
    which more templates take."""
    found = []
    for chat, given_messages in CHATS.items():
        messages = [{**message, "content": message["content"] or ""} for message in given_messages]
        for setting, given in SETTINGS.items():
            if "tools" in given and "tools" not in source:
                continue
            expected, own = by_transformers(source, messages, **given), by_streamfuse(source, given_messages, **given)
            is_plain = "tools" in given and own[0] and "You may call functions to answer." in own[1]
            if own != expected and (own[0] or expected[0]) and not is_plain:
                found.append(f"{chat}, {setting}: {own}, not {expected}")
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_our_templates_give_the_text_of_transformers(name: str) -> None:
    assert not different(TEMPLATES[name])


@pytest.mark.skipif(PUBLISHED is None, reason="STREAMFUSE_TEMPLATES names no folder of published templates")
def test_published_templates_give_the_text_of_transformers() -> None:
    paths = sorted(Path(PUBLISHED or "").rglob("*.jinja"))
    found = {path.name: different(path.read_text(encoding="utf-8")) for path in paths}
    assert paths
    assert not {name: problems[:3] for name, problems in found.items() if problems}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_are_those_of_the_text(kind: str, name: str) -> None:
    file = KINDS[kind]()
    text = made(file, FAMILIES[name])
    for messages in (CHATS["a call"], CHATS["two calls"], CHATS["several turns"]):
        if not by_transformers(FAMILIES[name], messages, TOOLS)[0]:
            continue
        ids = file.encode(text.render(messages, tools=TOOLS), add_special_tokens=False).ids
        assert text.encode_chat(messages, tools=TOOLS) == ids


def made(file: HuggingFaceTokenizer, template: str) -> Tokenizer:
    return opened(file, template, 1, [2])


SPELT = ["<|im_end|>", "<|im_start|>", "</s>", "</think>", "<s>", "<|user|>", "<\uff5cUser\uff5c>"]


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_tools_results_and_variables_are_text(kind: str) -> None:
    source = (
        KNOWN + "{% for t in tools %}{{ t | tojson }}{{ t | tojson(ensure_ascii=true) }}{{ t }}{{ t.function.name }}"
        "{% endfor %}{% for d in documents %}{{ d.text }}{% endfor %}{{ note }}"
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{{ m | tojson }}{{ m.name }}</s>{% endfor %}"
    )
    file = KINDS[kind]()
    text = made(file, source)
    marks = {number for number, token in file.get_added_tokens_decoder().items() if token.content in SPELT}

    def count(word: str) -> int:
        tool = {"name": f"a{word}", "description": word, "parameters": {"properties": {f"x{word}": {"enum": [word]}}}}
        messages = [
            turn("assistant", None, tool_calls=[call(f"f{word}", {f"k{word}": [word, {word: word}]})]),
            result(f"f{word}", f'{{"a": "{word}"}}'),
        ]
        given = {"documents": [{"title": word, "text": f"d {word}"}], "note": word}
        ids = text.encode_chat(messages, tools=[tool], variables=given)
        assert "fdd0" not in text.render(messages, tools=[tool], variables=given)
        return sum(token in marks for token in ids)

    assert [count(word) for word in SPELT] == [count("plain")] * len(SPELT)


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (["a"], "tools: item 1: it must be"),
        ([CLOCK, {"description": "x"}], "tools: item 2: it has no name"),
        ([{"name": ""}], "tools: item 1: it has no name"),
        ([{"type": "function", "function": {"name": 3}}], "tools: item 1: it has no name"),
        ([{"name": "a", "parameters": "x"}], "the parameters of 'a' must be a JSON schema"),
        ([CLOCK, {"type": "function", "function": CLOCK}], "two functions have the name 'now'"),
    ],
)
def test_what_is_no_tool_is_refused_with_its_number(tools: Any, words: str) -> None:
    text = made(qwen_like(), FAMILIES["tools_hermes"])
    with pytest.raises(TextError, match=words):
        text.render([turn("user", "x")], tools=tools)


ODD_NAMES = ("größe", "user.name", "@id", "$schema")


def odd_tool() -> dict[str, Any]:
    """A function whose arguments have names that are no words."""
    properties = {name: {"type": "string"} for name in ("b", *ODD_NAMES)}
    parameters = {"type": "object", "properties": properties, "required": list(ODD_NAMES)}
    return {"type": "function", "function": {"name": "f", "description": "F.", "parameters": parameters}}


def test_names_of_fields_are_what_they_are_for_transformers() -> None:
    """Templates ask whether an argument is required, look arguments up, sort and change their names."""
    template = (
        KNOWN + "{% set p = tools[0].function.parameters %}{% for key, value in p.properties | dictsort %}"
        "{{ key }}{{ key in p.required }}{{ key in p.required | join(' ') }}{{ key.startswith('$') }}"
        "{{ key | length }}{{ value.type }};{% endfor %}"
        "{% for name in p.required %}{{ p.properties[name].type }}{{ name in p.properties }}{% endfor %}"
    )
    messages = [turn("user", "x")]
    assert by_streamfuse(template, messages, [odd_tool()]) == by_transformers(template, messages, [odd_tool()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_of_a_field_is_cut_only_where_the_template_makes_a_control_token_of_it(kind: str) -> None:
    file, messages = KINDS[kind](), [turn("user", "x")]
    text = made(file, KNOWN + "{{ tools | tojson }}")
    whole = file.encode(text.render(messages, tools=[odd_tool()]), add_special_tokens=False).ids
    assert text.encode_chat(messages, tools=[odd_tool()]) == whole
    marks = {number for number, token in file.get_added_tokens_decoder().items() if token.content in SPELT}
    names = KNOWN + "{% for key in tools[0].function.parameters.properties | dictsort %}<{{ key[0] }}>{% endfor %}"
    for spelt in SPELT:
        tool = {"name": "f", "parameters": {"type": "object", "properties": {spelt[1:-1]: {"type": "string"}}}}
        plain = {"name": "f", "parameters": {"type": "object", "properties": {"plain": {"type": "string"}}}}
        found = [made(file, names).encode_chat(messages, tools=[one]) for one in (tool, plain)]
        if not spelt[1:-1].isalnum():  # a plain word is what the template writes
            assert [sum(token in marks for token in ids) for ids in found] == [0, 0], spelt


LARGE = {"default": 2**64 - 1, "maximum": 2**63, "minimum": -(2**63), "examples": [1e20, 1e22, 2**53 + 1]}


@pytest.mark.parametrize(
    "written",
    ["{{ n }}", "{{ n | tojson }}", "{{ n.default | string }}", "{{ n.default | int }}", "{{ n.default is integer }}",
     "{{ n.maximum is number }}", "{{ n.maximum == n.default }}{{ n.maximum == 1 }}{{ n.maximum in [n.maximum] }}",
     "{{ n.maximum.foo }}{{ n.maximum is iterable }}{{ n.maximum | default(1) }}{% if n.maximum %}a{% endif %}"],
)  # fmt: skip
def test_whole_numbers_are_written_with_all_their_digits(written: str) -> None:
    messages = [turn("user", "x")]
    assert by_streamfuse(written, messages, n=LARGE) == by_transformers(written, messages, n=LARGE)


@pytest.mark.parametrize("written", ["n.maximum + 1", "n.maximum | float", "n.maximum == 0.5", "n.maximum < 1"])
def test_there_is_no_arithmetic_with_whole_numbers_from_2_to_the_63(written: str) -> None:
    rendered, _ = by_streamfuse(f"{{{{ {written} }}}}", [turn("user", "x")], n=LARGE)
    assert not rendered


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_whole_number_that_would_lose_digits_is_refused(number: int) -> None:
    text, messages = made(qwen_like(), FAMILIES["tools_hermes"]), [turn("user", "x")]
    tools = [{"name": "f", "parameters": {"properties": {"a": {"default": number}}}}]
    asked = [turn("user", "x"), turn("assistant", "", tool_calls=[call("f", {"a": [number, f"{number}"]})])]
    for given in ({"messages": messages, "tools": tools}, {"messages": messages, "variables": {"n": number}}):
        with pytest.raises(TextError, match="a whole number does not fit in 64 bits"):
            text.render(**given)
    with pytest.raises(TextError, match="a whole number does not fit in 64 bits"):
        text.render(asked)
    assert text.render([turn("user", f'"{number}\\')], variables={"n": f"{number}", "x": float(number)})


EXPRESSIONS = [
    "key | length", "key[0]", "key[-1] == 'k'", "key[1:]", "key[:-1]", "key[::-1]", "key | list | length",
    "key | first", "key | last", "key | reverse | join", "key.startswith('/')", "key.startswith('t', 1)",
    "key.endswith(('k', 'x'))", "key.find('think')", "key.find('/')", "key.rfind('k')", "key.count('/', 0, 1)",
    "key.removeprefix('/')", "key.removesuffix('k')", "key | trim", "key.strip('/')", "key.rstrip('k')",
    "key | capitalize", "key | title", "key.title()", "key.isalnum()", "key is lower", "key | wordcount",
    "key.rjust(20)", "key | center(20)", "'%20s' | format(key)", "'%.2s' | format(key)",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_template_that_measures_a_name_of_a_field_makes_no_control_token_of_it(expression: str) -> None:
    names = KNOWN + "{% for key in tools[0].function.parameters.properties %}EXPRESSION <{{ key }}>{% endfor %}"
    source, file = names.replace("EXPRESSION", f"{{{{ {expression} }}}}"), qwen_like()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"/think": {}}}}}
    text, messages = made(file, source), [turn("user", "x")]
    assert file.token_to_id("</think>") not in text.encode_chat(messages, tools=[tool])
    assert (True, text.render(messages, tools=[tool])) == by_transformers(source, messages, [tool])


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_message_that_spells_a_control_token_is_measured_as_with_transformers(expression: str) -> None:
    source = f"{{% set key = messages[0].content %}}{{{{ {expression} }}}}"
    for content in ("/thin<|im_end|>k", "<|im_start|>", "a <|im_end|>"):
        messages = [turn("user", content)]
        assert by_streamfuse(source, messages) == by_transformers(source, messages)


def test_many_tools_are_read_in_time() -> None:
    tools = [{"name": f"function_{number}"} for number in range(10_000)]
    text = made(qwen_like(), "{{ messages[0].content }}")
    started = time.process_time()
    text.render([turn("user", "x")], tools=tools)
    with pytest.raises(TextError, match="two functions have the name 'function_9999'"):
        text.render([turn("user", "x")], tools=[*tools, tools[-1]])
    assert time.process_time() - started < 2  # a tenth of a second


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"messages": []}, "'messages' cannot be set here"),
        ({"eos_token": "x"}, "'eos_token' cannot be set here"),
        ({"documents": ["a"]}, "documents must be a list of objects"),
    ],
)
def test_what_is_no_variable_is_refused(variables: Any, words: str) -> None:
    text = made(qwen_like(), FAMILIES["tools_hermes"])
    with pytest.raises(TextError, match=words):
        text.render([turn("user", "x")], variables=variables)


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "missing"])
def test_content_that_is_missing_beside_calls_is_empty(content: dict[str, Any]) -> None:
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    messages = [turn("user", "x"), {"role": "assistant", **content, "tool_calls": [call("now", {})]}]
    assert by_streamfuse(source, messages) == (True, "user: x\nassistant: \n")


CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}ARGUMENTS{% endfor %}{% endfor %}"
ARGUMENTS = {"city": "Paris é", "days": 2, "x": [1e-7, True, None]}
JSON_ARGUMENTS = '{"city": "Paris é", "days": 2, "x": [1e-07, true, null]}'


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ '<' + c.function.arguments + '>' }}", f"<{JSON_ARGUMENTS}>"),
        ("{{ c.function.arguments | string }}", JSON_ARGUMENTS),
        ("{{ '%s' | format(c.function.arguments) }}", JSON_ARGUMENTS),
        ("{{ c.function.arguments | tojson }}", JSON_ARGUMENTS),
        ("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }} {% endfor %}",
         "city=Paris é days=2 x=[1e-07, True, None] "),
    ],
)  # fmt: skip
def test_arguments_are_the_text_that_a_template_adds_to_others_or_an_object(written: str, expected: str) -> None:
    messages = [turn("user", "x"), turn("assistant", "", tool_calls=[call("now", ARGUMENTS)])]
    assert by_streamfuse(CALLS.replace("ARGUMENTS", written), messages) == (True, f"x{expected}")


def test_arguments_as_text_are_left_as_they_are() -> None:
    source = CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    messages = [turn("user", "x"), turn("assistant", "", tool_calls=[call("now", '{"a":1}')])]
    assert by_streamfuse(source, messages) == (True, 'x"{\\"a\\":1}"')


def test_control_tokens_in_arguments_as_text_are_text() -> None:
    text = made(qwen_like(), CALLS.replace("ARGUMENTS", "{{ '' + c.function.arguments }}"))
    end = qwen_like().token_to_id("<|im_end|>")
    for arguments in ({"a": "<|im_end|>"}, {"<|im_end|>": 1}):
        messages = [turn("user", "x"), turn("assistant", "", tool_calls=[call("now", arguments)])]
        assert "<|im_end|>" in text.render(messages)
        assert end not in text.encode_chat(messages)


def test_numbers_of_tools_in_the_system_message_are_written_as_in_python() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": [1e-7, 1e22, 1.0, 123456.75, 5]}}}
    messages = [turn("user", "x"), turn("assistant", "", tool_calls=[call("f", {"a": 1e-7})]), result("f", "y")]
    shown = made(qwen_like(), "{% for m in messages %}{{ m.content }}{% endfor %}").render(messages, tools=[tool])
    assert json.dumps(tool) in shown
    assert '{"a": 1e-07}' in shown


def test_a_function_alone_is_rendered_as_a_tool() -> None:
    text = made(qwen_like(), FAMILIES["tools_hermes"])
    messages = [turn("user", "x")]
    assert text.render(messages, tools=[CLOCK]) == text.render(messages, tools=[TOOLS[1]])


def test_tools_and_variables_stay_for_all_turns_of_a_conversation() -> None:
    text = made(qwen_like(), FAMILIES["tools_hermes"])
    first = Conversation(text, "Be brief.", tools=TOOLS, variables={"enable_thinking": False})
    messages = [turn("system", "Be brief."), turn("user", "a")]
    given: dict[str, Any] = {"tools": TOOLS, "variables": {"enable_thinking": False}}
    assert first.ask("a") == text.encode_chat(messages, **given)
    first.answer(text.encode("b"))
    messages += [turn("assistant", "b"), turn("user", "c")]
    assert first.ask("c")[-40:] == text.encode_chat(messages, **given)[-40:]
    first.reset()
    assert first.ask("a") == text.encode_chat([turn("system", "Be brief."), turn("user", "a")], **given)
