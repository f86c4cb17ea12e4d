"""Tools: Python functions, descriptions in JSON, calls and their results.

Run: python -m pytest tests/runtime/test_api_tools.py"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bundle_samples
import fakes
import pytest
from engine_fixtures import made_engines
from writing_backend import writing

import streamfuse
from streamfuse import engines
from streamfuse.api import ToolCall
from streamfuse.api.options import prompt_config_of
from streamfuse.api.tools import choice_of, tools_of
from streamfuse.options import OptionError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.session import ParsedError
from streamfuse.runtime.text import Conversation, TextError

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Place:
    latitude: float
    longitude: float


class Thing: ...


def weather(city: str, unit: Literal["C", "F"] = "C", at: Place | None = None, copy: bool = False) -> Any:
    """Look up the weather
    of a city.

    It is not very exact.

    Args:
        city (str): Name of the city,
            in English.
        unit: Degrees: C or F
        at: Where exactly; overrides city

    Returns:
        unit: this is not an argument.
    """
    if city == "nowhere":
        raise KeyError("no such city")
    if at is not None:
        assert isinstance(at, Place)
    return "sunny" if unit == "F" else {"city": city, "at": at}


def not_utf8() -> str:
    return "\udcff"  # as `os.listdir` names a file whose name is not UTF-8


def silent() -> None:
    """
    Args:
        nothing: at all
    """
    raise ValueError


def without_hint(x): ...  # type: ignore[no-untyped-def]
def star(*x: int) -> None: ...
def by_place(x: int, /) -> None: ...
def odd(x: int, y: Thing) -> None: ...
async def later() -> None: ...
def unseen(x: Decimal) -> None: ...


class Thermometer:
    """Measure the temperature
    of a room."""

    def __call__(self, room: str) -> str:
        return f"{room}: 21"


class Late:
    async def __call__(self) -> None: ...


def test_a_function_is_described_by_its_name_docstring_and_type_hints() -> None:
    (tool,) = tools_of([weather])
    own = tool.to_dict()["function"]
    assert tool.to_dict()["type"] == "function"
    assert (own["name"], own["description"]) == ("weather", "Look up the weather of a city.")
    assert list(own["parameters"]["properties"]) == ["city", "unit", "at", "copy"]
    assert own["parameters"]["properties"]["city"] == {"type": "string", "description": "Name of the city, in English."}
    assert own["parameters"]["properties"]["unit"]["enum"] == ["C", "F"]
    assert own["parameters"]["properties"]["unit"]["description"] == "Degrees: C or F"
    assert own["parameters"]["required"] == ["city"]
    assert own["parameters"]["additionalProperties"] is False
    assert tools_of([silent])[0].description == ""


def test_a_partial_and_a_callable_object_are_tools() -> None:
    (bound, measured) = tools_of([partial(partial(weather, "Rome"), unit="F"), Thermometer()])
    assert (bound.name, bound.description) == ("weather", "Look up the weather of a city.")
    assert list(bound.parameters["properties"]) == ["at", "copy"]
    assert bound.answer({}) == "sunny"
    assert bound.answer({"unit": "C"}) == "sunny"  # what is bound is not the model's to say
    named = partial(weather, "Paris")
    named.__name__ = "weather_of_paris"  # type: ignore[attr-defined]
    assert [tool.name for tool in tools_of([partial(weather), named])] == ["weather", "weather_of_paris"]
    assert (measured.name, measured.description) == ("Thermometer", "Measure the temperature of a room.")
    assert measured.answer({"room": "kitchen"}) == "kitchen: 21"


def test_a_tool_in_json_is_taken_with_and_without_its_type() -> None:
    inner = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    whole = {"type": "function", "function": inner}
    assert tools_of([inner]) == tools_of([whole])
    assert tools_of([whole])[0].to_dict() == whole
    assert tools_of([{"name": "now"}])[0].parameters["additionalProperties"] is False


def test_a_call_gives_the_function_typed_arguments_and_its_result_becomes_text() -> None:
    (tool,) = tools_of([weather])
    assert tool.answer({"city": "Rome", "unit": "F"}) == "sunny"
    assert tool.answer({"city": "Rome", "at": {"latitude": 42, "longitude": 12.5}}) == (
        '{"city":"Rome","at":{"latitude":42.0,"longitude":12.5}}'
    )


def test_what_goes_wrong_in_a_call_is_text_for_the_model() -> None:
    (tool, quiet, described) = tools_of([weather, silent, {"name": "add"}])
    assert tool.answer({"city": "nowhere"}) == "error: 'no such city'"
    assert tool.answer({"unit": "K"}) == "error: city: Field required; unit: Input should be 'C' or 'F'"
    assert quiet.answer({}) == "error: ValueError"
    (named,) = tools_of([not_utf8])
    assert named.answer({}).startswith("error: 'utf-8' codec can't encode character")
    assert described.answer({}) == "error: there is no function for the tool add here"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([without_hint], "tools: the parameter x of without_hint has no type hint"),
        ([star], "tools: the parameter x of star cannot be given by name"),
        ([by_place], "tools: the parameter x of by_place cannot be given by name"),
        ([odd], "tools: there is no JSON schema of odd.y: Thing is not a type of JSON values"),
        ([later], "tools: later is a coroutine; give a function that returns its result"),
        ([Late()], "tools: Late is a coroutine; give a function that returns its result"),
        ([unseen], "tools: the parameters of unseen cannot be read (name 'Decimal' is not defined); give a function"),
        (
            [max],
            "tools: the parameters of max cannot be read (no signature found for builtin <built-in function max>); "
            "wrap it in a function with type hints",
        ),
        ([4], "tools: tool 1 must be a function or a dict, not 4"),
        ("x", "tools must be a list of functions or tool descriptions, not 'x'"),
        ({"name": "x"}, "tools must be a list of functions or tool descriptions, not {"),
        (5, "tools must be a list"),
        ([weather, {"x": 1}], 'tools: tool 2 needs a "name"'),
        ([{"name": 3}], 'tools: tool 1: its "name" must be text, not 3'),
        ([{"name": "a", "parameters": 4}], 'tools: tool 1: its "parameters" must be a JSON schema, not 4'),
        ([{"name": "a", "parameters": {"enum": {1}}}], "tools: tool 1 is not JSON: "),
        ([weather, weather], "tools: there are two tools with the name weather; give each its own"),
    ],
)
def test_what_is_no_tool_is_named(given: object, sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        tools_of(given)
    assert str(caught.value).startswith(sentence)
    assert caught.value.flags.startswith("--tools")


def test_many_tools_are_read_in_time() -> None:
    started = time.process_time()
    assert len(tools_of({"name": f"function_{number}"} for number in range(10_000))) == 10_000
    assert time.process_time() - started < 1.5  # a tenth of a second


def test_the_choice_of_a_tool_is_one_of_three_words_or_a_name() -> None:
    tools = tools_of([weather])
    assert [choice_of(choice, tools) for choice in ("auto", "required", "none", "weather")] == [
        "auto", "required", "none", "weather",
    ]  # fmt: skip
    with pytest.raises(OptionError, match=r"^tool_choice must be one of auto, required, none, weather, not 'snow'$"):
        choice_of("snow", tools)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tool_choice": "required"}, "tool_choice required needs tools"),
        ({"tools": [weather], "tool_choice": "snow"}, "tool_choice must be one of auto, required, none, weather"),
        ({"tool_choice": "required", "schema": {}}, "schema and tool_choice required do not go together; with schema"),
        ({"template_variables": 3}, "template_variables must hold names and values, not 3"),
        ({"template_variables": {"x": {1}}}, "template_variables cannot be written as JSON: "),
        ({"documents": "x"}, "documents must be a list of dicts, not 'x'"),
        ({"documents": ["x"]}, "documents must hold names and values, not 'x'"),
    ],
)
def test_options_of_the_prompt_that_are_wrong_are_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        prompt_config_of(**options)
    assert str(caught.value).startswith(sentence)


def test_documents_are_a_variable_of_the_template() -> None:
    found = prompt_config_of(documents=[{"text": "a"}], template_variables={"enable_thinking": False}, tools=[weather])
    assert found.variables == {"enable_thinking": False, "documents": [{"text": "a"}]}
    assert [tool["function"]["name"] for tool in found.descriptions] == ["weather"]
    assert prompt_config_of(tools=[weather], schema={}).tool_choice is None


CALLED: list[Any] = []


def choose(letter: Literal["a", "b"], loud: bool) -> Any:
    """Choose a letter."""
    CALLED.append((letter, loud))
    return {"chosen": letter}


def fail(letter: Literal["c"]) -> None:
    """Choose a letter that there is not."""
    raise LookupError(f"there is no {letter}")


ODD = {"name": "odd", "parameters": {"type": "object", "required": ["x", "y"], "properties": {
    "x": {"type": "array", "uniqueItems": True, "maxItems": 2}, "y": {"enum": ["a", "b"]}}}}  # fmt: skip
LETTER = {"type": "object", "properties": {"of": {"enum": ["a", "b"]}}, "required": ["of"],
          "additionalProperties": False}  # fmt: skip
THINKING = bundle_samples.CHAT_TEMPLATE + "{{ '<think>\\n' }}{# </think> #}"
WAYS: list[dict[str, Any]] = [{"speculative": False}, {}, {"width": 4}, {"width": 8}]


made = made_engines(bundle_samples.PrintableBackend)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLED.clear()


def bundle_of(folder: Path, template: str = bundle_samples.CHAT_TEMPLATE) -> Path:
    """A bundle with room for tools in the prompt, a token per byte."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["cache"]["capacity"] = 4096
        manifest["model"]["chat_template"] = template

    bundle_samples.edit_manifest(bundle_samples.write_bundle(folder), edit)
    return folder


