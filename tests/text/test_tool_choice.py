"""Constraints of answers with tools: a call that is written fits its function, whatever the model would rather write.

Run: python -m pytest tests/text/test_tool_choice.py
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from heap import heap_bytes
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
    made,
    pairs,
)
from tool_samples import CLOCK, TOOLS, WEATHER

from streamfuse.runtime.constraint import MAY_END, MUST_END, UNRESTRICTED
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import Conversation, GrammarError, TextError, Tokenizer

JSON_FAMILIES = {
    "hermes": HERMES, "no tools": CHATML, "gemma 3 as published": NO_TOOLS, "llama": LLAMA, "mistral": MISTRAL,
    "mistral, newer": MINISTRAL, "phi 4": PHI_4, "granite": GRANITE, "jamba": JAMBA, "minimax": MINIMAX,
    "nemotron": NEMOTRON, "command": COMMAND, "llama 4": LLAMA_4,
    "a form of its own": OWN_FORMS["names and values between tags"],
}  # fmt: skip
OTHERS = {
    "gemma": GEMMA, "gemma 3": GEMMA_3, "gemma 4": GEMMA_4, "lfm2": LFM2, "qwen xml": QWEN_XML, "seed": SEED,
    "minicpm": MINICPM, "python alone": PYTHONIC,
}  # fmt: skip
CALLS = {  # as each family writes one
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>',
    "no tools": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    "mistral, newer": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    "phi 4": '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    "gemma 3 as published": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "gemma": "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
    "gemma 3": '```tool_code\nget_weather(city="Paris")\n```',
    "gemma 4": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
    "lfm2": '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
    "qwen xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
}
CALLS |= {
    "jamba": '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>',
    "minimax": '<tool_calls>\n{"name": "now", "arguments": {}}\n</tool_calls>',
    "nemotron": '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
    "command": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "now", "parameters": {}}]<|END_ACTION|>',
    "llama 4": '{"name": "get_weather", "parameters": {"city": "Paris"}}<|python_end|>',
    "a form of its own": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "seed": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n"
    "</seed:tool_call>",
    "minicpm": '<|tool_call_start|>\n```python\nget_weather(city="Paris")\n```\n<|tool_call_end|>',
    "python alone": '[get_weather(city="Paris")]',
}
ALONE = ("llama", "llama 4", "python alone")  # calls without marks: nothing before them, and nothing behind
FAMILIES = {**JSON_FAMILIES, **OTHERS}
SCHEMAS = {function["name"]: function["parameters"] for function in (WEATHER, CLOCK)}


def asked(template: str, tools: Any = TOOLS) -> tuple[Tokenizer, Conversation]:
    text = made(template)
    conversation = Conversation(text, tools=tools)
    conversation.ask("x")
    return text, conversation


def takes(constraint: Grammar, tokens: list[int]) -> bool:
    """Whether all of these tokens are allowed, which are then accepted."""
    for token in tokens:
        if not constraint.allows([token])[0]:
            return False
        assert constraint.mask()[token]
        constraint.accept(token)
    return True


@lru_cache
def plain(text: Tokenizer) -> frozenset[int]:
    """Tokens of letters, which end soon."""
    return frozenset(text.encode_rendered('a b c 1 2 " } ] , :'))


def written(text: Tokenizer, constraint: Grammar, rng: random.Random) -> list[int]:
    """A random answer under a constraint."""
    taken: list[int] = []
    while not constraint.state() & MUST_END:
        tokens = constraint.forced(8)
        if not tokens:
            allowed = np.flatnonzero(constraint.mask())
            likely = [token for token in allowed if token in plain(text)]
            tokens = [int(rng.choice(likely if likely and rng.random() < 0.9 else list(allowed)))]
        for token in tokens:
            constraint.accept(token)
        taken += tokens
        assert len(taken) < 3000
    return taken


@pytest.mark.parametrize("choice", ["required", "get_weather", "now"])
@pytest.mark.parametrize("name", JSON_FAMILIES)
def test_a_call_that_is_required_is_one_valid_call(name: str, choice: str) -> None:
    for seed in range(4):
        text, conversation = asked(JSON_FAMILIES[name])
        tokens = written(text, conversation.call_constraint(choice), random.Random(seed))
        stream = conversation.stream()
        for token in tokens:
            stream.push(token)
        stream.end()
        (call,) = pairs(conversation.tool_calls)
        assert conversation.messages[-1]["content"] == ""
        assert call[0] == choice or choice == "required"
        jsonschema.validate(call[1], SCHEMAS[call[0]])


@pytest.mark.parametrize("before", ["so", "<think>so"])
def test_where_anything_may_be_written_an_end_token_that_the_caller_ignores_is_accepted(before: str) -> None:
    text, conversation = asked(HERMES + "{# <think> </think> #}")
    constraint = conversation.call_constraint("auto")
    end = 2
    for token in [*text.encode_rendered(before), end]:
        constraint.accept(token)
    assert constraint.state() == MAY_END | UNRESTRICTED
    with pytest.raises(TextError, match="no token of a text"):
        conversation.call_constraint("none").accept(end)


def spelling(mark: str, before: str, behind: str) -> str:
    """A template that writes calls as JSON with this in front of them and behind them."""
    return (
        (
            f"{{# {mark} #}}" + "{% if tools %}{{ tools | tojson }}{% endif %}"
            "{% for m in messages %}{{ m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
            '{% set f = c.function %}{{ \'BEFORE{"name": "\' + f.name + \'", "arguments": \' }}'
            "{{ (f.arguments | tojson) + '}BEHIND' }}{% endfor %}{{ '\n' }}{% endfor %}"
        )
        .replace("BEFORE", before)
        .replace("BEHIND", behind)
    )


SPELT = [  # the mark, what stands between it and a call, and behind that
    ("<tool_call>", "", "</tool_call>"),
    ("<tool_call>", " ", "\n</tool_call>"),
    ("<tool_call>", "\n", "\n</tool_call>"),
    ("[TOOL_CALLS]", " [", "]"),
    ("<|tool_call|>", "[\n    ", "\n]"),
    ("<tool_calls>", "[\n    ", "\n]</tool_calls>"),
]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("mark", "before", "behind"), SPELT)
def test_calls_have_the_white_space_that_their_template_writes(
    mark: str, before: str, behind: str, choice: str
) -> None:
    text, conversation = asked(spelling(mark, mark + before, behind).replace("\n    ", "\\n    "))
    answer = mark + before + '{"name": "now", "arguments": {}}'
    constraint = conversation.call_constraint(choice)
    assert takes(constraint, text.encode_rendered(answer))
    if behind.startswith(("\n]", "]")) and not behind.endswith(">"):
        behind = "]"  # where no mark ends a call, nothing tells what belongs to it
    assert takes(constraint, text.encode_rendered(behind))
    assert constraint.state() & MAY_END
    other = " " if before != " " else "\n"
    wrong = mark + other + before + '{"name": "now"'
    assert not takes(conversation.call_constraint(choice), text.encode_rendered(wrong))


def test_calls_in_python_without_marks_end_with_their_bracket() -> None:
    calls = """[get_weather(city="]", tags=['a)]', "b"], x={"y": (1,)}), now()]"""
    for choice in ("auto", "required"):
        text, conversation = asked(PYTHONIC)
        constraint = conversation.call_constraint(choice)
        assert takes(constraint, text.encode_rendered(calls[:-1]))
        assert not constraint.state() & MUST_END
        assert takes(constraint, text.encode_rendered("]"))
        assert constraint.state() == MAY_END | MUST_END
        conversation.answer(text.encode_rendered(calls))
        assert [name for name, _ in pairs(conversation.tool_calls)] == ["get_weather", "now"]


def test_white_space_without_end_is_not_taken_from_a_template() -> None:
    text, conversation = asked(spelling("<tool_call>", "<tool_call>" + " " * 50, "</tool_call>"))
    assert takes(conversation.call_constraint("required"), text.encode_rendered(CALLS["hermes"]))


@pytest.mark.parametrize(
    ("template", "two"),
    [
        (MISTRAL, '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'),
        (MINISTRAL, "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}"),
    ],
)
def test_calls_may_be_several_where_none_is_required(template: str, two: str) -> None:
    for choice, several in (("auto", True), ("required", False)):
        text, conversation = asked(template)
        tokens = text.encode_rendered(two)
        assert takes(conversation.call_constraint(choice), tokens) == several
        stream = conversation.stream()
        for token in tokens:
            stream.push(token)
        stream.end()
        assert [name for name, _ in pairs(conversation.tool_calls)] == ["now", "now"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_call_in_the_form_of_its_family_is_allowed(name: str, choice: str) -> None:
    text, conversation = asked(FAMILIES[name])
    constraint = conversation.call_constraint(choice)
    assert takes(constraint, text.encode_rendered(CALLS[name]))
    ends = constraint.state()
    if choice == "required" or name in (*ALONE, "mistral", "granite"):
        assert ends == MAY_END | MUST_END
        assert not constraint.mask().any()
    elif name == "mistral, newer":
        assert ends == MAY_END
        assert np.flatnonzero(constraint.mask()).tolist() == text.encode_rendered("[TOOL_CALLS]")
    else:
        assert ends == MAY_END | UNRESTRICTED
        assert takes(constraint, text.encode_rendered("and " + CALLS[name]))


def test_the_mask_of_a_call_is_not_that_of_the_call_before() -> None:
    fields = {"a": {"type": "string"}, "b": {"type": "string"}}
    parameters = {"type": "object", "properties": fields, "additionalProperties": False}
    text = made(HERMES, '",')
    (end_of_one,) = text.encode_rendered('",')
    conversation = Conversation(text, tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    conversation.ask("x")
    constraint = conversation.call_constraint("auto")

    def write(words: str) -> None:
        for token in text.encode_rendered(words):
            constraint.accept(token)

    call = '<tool_call>\n{"name": "f", "arguments": {"%s": "x'
    write(call % "a")
    assert constraint.mask()[end_of_one], "b may follow"
    write('"}}\n</tool_call>\n' + call % "b")
    assert not constraint.allows([end_of_one])[0]
    assert not constraint.mask()[end_of_one]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_other_function_is_called(name: str) -> None:
    text, conversation = asked(FAMILIES[name])
    call = CALLS[name].replace("get_weather", "get_water").replace("now", "new")
    for choice in ("auto", "required"):
        is_text = choice == "auto" and name == "python alone"  # and no call
        assert takes(conversation.call_constraint(choice), text.encode_rendered(call)) == is_text
    other = CALLS[name].replace("get_weather", "now") if "get_weather" in CALLS[name] else CALLS[name]
    assert not takes(conversation.call_constraint("get_weather"), text.encode_rendered(other))


@pytest.mark.parametrize("name", FAMILIES)
def test_text_before_a_call_is_free_and_where_none_is_wanted_there_is_none(name: str) -> None:
    text, conversation = asked(FAMILIES[name])
    words = text.encode_rendered("I think <tool { so. ")
    free, none = conversation.call_constraint("auto"), conversation.call_constraint("none")
    assert free.state() == MAY_END | UNRESTRICTED
    assert none.state() == MAY_END
    assert takes(free, words)
    assert takes(none, words)
    assert free.forced(8) == none.forced(8) == []
    call = text.encode_rendered(CALLS[name])
    if name not in ALONE:
        assert takes(free, call)
        assert not takes(none, call)
    assert not takes(conversation.call_constraint("none"), call)
    assert conversation.call_constraint("none").mask().sum() > 200


@pytest.mark.parametrize("name", FAMILIES)
def test_dropped_tokens_leave_no_trace_across_the_borders_of_a_call(name: str) -> None:
    text, conversation = asked(FAMILIES[name])
    answer = CALLS[name] if name in ALONE else f"Well, {CALLS[name]} and {CALLS[name]}"
    tokens, rng = text.encode_rendered(answer), random.Random(5)
    constraint, length = conversation.call_constraint("auto"), 0
    states = [constraint.state()]
    for token in tokens:
        if not constraint.allows([token])[0]:
            break  # nothing follows a call that ends with the answer
        constraint.accept(token)
        states.append(constraint.state())
    tokens = tokens[: len(states) - 1]
    other = conversation.call_constraint("auto")
    for _ in range(120):
        if rng.random() < 0.5 and length:
            back = rng.randint(1, min(length, 40))
            other.rollback(back)
            length -= back
        else:
            more = rng.randint(0, 30)
            for token in tokens[length : length + more]:
                other.accept(token)
            length = min(length + more, len(tokens))
        assert other.state() == states[length]
        if length < len(tokens):
            assert other.allows(tokens[length : length + 1])[0]
        if states[length] == 0:
            assert not other.allows(text.encode_rendered("\u00e9"))[0] or "city" in answer


@pytest.mark.parametrize(
    "call",
    [
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        '{ "name" : "get_weather", "parameters": {"city": "Paris"}}',
        '[{"name": "get_weather", "parameters": {"city": "Paris"}}]',
        '\n {"name": "get_weather", "parameters": {"city": "Paris"}}',
    ],
)
def test_without_marks_no_spelling_of_a_call_is_written_where_none_is_wanted(call: str) -> None:
    text, conversation = asked(LLAMA)
    assert not takes(conversation.call_constraint("none"), text.encode_rendered(call))


@pytest.mark.parametrize(
    "answer",
    [
        '[{"name": "Alice", "age": 7}]',
        '{\n  "name": "Alice"\n}',
        '{"type": "circle"}',
        '{"type":"function","name":"now","parameters":{}}',
    ],
)
def test_json_that_does_not_begin_as_calls_do_is_any_text(answer: str) -> None:
    text, conversation = asked(LLAMA)
    assert takes(conversation.call_constraint("auto"), text.encode_rendered(answer))


@pytest.mark.parametrize("words", ["Sure. ", "[1]\n", "a" + " " * 40])
def test_a_marked_call_after_text_is_restricted(words: str) -> None:
    text, conversation = asked(LLAMA)
    mark = text.encode_rendered("<|python_tag|>")
    spelt = [*text.encode_rendered("<|python"), *text.encode_rendered("_tag|>")]
    for tokens in (mark, spelt):
        before = [*text.encode_rendered(words), *tokens]
        assert not takes(conversation.call_constraint("none"), before)
        for call, is_valid in (
            (CALLS["llama"], True),
            (CALLS["llama"].replace("get_weather", "x"), False),
            (CALLS["llama"].replace("city", "town"), False),
        ):
            constraint = conversation.call_constraint("auto")
            assert takes(constraint, before)
            assert takes(constraint, text.encode_rendered(call)) == is_valid
    assert takes(conversation.call_constraint("auto"), text.encode_rendered(words + CALLS["llama"]))


def test_a_call_with_its_type_is_restricted_like_others() -> None:
    text, conversation = asked(LLAMA)
    call = '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}'
    assert takes(conversation.call_constraint("auto"), text.encode_rendered(call))
    for wrong in (call.replace("get_weather", "get_water"), call.replace("city", "town")):
        assert not takes(conversation.call_constraint("auto"), text.encode_rendered(wrong))


def test_a_mark_in_a_text_of_an_argument_ends_no_call_that_is_required() -> None:
    text, conversation = asked(GEMMA_3)
    constraint = conversation.call_constraint("required")
    assert takes(constraint, text.encode_rendered('```tool_code\nget_weather(city="```python'))
    assert not constraint.state() & MUST_END
    assert takes(constraint, text.encode_rendered('")```'))
    assert constraint.state() & MUST_END


def test_where_a_mark_may_have_begun_only_a_valid_call_completes_it() -> None:
    """A token may end a mark and go on with what no call begins with."""
    text, conversation = asked(HERMES)
    constraint = conversation.call_constraint("auto")
    assert takes(constraint, text.encode_rendered("a <b c"))
    assert constraint.state() == MAY_END | UNRESTRICTED
    assert takes(constraint, text.encode_rendered(" <"))
    assert constraint.state() == MAY_END
    assert takes(constraint, text.encode_rendered(" d"))
    assert constraint.state() == MAY_END | UNRESTRICTED


@pytest.mark.parametrize("spelt", ["", "{# </think> #}"], ids=["opened alone", "and closed"])
def test_thoughts_that_the_prompt_begins_come_before_a_call_that_is_required(spelt: str) -> None:
    text, conversation = asked(CHATML + "<think>\n" + spelt)
    constraint = conversation.call_constraint("required")
    assert constraint.state() == UNRESTRICTED
    assert takes(constraint, text.encode_rendered("hm <tool_call> no.</think>\n\n" + CALLS["hermes"]))
    assert constraint.state() == MAY_END | MUST_END


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_a_mark_in_thoughts_begins_no_call(choice: str, prompt: str) -> None:
    template = CHATML + prompt + "{# </think> #}"
    text, conversation = asked(template)
    thoughts = ("" if prompt else "<think>") + "a <tool_call> b </think>\n"
    constraint = conversation.call_constraint(choice)
    assert takes(constraint, text.encode_rendered(thoughts))
    assert takes(constraint, text.encode_rendered(CALLS["hermes"])) == (choice == "auto")
    _, conversation = asked(template)
    conversation.answer(text.encode_rendered(thoughts + CALLS["hermes"]))
    assert len(conversation.tool_calls) == 1


def test_a_call_that_is_dropped_leaves_the_one_before_as_it_was() -> None:
    text, conversation = asked(LLAMA.replace("ipython", "") + "{# <tool_call> #}")
    constraint = conversation.call_constraint("auto")
    tokens = text.encode_rendered(CALLS["hermes"])
    assert takes(constraint, tokens)
    assert takes(constraint, text.encode_rendered(" <tool_call>"))
    constraint.rollback(5)
    assert takes(constraint, tokens[-3:])
    assert constraint.state() == MAY_END | UNRESTRICTED


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": {"city": {"type": "string"}}},
        {"$ref": "#/$defs/place", "$defs": {"place": {"properties": {"city": {"type": "string"}}}}},
    ],
)
def test_arguments_are_an_object_without_a_parameters_type(parameters: dict[str, Any]) -> None:
    text, conversation = asked(HERMES, [{"name": "now", "parameters": parameters}])
    constraint = conversation.call_constraint("required")
    assert takes(constraint, text.encode_rendered('<tool_call>\n{"name": "now", "arguments": '))
    for beginning in '["3n':
        assert not constraint.allows(text.encode_rendered(beginning))[0]
    assert takes(constraint, text.encode_rendered("{}}\n</tool_call>"))


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}), ('{"a": 1e999, "b": "1e999"}', {"a": 1e308, "b": "1e999"})],
)
@pytest.mark.parametrize("name", ["hermes", "mistral, newer"])
def test_arguments_that_the_grammar_allows_are_a_call(name: str, arguments: str, read: Any) -> None:
    call = {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        "mistral, newer": f"[TOOL_CALLS]f[ARGS]{arguments}",
    }[name]
    text, conversation = asked(FAMILIES[name], [{"name": "f", "parameters": {"type": "object"}}])
    tokens = text.encode_rendered(call)
    assert takes(conversation.call_constraint("required"), tokens)
    conversation.answer(tokens)
    assert pairs(conversation.tool_calls) == [("f", read)]


@pytest.mark.parametrize("called", ["files/read", "get weather", "a$b"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_function_whose_name_is_no_word_is_called_in_every_form(name: str, called: str) -> None:
    tool = {"name": called, "description": "Reads.", "parameters": WEATHER["parameters"]}
    text, conversation = asked(OTHERS[name], [tool])
    tokens = text.encode_rendered(CALLS[name].replace("get_weather", called))
    assert takes(conversation.call_constraint("required"), tokens)
    conversation.answer(tokens)
    assert pairs(conversation.tool_calls) == [(called, {"city": "Paris"})]


def test_a_call_is_forced_where_there_is_no_choice() -> None:
    text, conversation = asked(HERMES)
    constraint = conversation.call_constraint("now")
    tokens = constraint.forced(100)
    assert text.decode(tokens) == CALLS["no tools"]
    assert text.encode_rendered("<tool_call>")[0] == tokens[0]


@pytest.mark.parametrize(
    ("tools", "choice", "error", "words"),
    [
        (TOOLS, "other", TextError, "no tool has the name other; .* one of: get_weather, now"),
        ([], "required", TextError, "there are no tools"),
        (
            [{"name": "a", "strict": True, "parameters": {"properties": {"b": {"not": {"pattern": "x"}}}}}],
            "auto", GrammarError, "parameters of the function a: .*not",
        ),
        (
            [CLOCK, {"name": "a", "strict": True, "parameters": {"enum": [1]}}],
            "auto", GrammarError, "parameters of the function a: ",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_an_error(tools: Any, choice: str, error: type[Exception], words: str) -> None:
    _, conversation = asked(HERMES, tools)
    with pytest.raises(error, match=words):
        conversation.call_constraint(choice)


@pytest.mark.skipif(heap_bytes() is None, reason="only glibc says what its heap holds")
def test_white_space_before_a_call_without_marks_costs_no_memory() -> None:
    """It was kept once per token."""
    text, conversation = asked(LLAMA)
    constraint = conversation.call_constraint("auto")
    (newline,) = text.encode_rendered("\n")
    constraint.accept(newline)
    before = heap_bytes() or 0
    for _ in range(20_000):
        constraint.accept(newline)
    assert (heap_bytes() or 0) - before < 20e6
    assert takes(constraint, text.encode_rendered(CALLS["llama"]))
    assert constraint.state() & MUST_END


def test_a_bracket_and_much_white_space_are_no_call() -> None:
    text, conversation = asked(LLAMA)
    constraint = conversation.call_constraint("auto")
    assert takes(constraint, text.encode_rendered("{" + " " * 100 + '"name": 1'))
    assert constraint.state() & UNRESTRICTED