@pytest.fixture
def model(made: list[fakes.ArithmeticBackend], tmp_path: Path) -> Iterator[streamfuse.Model]:
    with streamfuse.load(bundle_of(tmp_path / "demo")) as model:
        yield model


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 3}], ids=["greedy", "sampled"])
def test_a_required_call_fits_its_tool_and_speculation_does_not_change_it(
    model: streamfuse.Model, sampling: dict[str, Any]
) -> None:
    options = {"tools": [choose], "tool_choice": "required", "max_new_tokens": 200, **sampling}
    answers = [model.generate("x", **options, **way) for way in WAYS]
    assert {tuple(answer.tokens) for answer in answers} == {tuple(answers[0].tokens)}
    (call,) = answers[0].tool_calls
    assert isinstance(call, ToolCall)
    assert (call.name, answers[0].text, answers[0].finish_reason) == ("choose", "", "stop")
    assert call.arguments["letter"] in ("a", "b")
    assert call.arguments["loud"] in (True, False)
    assert CALLED == []  # only a chat calls functions, where it is asked to


def test_a_call_has_a_channel_of_its_own(model: streamfuse.Model) -> None:
    with model.stream("x", tools=[choose], tool_choice="choose", max_new_tokens=200) as pieces:
        found = list(pieces)
    assert {piece.channel for piece in found if piece.text} == {"tool_call"}
    assert '"name": "choose"' in "".join(piece.text for piece in found)
    assert [piece.token for piece in found if piece.token is not None] == pieces.token_ids
    with model.stream("x", tools=[choose], tool_choice="none", max_new_tokens=20) as pieces:
        assert {piece.channel for piece in pieces} == {"answer"}
    assert pieces.result.tool_calls == []


def test_a_chat_calls_functions_and_sends_their_results_until_there_is_an_answer(model: streamfuse.Model) -> None:
    with model.chat(tools=[choose], max_new_tokens=200) as chat:
        answer = chat.send("x", tool_choice="required", max_tool_rounds=4)
        question, call, result, last = chat.messages
    assert len(CALLED) == 1
    assert answer.tool_calls == []
    assert set(answer.text) <= set("abcdefgh")
    assert (question["role"], call["role"], result["role"], last["role"]) == ("user", "assistant", "tool", "assistant")
    assert json.loads(result["content"]) == {"chosen": CALLED[0][0]}
    assert last["content"] == answer.text


def test_the_answer_to_results_is_as_free_as_the_call_was(model: streamfuse.Model) -> None:
    """The choice of a turn replaces what restricts the chat's answers, in the rounds of the turn too."""
    with model.chat(tools=[choose], regex="[x-z]{5}", max_new_tokens=200) as chat:
        answer = chat.send("x", tool_choice="required", max_tool_rounds=1)
        assert (len(CALLED), answer.tool_calls) == (1, [])
        assert set(answer.text) <= set("abcdefgh")
        assert re.fullmatch("[x-z]{5}", chat.send("y").text)
    with model.chat(tools=[choose], tool_choice="required", max_new_tokens=200) as chat:
        assert chat.send("x", max_tool_rounds=1).tool_calls == []


def test_what_a_function_raises_is_its_result_and_the_model_goes_on(model: streamfuse.Model) -> None:
    with model.chat(tools=[fail], max_new_tokens=200) as chat:
        chat.send("x", tool_choice="required", max_tool_rounds=1)
        assert [message["content"] for message in chat.messages if message["role"] == "tool"] == [
            "error: there is no c"
        ]
        assert len(chat.messages) == 4


def test_a_stop_while_a_function_runs_ends_the_rounds(model: streamfuse.Model) -> None:
    for stop_model in (False, True):
        with model.chat(max_new_tokens=200) as chat:

            def hold() -> str:
                (model if stop_model else chat).stop()  # noqa: B023
                return "done"

            answer = chat.send("x", tools=[hold], tool_choice="required", max_tool_rounds=4)
            assert [call.name for call in answer.tool_calls] == ["hold"]
            assert [message["role"] for message in chat.messages] == ["user", "assistant"]
            assert chat.send_tool_results(["done"]).tokens, "a stop ends earlier requests only"


def test_a_question_that_is_stopped_before_its_first_token_has_no_calls_of_an_earlier_answer(
    model: streamfuse.Model,
) -> None:
    with model.chat(max_new_tokens=200) as chat:
        called = chat.send("x", tools=[choose], tool_choice="required", max_tool_rounds=0)
        assert called.tool_calls
        with chat.stream("Never mind.") as generation:
            generation.stop()
            generation.finish()
            stopped = generation.result
        assert (stopped.finish_reason, stopped.tokens, stopped.tool_calls) == ("stopped", [], [])
        with chat.stream_tool_results(["done"] * len(called.tool_calls)) as generation:
            generation.stop()
            generation.finish()
            assert generation.result.tool_calls == called.tool_calls, "they have no results again"
        assert chat.send_tool_results(["done"] * len(called.tool_calls)).tokens


def test_after_a_stop_the_functions_of_the_calls_that_are_left_are_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>\n' for name in ("hold", "later")
    )
    monkeypatch.setattr(engines, "engines_of", bundle_samples.fake_engines(writing({"x": calls}))[1])
    called: list[str] = []
    with streamfuse.load(bundle_of(tmp_path / "demo")) as model, model.chat(max_new_tokens=400) as chat:

        def hold() -> str:
            called.append("hold")
            chat.stop()
            return "done"

        def later() -> None:
            called.append("later")

        answer = chat.send("x", tools=[hold, later], max_tool_rounds=4)
        assert [call.name for call in answer.tool_calls] == ["hold", "later"]
        assert called == ["hold"]


def test_results_can_be_sent_by_hand(model: streamfuse.Model) -> None:
    with model.chat(tools=[{"name": "now"}], max_new_tokens=200) as chat:
        (call,) = chat.send("x", tool_choice="required").tool_calls
        assert chat.call_tools([call]) == ["error: there is no function for the tool now here"]
        answer = chat.send_tool_results([{"tool_call_id": call.id, "content": "noon"}])
        assert chat.messages[2]["content"] == "noon"
        with pytest.raises(TextError, match="no tool was called"):
            chat.send_tool_results(["again"])
        assert chat.messages[-1]["content"] == answer.text
        assert len(chat.send("y", tool_choice="none").text) > 0
    unknown = ToolCall("1", "later", {})
    with model.chat(tools=[choose]) as chat:
        assert chat.call_tools([unknown]) == ["error: there is no tool later; the tools are choose"]
        with pytest.raises(OptionError, match="max_tool_rounds must be an integer of at least 0, not -1"):
            chat.send("x", max_tool_rounds=-1)


def test_a_conversation_with_tool_turns_may_be_asked_at_once(model: streamfuse.Model) -> None:
    with model.chat(tools=[choose], max_new_tokens=200) as chat:
        chat.send("x", tool_choice="required", max_tool_rounds=1)
        *messages, last = chat.messages
    assert model.generate(messages=messages, tools=[choose], max_new_tokens=200).text == last["content"]


def test_results_of_earlier_calls_have_the_names_of_their_tools(
    made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    """Where they have none, as in requests to the server, rows of training data and histories of apps."""
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "When?", "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "At noon."},
        {"role": "user", "content": "And now?"},
    ]
    template = "{% for m in messages %}<{{ m.role }} {{ m.name }}>{{ m.content }}{% endfor %}"
    with streamfuse.load(bundle_of(tmp_path / "named", template)) as model:
        for turns in (messages, messages[:4]):
            assert "<tool now>noon" in model.tokenizer.decode(model.encode(messages=turns))
        for history, asked in ((messages[:4], messages[4:]), (messages[:2], messages[2:])):
            conversation = Conversation(model.tokenizer, history=history)
            assert "<tool now>noon" in model.tokenizer.decode(conversation.ask_messages(asked))
            assert conversation.messages[2] == messages[2]
        for other in ([5], [{"id": "c1"}], [{"id": [], "function": "now"}], {"id": "c1"}):
            odd = [messages[0], {**messages[1], "tool_calls": other}, *messages[2:]]
            assert "<tool >noon" in model.tokenizer.decode(model.encode(messages=odd))


def test_thinking_has_a_channel_of_its_own_and_is_no_answer(
    made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with streamfuse.load(bundle_of(tmp_path / "thinks", THINKING)) as model:
        with model.stream("x", regex="[a-c]{3}</think>[d-e]{2}", max_new_tokens=40) as pieces:
            found = [(piece.channel, piece.text) for piece in pieces if piece.text]
        result = pieces.result
        assert re.fullmatch("[a-c]{3}", result.thinking)
        assert re.fullmatch("[d-e]{2}", result.text)
        assert "".join(text for channel, text in found if channel == "thinking") == result.thinking
        with model.chat(regex="[a-c]{3}</think>[d-e]{2}") as chat:
            assert re.fullmatch("[d-e]{2}", chat.send("x").text)


def test_an_answer_with_a_schema_is_never_thinking(made: list[fakes.ArithmeticBackend], tmp_path: Path) -> None:
    given: dict[str, Any] = {"properties": {"of": {"enum": ["a", "b"]}}, "required": ["of"]}
    given |= {"type": "object", "additionalProperties": False}
    with streamfuse.load(bundle_of(tmp_path / "thinks", THINKING)) as model:
        for answer in (
            model.generate("x", schema=given, max_new_tokens=100),
            model.chat(max_new_tokens=100).send("x", schema=given),
        ):
            assert (answer.parsed in ({"of": "a"}, {"of": "b"}), answer.thinking) == (True, "")


def test_variables_and_documents_reach_the_template(made: list[fakes.ArithmeticBackend], tmp_path: Path) -> None:
    template = bundle_samples.CHAT_TEMPLATE + "{{ mood }}{% for one in documents or [] %}[{{ one.text }}]{% endfor %}"
    given: dict[str, Any] = {"template_variables": {"mood": "glad"}, "documents": [{"text": "snow"}]}
    with streamfuse.load(bundle_of(tmp_path / "varies", template)) as model:
        assert model.tokenizer.decode(model.encode("x", **given)).endswith("assistant\nglad[snow]")
        assert model.generate("x", **given).statistics.prompt_tokens == len(model.encode("x", **given))
        with model.chat(**given) as chat:
            first = chat.send("x").statistics.prompt_tokens
        with model.chat() as chat:
            assert chat.send("x").statistics.prompt_tokens == first - len("glad[snow]")


def test_tools_and_variables_do_not_go_with_a_prompt_that_the_template_does_not_read(model: streamfuse.Model) -> None:
    for prompt, raw in (("x", True), ([70], False)):
        for options in ({"tools": [choose]}, {"template_variables": {"mood": 1}}):
            with pytest.raises(PromptError, match="is for the chat template, so it does not go with"):
                model.generate(prompt, raw=raw, **options)  # type: ignore[arg-type]


def test_parameters_that_a_grammar_cannot_express_are_refused_before_the_engine_is_loaded(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    for choice in ("required", "auto"):
        with pytest.raises(
            OptionError, match=r"^tools: the parameters of the function odd: #/properties/x/uniqueItems: "
        ):
            model.generate("x", tools=[{**ODD, "strict": True}], tool_choice=choice)
    with pytest.raises(OptionError, match=r"^tools: .*uniqueItems"):
        model.generate("x", tools=[{**ODD, "strict": True}], tool_choice="auto", schema=LETTER)
    assert made == []


def test_parameters_that_are_not_strict_are_restricted_as_far_as_a_grammar_can(model: streamfuse.Model) -> None:
    impossible = {"name": "impossible", "parameters": {"allOf": [{"type": "string"}]}}
    (call,) = model.generate("x", tools=[ODD], tool_choice="required", max_new_tokens=400).tool_calls
    assert call.arguments["y"] in ("a", "b")
    unique = {"properties": {"x": {"uniqueItems": True}}}
    nested = {"type": "object", "required": ["n"], "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
    for part in ({"dependentSchemas": {"n": unique}}, {"if": {"required": ["n"]}, "then": unique}):
        tool = {"name": "nested", "parameters": {**nested, **part}}
        (call,) = model.generate("x", tools=[tool], tool_choice="required", max_new_tokens=400).tool_calls
        assert call.arguments in ({"n": 1}, {"n": 2})
    (call,) = model.generate("x", tools=[impossible, choose], tool_choice="choose", max_new_tokens=200).tool_calls
    assert call.name == "choose"
    assert model.generate("x", tools=[impossible], max_new_tokens=4).text


def test_an_answer_fits_a_schema_or_is_a_call_where_the_model_may_choose(model: streamfuse.Model) -> None:
    kinds = set()
    for seed in range(12):
        options: dict[str, Any] = {"tools": [choose], "schema": LETTER, "tool_choice": "auto", "max_new_tokens": 200}
        sampling = {"temperature": 3.0, "seed": seed}
        answers = [model.generate("x", **options, **sampling, **way) for way in WAYS]
        assert {tuple(answer.tokens) for answer in answers} == {tuple(answers[0].tokens)}
        answer = answers[0]
        assert answer.finish_reason == "stop"
        if answer.tool_calls:
            assert (answer.text, answer.tool_calls[0].name) == ("", "choose")
            with pytest.raises(ParsedError, match="is a tool call"):
                _ = answer.parsed
        else:
            assert answer.parsed in ({"of": "a"}, {"of": "b"})
        kinds.add(bool(answer.tool_calls))
    assert kinds == {True, False}
    with model.chat(max_new_tokens=200) as chat:
        answer = chat.send("x", max_tool_rounds=9, temperature=3.0, seed=1, **{**options, "tool_choice": "none"})
        assert answer.parsed in ({"of": "a"}, {"of": "b"})


@pytest.mark.parametrize("by_turn", [True, False])
def test_a_chat_calls_functions_until_an_answer_fits_the_schema(model: streamfuse.Model, by_turn: bool) -> None:
    given: dict[str, Any] = {"tools": [choose], "schema": LETTER, "tool_choice": "auto", "temperature": 3.0}
    for seed in range(20):
        with model.chat(max_new_tokens=200, **({} if by_turn else given)) as chat:
            answer = chat.send("x", max_tool_rounds=20, seed=seed, **(given if by_turn else {}))
            assert answer.parsed in ({"of": "a"}, {"of": "b"})
            if CALLED:
                assert [message["role"] for message in chat.messages][:3] == ["user", "assistant", "tool"]
                return
    raise AssertionError("no seed calls a function")


def test_an_answer_with_a_schema_is_no_call_though_it_looks_like_one(
    made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    """Llama 3 writes calls as JSON that begins with a name."""
    given: dict[str, Any] = {"properties": {"name": {"enum": ["choose"]}, "arguments": {"const": {}}}}
    given |= {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}
    with streamfuse.load(bundle_of(tmp_path / "llama", bundle_samples.CHAT_TEMPLATE + "{# ipython #}")) as model:
        for answer in (
            model.generate("x", tools=[choose], schema=given, max_new_tokens=100),
            model.chat(tools=[choose], max_new_tokens=100).send("x", schema=given),
        ):
            assert (answer.parsed, answer.tool_calls) == ({"name": "choose", "arguments": {}}, [])
        with model.chat(tools=[choose], max_new_tokens=200) as chat:
            chat.send("x", schema=given)
            assert len(chat.send("x", tool_choice="required").tool_calls) == 1


@pytest.mark.parametrize(
    "message",
    [{"role": "system", "content": "x"}, {"role": "user", "content": "x", "name": "bob"}],
    ids=["of the system alone", "with a name"],
)
def test_any_last_message_is_answered_with_channels_and_tools(
    made: list[fakes.ArithmeticBackend], tmp_path: Path, message: dict[str, str]
) -> None:
    with streamfuse.load(bundle_of(tmp_path / "thinks", THINKING)) as model:
        result = model.generate(messages=[message], regex="[a-c]{3}</think>[d-e]{2}", max_new_tokens=40)
        assert re.fullmatch("[a-c]{3}", result.thinking)
    with streamfuse.load(bundle_of(tmp_path / "demo")) as model:
        result = model.generate(messages=[message], tools=[choose], tool_choice="required", max_new_tokens=200)
        assert [call.name for call in result.tool_calls] == ["choose"]
