"""Answers over HTTP, asked by OpenAI's own client: texts, streams, tools, schemas, usage.

The engine is the arithmetic model of fakes.py, which likes the letters a to h; everything else is real.
Run: python -m pytest tests/serve/test_serve_chat.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from bundle_samples import CHAT_TEMPLATE, PrintableBackend, fake_engines, manifest_fields, write_bundle
from served import CAPACITY, NAME, Served, allowed, running, serving
from tool_samples import CLOCK, TOOLS

import streamfuse
from streamfuse import engines

THINKING = CHAT_TEMPLATE + "{{ '<think>\\n' }}{# </think> #}"  # the prompt opens the thoughts
THINKS = CHAT_TEMPLATE + "{# <think></think> #}"  # the model does
CHOOSE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "choose",
        "parameters": {
            "type": "object",
            "properties": {"letter": {"enum": ["a", "b"]}, "loud": {"type": "boolean"}},
            "required": ["letter", "loud"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as served:
        yield served


def joined(stream: Any, field: str = "content") -> str:
    """The text of a stream's deltas."""
    return "".join(getattr(chunk.choices[0].delta, field, None) or "" for chunk in stream if chunk.choices)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 20},
        {"max_completion_tokens": 20, "temperature": 0.9, "top_p": 0.95, "seed": 3},
        {"max_tokens": 30, "temperature": 1.1, "seed": 4, "extra_body": {"top_k": 5, "min_p": 0.01, "width": 4}},
        {"max_tokens": 20, "extra_body": {"repetition_penalty": 1.3, "speculative": False}},
        {"max_tokens": 20, "extra_body": {"regex": "[a-d]{7}"}},
    ],
    ids=["greedy", "sampled", "filters", "plain", "regex"],
)
def test_an_answer_is_that_of_the_public_api_in_one_piece_and_as_a_stream(
    served: Served, options: dict[str, Any]
) -> None:
    own = {**options, **options.get("extra_body", {})}
    own.pop("extra_body", None)
    own["max_new_tokens"] = own.pop("max_tokens", None) or own.pop("max_completion_tokens")
    expected = served.model.generate("hi", **own)
    whole = served.ask(**options)
    assert whole.choices[0].message.content == expected.text
    assert whole.choices[0].finish_reason == expected.finish_reason
    assert joined(served.ask(stream=True, **options)) == expected.text


def test_messages_are_read_as_the_public_api_reads_them(served: Served) -> None:
    turns = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi\nthere"},
        {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"},
    ]  # fmt: skip
    expected = served.model.generate(messages=turns, max_new_tokens=12)
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    as_sent: Any = [
        {"role": "developer", "content": "be brief"}, {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": "yes", "refusal": None}, {"role": "user", "content": "why"},
    ]  # fmt: skip
    for messages in (turns, as_sent):
        found = served.client.chat.completions.create(model=NAME, messages=messages, max_tokens=12)
        assert found.choices[0].message.content == expected.text
        assert found.usage.prompt_tokens == expected.statistics.prompt_tokens


def test_usage_counts_tokens_those_of_the_cache_and_drafts(served: Served) -> None:
    served.model.reset()
    first, again = (served.ask("count", max_tokens=25, extra_body={"width": 4}).usage for _ in range(2))
    found = served.model.generate("count", max_new_tokens=25).statistics
    assert (first.prompt_tokens, first.completion_tokens) == (found.prompt_tokens, 25)
    assert first.total_tokens == first.prompt_tokens + 25
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens == found.prompt_tokens - 1
    details = again.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens >= 0


def test_a_server_without_speculation_drafts_where_a_request_wants_it(served: Served) -> None:
    def drafted(**fields: Any) -> int:
        details = plain.ask(max_tokens=20, extra_body={"width": 4, **fields}).usage.completion_tokens_details
        return int(details.accepted_prediction_tokens + details.rejected_prediction_tokens)

    with running(served.model, served.engines, speculative=False) as plain:
        assert drafted() == 0 < drafted(speculative=True)


def test_a_stream_has_its_usage_at_the_end_where_it_is_asked_for(served: Served) -> None:
    chunks = list(served.ask(stream=True, stream_options={"include_usage": True}, max_tokens=9))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 9
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [chunk.usage for chunk in served.ask(stream=True, max_tokens=9) if chunk.usage] == []


def test_without_a_limit_an_answer_may_fill_the_context(served: Served) -> None:
    found = served.ask("x" * (CAPACITY - 100))
    assert found.choices[0].finish_reason == "length"
    assert found.usage.total_tokens == CAPACITY


def test_a_seed_gives_the_same_text_and_none_gives_another(served: Served) -> None:
    seeded = {served.ask(temperature=1.5, seed=7, max_tokens=16).choices[0].message.content for _ in range(2)}
    free = {served.ask(temperature=1.5, max_tokens=16).choices[0].message.content for _ in range(3)}
    assert (len(seeded), len(free)) == (1, 3)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_text_before_it(served: Served, as_list: bool) -> None:
    whole = served.ask(max_tokens=20).choices[0].message.content
    stop = whole[10:12]
    found = served.ask(max_tokens=20, stop=[stop, "zzz"] if as_list else stop)
    assert found.choices[0].message.content == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    assert joined(served.ask(max_tokens=20, stop=stop, stream=True)) == whole[: whole.index(stop)]


class Choice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    letter: Literal["a", "b"]
    loud: bool


def test_an_answer_with_a_schema_is_parsed_by_the_client(served: Served) -> None:
    found = served.client.chat.completions.parse(
        model=NAME, messages=[{"role": "user", "content": "hi"}], response_format=Choice, max_tokens=60
    )
    assert isinstance(found.choices[0].message.parsed, Choice)
    assert found.choices[0].finish_reason == "stop"
    streamed = joined(
        served.ask(
            stream=True, max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": Choice.model_json_schema()}},
        )
    )  # fmt: skip
    assert Choice.model_validate_json(streamed)
    assert served.ask(response_format={"type": "text"}, max_tokens=5).choices[0].finish_reason == "length"


def test_a_json_object_is_an_object(served: Served) -> None:
    answer = served.ask(response_format={"type": "json_object"}, max_tokens=200, temperature=0.8, seed=5).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    assert answer.message.content.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_object_takes_the_schema_that_llama_cpp_reads_there(served: Served, stream: bool) -> None:
    form = {"type": "json_object", "schema": Choice.model_json_schema()}
    answer = served.ask(response_format=form, max_tokens=60, stream=stream)
    assert Choice.model_validate_json(joined(answer) if stream else answer.choices[0].message.content)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "choose"}}])
def test_a_required_call_and_a_named_one_are_made(served: Served, choice: Any) -> None:
    found = served.ask(tools=[CHOOSE], tool_choice=choice, parallel_tool_calls=False).choices[0]
    (call,) = found.message.tool_calls
    assert (found.finish_reason, found.message.content, call.type) == ("tool_calls", None, "function")
    assert call.function.name == "choose"
    assert re.fullmatch("[a-zA-Z0-9]{9}", call.id)  # as Mistral's templates need it
    assert json.loads(call.function.arguments)["letter"] in ("a", "b")
    chunks = list(served.ask(tools=[CHOOSE], tool_choice=choice, stream=True))
    (streamed,) = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
    assert (streamed.index, streamed.function.name) == (0, "choose")
    assert streamed.id != call.id  # of another answer, though of an equal conversation
    assert streamed.function.arguments == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert joined(chunks) == ""


def test_an_answer_with_a_response_format_may_be_a_call_instead(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": Choice.model_json_schema(), "strict": True}}
    kinds = set()
    for seed in range(12):
        found = served.ask(tools=[CHOOSE], response_format=form, temperature=2, seed=seed, max_tokens=100).choices[0]
        if found.message.tool_calls:
            assert (found.finish_reason, found.message.content) == ("tool_calls", None)
        else:
            assert Choice.model_validate_json(found.message.content)
        kinds.add(found.finish_reason)
    assert kinds == {"stop", "tool_calls"}
    for choice, reason in (("none", "stop"), ("required", "tool_calls")):
        given: dict[str, Any] = {"tools": [CHOOSE], "tool_choice": choice, "response_format": form}
        assert served.ask(**given, max_tokens=100).choices[0].finish_reason == reason
    assert Choice.model_validate_json(served.ask(tool_choice="auto", response_format=form).choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tokens", "arguments"), [(60, '{"letter"'), (20, None)])
def test_a_call_that_is_cut_off_is_no_text(served: Served, stream: bool, tokens: int, arguments: str | None) -> None:
    """Clients then say that its arguments are incomplete."""
    answer = served.ask(tools=[CHOOSE], tool_choice="required", max_tokens=tokens, stream=stream)
    if stream:
        chunks = list(answer)
        reason, content = chunks[-1].choices[0].finish_reason, joined(chunks)
        calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
    else:
        (choice,) = answer.choices
        reason, content, calls = choice.finish_reason, choice.message.content or "", choice.message.tool_calls or []
    assert reason == "length"
    if arguments is None:
        assert (content.startswith("<tool_call>"), calls) == (True, [])
    else:
        assert content == ""
        assert calls[0].function.name == "choose"
        assert calls[0].function.arguments.startswith(arguments)


def test_at_most_one_call_where_a_client_asks_for_that(served: Served) -> None:
    answer = served.ask(tools=[CHOOSE], parallel_tool_calls=False, temperature=3, seed=1, max_tokens=200)
    assert len(answer.choices[0].message.tool_calls or []) <= 1


def test_tools_that_the_model_does_not_call_leave_an_answer_of_text(served: Served) -> None:
    for choice in ("auto", "none"):
        found = served.ask(tools=[CHOOSE, *TOOLS], tool_choice=choice, max_tokens=10).choices[0]
        assert (found.message.tool_calls, len(found.message.content)) == (None, 10)
    as_sent = {"type": "function", "function": {**CHOOSE["function"], "strict": True, "description": None}}
    tokens = len(served.model.encode("hi", tools=[CHOOSE]))
    assert served.ask(tools=[as_sent], max_tokens=1).usage.prompt_tokens == tokens


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_the_allowed_tools_are_there(served: Served, mode: str) -> None:
    choice: Any = allowed(mode, "choose")
    found = served.ask(tools=[*TOOLS, CHOOSE], tool_choice=choice, max_tokens=200)
    expected = served.ask(tools=[CHOOSE], tool_choice=mode, max_tokens=200)
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    messages = [answer.choices[0].message for answer in (found, expected)]
    assert messages[0].content == messages[1].content
    assert [[call.function for call in message.tool_calls or []] for message in messages] == (
        [[messages[1].tool_calls[0].function]] * 2 if mode == "required" else [[], []]
    )


def test_results_of_tools_go_back_in_and_the_model_answers(served: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    first = served.client.chat.completions.create(
        model=NAME, messages=messages, tools=[CHOOSE], tool_choice="required"
    ).choices[0]
    call = first.message.tool_calls[0]
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    last = served.client.chat.completions.create(model=NAME, messages=messages, tools=[CHOOSE], max_tokens=12)
    assert len(last.choices[0].message.content) == 12
    with served.model.chat(tools=[CHOOSE], max_new_tokens=200) as chat:
        chat.send("hi", tool_choice="required")
        expected = chat.send_tool_results(["done"], max_new_tokens=12)
    assert last.choices[0].message.content == expected.text
    plain: Any = [{**first.message.model_dump(), "content": ""}]  # this template joins texts
    with_text, with_null = (
        served.client.chat.completions.create(model=NAME, messages=[*before, messages[2]], max_tokens=12)
        for before in ([messages[0], *plain], messages[:2])
    )
    assert with_null.choices[0].message.content == with_text.choices[0].message.content
    again = served.client.chat.completions.create(
        model=NAME, messages=messages, tools=[CHOOSE], tool_choice="required"
    ).choices[0]
    assert again.message.tool_calls[0].id != call.id


@pytest.mark.parametrize("arguments", ['{"letter": "a', "[1]", "none"])
def test_a_call_whose_arguments_are_no_object_goes_back_in_as_its_text(
    arguments: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = CHAT_TEMPLATE.replace(
        "{% endfor %}",
        "{% for call in message.tool_calls or [] %}[{{ call.function.arguments }}]{% endfor %}{% endfor %}",
        1,
    )
    call = {"id": "1", "type": "function", "function": {"name": "choose", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "error"},
    ]  # fmt: skip
    with serving(tmp_path_factory.mktemp("calls"), template=template) as served:
        tokens = {}
        for words in (arguments, ""):
            call["function"] = {"name": "choose", "arguments": words}
            status, found = served.post("/chat/completions", {"messages": messages, "max_tokens": 1})
            assert status == 200
            tokens[words] = found["usage"]["prompt_tokens"]
    assert tokens[arguments] - tokens[""] == len(arguments) - len("{}")


@pytest.mark.parametrize(
    ("message", "same"),
    [
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant"}, ""),
        ({"role": "assistant", "content": None, "refusal": "no, never"}, "no, never"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no, never"}]}, "no, never"),
        ({"role": "tool", "tool_call_id": "1", "content": None}, ""),
    ],
)
def test_a_message_without_content_is_empty_and_a_refusal_is_text(
    served: Served, message: dict[str, Any], same: str
) -> None:
    hi = {"role": "user", "content": "hi"}
    found, expected = (
        served.post("/chat/completions", {"messages": [hi, one, hi], "max_tokens": 8})
        for one in (message, {**message, "content": same})
    )
    assert (found[0], found[1]["choices"], found[1]["usage"]["prompt_tokens"]) == (
        200, expected[1]["choices"], expected[1]["usage"]["prompt_tokens"],
    )  # fmt: skip


def test_a_schema_goes_with_tools_where_none_may_be_called(served: Served) -> None:
    found = served.ask(
        tools=[{"type": "function", "function": CLOCK}], tool_choice="none", max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": Choice.model_json_schema()}},
    )  # fmt: skip
    assert Choice.model_validate_json(found.choices[0].message.content)


def test_what_the_model_thinks_is_reasoning_content(tmp_path_factory: pytest.TempPathFactory) -> None:
    pattern = {"regex": "[a-c]{3}</think>[d-e]{2}"}
    with serving(tmp_path_factory.mktemp("thinks"), template=THINKING) as served:
        message = served.ask(extra_body=pattern).choices[0].message
        chunks = list(served.ask(extra_body=pattern, stream=True))
        assert re.fullmatch("[a-c]{3}", message.reasoning_content)
        assert re.fullmatch("[d-e]{2}", message.content)
        assert joined(chunks, "reasoning_content") == message.reasoning_content
        assert joined(chunks) == message.content
        assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", None)
        thoughts = served.ask(extra_body=pattern, stream=True, stream_options={"include_usage": True})
        for usage in (served.ask(extra_body=pattern).usage, list(thoughts)[-1].usage):
            assert usage.completion_tokens_details.reasoning_tokens == len("abc</think>")  # a token is a byte
            assert usage.completion_tokens >= usage.completion_tokens_details.reasoning_tokens + 2


def content_tokens(choices: Any) -> list[Any]:
    """What `logprobs.content` of an answer or of its chunks has."""
    return [token for choice in choices if choice.logprobs is not None for token in choice.logprobs.content]


@pytest.mark.parametrize(
    ("template", "regex", "tokens"),
    [
        (THINKING, "[a-c]{3}</think>[d-e]{2}", 2),
        (THINKING, "</think>[d-e]{2}", 2),
        (THINKING, "\n</think>", 0),
        (THINKS, "<think>[a-c]{3}</think>[d-e]{2}", 2),
        (THINKS, "<think></think>[d-e]{2}", 2),
        (THINKS, "[a-c]{2}<think></think>[d-e]{2}", 19),  # not before the answer: its text
        (THINKS, "[a-c]{2}<think></think>", 17),
    ],
)
def test_log_probabilities_are_those_of_the_content_alone(
    template: str, regex: str, tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also around thoughts without text."""
    options: dict[str, Any] = {"extra_body": {"regex": regex}, "logprobs": True}
    with serving(tmp_path_factory.mktemp("thinks"), template=template) as thinking:
        whole = thinking.ask(**options).choices
        streamed = [chunk.choices[0] for chunk in thinking.ask(stream=True, **options)]
    content = content_tokens(whole)
    assert "".join(token.token for token in content) == whole[0].message.content
    assert len(content) == tokens
    assert content_tokens(streamed) == content


def test_tokens_of_calls_have_no_log_probabilities(served: Served) -> None:
    called = served.ask(tools=[CHOOSE], tool_choice="required", logprobs=True).choices
    assert (called[0].message.content, content_tokens(called)) == (None, [])


def test_variables_and_documents_reach_the_template(tmp_path_factory: pytest.TempPathFactory) -> None:
    template = CHAT_TEMPLATE + "{{ mood }}{% for one in documents or [] %}[{{ one.text }}]{% endfor %}"
    given = {"chat_template_kwargs": {"mood": "glad"}, "documents": [{"text": "snow"}]}
    with serving(tmp_path_factory.mktemp("varies"), template=template) as served:
        plain = served.ask(max_tokens=1).usage.prompt_tokens
        assert served.ask(max_tokens=1, extra_body=given).usage.prompt_tokens == plain + len("glad[snow]")


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"reasoning_effort": "high"}, "high"),
        ({"verbosity": "low"}, "/low"),
        ({"reasoning_effort": "none"}, "none, quiet"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "none"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "medium"}}, "medium"),
    ],
)
def test_the_effort_of_reasoning_is_a_variable_of_the_template(
    served: Served, fields: dict[str, Any], written: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = (
        CHAT_TEMPLATE + "{{ reasoning_effort }}{% if enable_thinking is false %}, quiet{% endif %}"
        "{% if verbosity %}/{{ verbosity }}{% endif %}"
    )
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with serving(tmp_path_factory.mktemp("effort"), template=template) as thinking:
        plain, found = (thinking.post("/chat/completions", {**ask, **more})[1] for more in ({}, fields))
        assert found["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"] == len(written)
    plain, found = (served.post("/chat/completions", {**ask, **more})[1] for more in ({}, fields))
    assert found["choices"] == plain["choices"]  # a template without the variable


@pytest.mark.parametrize("form", ["text", "ids", "list of text", "list of ids"])
def test_a_prompt_is_continued_without_the_template(served: Served, form: str) -> None:
    ids = served.model.tokenizer.encode("a few words")
    prompts: dict[str, Any] = {
        "text": "a few words", "ids": ids, "list of text": ["a few words"], "list of ids": [ids],
    }  # fmt: skip
    expected = served.model.generate("a few words", raw=True, max_new_tokens=14)
    whole = served.client.completions.create(model=NAME, prompt=prompts[form], max_tokens=14)
    assert (whole.object, whole.choices[0].text, whole.choices[0].finish_reason) == (
        "text_completion", expected.text, "length",
    )  # fmt: skip
    assert whole.usage.prompt_tokens == len(ids)
    chunks = list(
        served.client.completions.create(
            model=NAME, prompt=prompts[form], max_tokens=14, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 14


PROMPTS = ["a few words", "b", "a few more"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_are_continued_each_as_if_it_were_alone(served: Served, as_ids: bool, stream: bool) -> None:
    prompts: Any = [served.model.tokenizer.encode(words) for words in PROMPTS] if as_ids else PROMPTS
    fields: dict[str, Any] = {"model": NAME, "max_tokens": 9, "temperature": 0.8, "seed": 3, "logprobs": 1}
    alone = [served.client.completions.create(prompt=prompt, **fields) for prompt in prompts]
    expected = [{**one.choices[0].model_dump(), "index": index} for index, one in enumerate(alone)]
    if not stream:
        found = served.client.completions.create(prompt=prompts, **fields)
        assert [choice.model_dump() for choice in found.choices] == expected
        usage = found.usage
    else:
        fields["stream_options"] = {"include_usage": True}
        *chunks, last = served.client.completions.create(prompt=prompts, stream=True, **fields)
        assert (len({chunk.id for chunk in chunks}), last.choices) == (1, [])
        choices = [chunk.choices[0] for chunk in chunks]
        for index, one in enumerate(expected):
            own = [choice for choice in choices if choice.index == index]
            assert "".join(choice.text for choice in own) == one["text"]
            assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + [one["finish_reason"]]
            told = [choice.logprobs for choice in own if choice.logprobs is not None]
            for name in ("token_logprobs", "text_offset", "tokens"):
                assert [value for part in told for value in getattr(part, name)] == one["logprobs"][name]
        usage = last.usage
    assert usage.prompt_tokens == sum(map(len, PROMPTS))
    assert (usage.completion_tokens, usage.total_tokens) == (27, 27 + usage.prompt_tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 4])
def test_several_prompts_are_echoed_each_with_its_log_probabilities(served: Served, tokens: int, stream: bool) -> None:
    fields: dict[str, Any] = {"model": NAME, "max_tokens": tokens, "echo": True, "logprobs": 0}
    alone = [served.client.completions.create(prompt=prompt, **fields).choices[0] for prompt in PROMPTS]
    found = served.client.completions.create(prompt=PROMPTS, stream=stream, **fields)
    choices = [chunk.choices[0] for chunk in found] if stream else found.choices
    for index, one in enumerate(alone):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.text for choice in own) == one.text
        told = [choice.logprobs for choice in own if choice.logprobs is not None]
        assert [value for part in told for value in part.token_logprobs] == one.logprobs.token_logprobs


def test_log_probabilities_are_those_of_the_public_api_in_one_piece_and_as_a_stream(served: Served) -> None:
    options = {"max_tokens": 12, "temperature": 0.9, "seed": 3}
    expected = served.model.generate("hi", max_new_tokens=12, temperature=0.9, seed=3, log_probs=True)
    whole = served.ask(logprobs=True, **options).choices[0]
    assert [token.logprob for token in whole.logprobs.content] == expected.log_probs
    assert "".join(token.token for token in whole.logprobs.content) == whole.message.content == expected.text
    assert bytes(byte for token in whole.logprobs.content for byte in token.bytes).decode() == expected.text
    chunks = list(served.ask(logprobs=True, stream=True, **options))
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    assert [token for part in parts if part is not None for token in part.content] == whole.logprobs.content
    assert served.ask(**options).choices[0].logprobs is None


def test_the_most_probable_tokens_are_those_of_the_public_api(served: Served) -> None:
    options = {"max_tokens": 12, "temperature": 0.9, "seed": 3}
    expected = served.model.generate("hi", max_new_tokens=12, temperature=0.9, seed=3, top_log_probs=3).top_log_probs
    for stream in (False, True):
        answer = served.ask(logprobs=True, top_logprobs=3, stream=stream, **options)
        choices = [chunk.choices[0] for chunk in answer if chunk.choices] if stream else [answer.choices[0]]
        content = [token for choice in choices if choice.logprobs is not None for token in choice.logprobs.content]
        top = [[(one.token, one.logprob, one.bytes) for one in token.top_logprobs] for token in content]
        assert top == [
            [(one.text, one.log_prob, None if "\ufffd" in one.text else list(one.text.encode())) for one in of_token]
            for of_token in expected
        ]
    text: dict[str, Any] = {"model": NAME, "prompt": "a few words", "max_tokens": 9, "logprobs": 2}
    found = served.client.completions.create(**text).choices[0].logprobs.top_logprobs
    whole = served.model.generate("a few words", raw=True, max_new_tokens=9, top_log_probs=2).top_log_probs
    assert found == [{one.text: one.log_prob for one in reversed(of_token)} for of_token in whole]
    drawn = served.client.completions.create(**text, temperature=5, seed=3).choices[0].logprobs
    own = [{name: value} for name, value in zip(drawn.tokens, drawn.token_logprobs, strict=True)]
    assert all(one.items() <= top.items() for one, top in zip(own, drawn.top_logprobs, strict=True))
    assert {len(top) for top in drawn.top_logprobs} == {2, 3}


def test_a_last_message_of_the_assistant_is_continued(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "1, 2,"}]
    found = served.client.chat.completions.create(model=NAME, messages=messages, max_tokens=8).choices[0]
    expected = served.model.generate(messages=messages, max_new_tokens=8)
    assert (found.message.content, found.message.role) == (expected.text, "assistant")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 4])
def test_an_echo_has_the_log_probabilities_of_the_prompt(served: Served, stream: bool, tokens: int) -> None:
    words = "a few words"
    ids = served.model.encode(words, raw=True)
    expected = served.model.score(ids[:1], ids[1:], top_log_probs=2)
    answer = served.model.generate(words, raw=True, max_new_tokens=4, log_probs=True)
    asked: dict[str, Any] = {"model": NAME, "prompt": words, "max_tokens": tokens, "echo": True, "stream": stream}
    found = served.client.completions.create(**asked, logprobs=2)
    parts = [chunk.choices[0] for chunk in found] if stream else found.choices
    text = "".join(part.text for part in parts)
    assert text == words + (answer.text if tokens else "")
    assert parts[-1].finish_reason == "length"
    told = [part.logprobs for part in parts if part.logprobs is not None]
    values = [value for part in told for value in part.token_logprobs]
    assert values == [None, *expected.log_probs, *answer.log_probs[:tokens]]
    tops = [top for part in told for top in part.top_logprobs or [None]]
    assert tops[0] is None
    for top, listed in zip(tops[1:], expected.top_log_probs, strict=False):
        assert {one.text: one.log_prob for one in listed}.items() <= top.items()
    offsets = [(at, token) for part in told for at, token in zip(part.text_offset, part.tokens, strict=True)]
    assert all(text[at : at + len(token)] == token for at, token in offsets)
    if not stream:
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(ids), tokens)
    plain = served.client.completions.create(**{**asked, "stream": False})
    assert (plain.choices[0].text, plain.choices[0].logprobs) == (text, None)
    full = [7] * served.model.context_length
    whole = served.client.completions.create(model=NAME, prompt=full, max_tokens=0, echo=True)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(full), 0)
    one = served.client.completions.create(model=NAME, prompt=ids[:1], max_tokens=0, echo=True, logprobs=0)
    assert one.choices[0].logprobs.token_logprobs == [None]


def test_log_probabilities_of_a_continued_text_have_offsets(served: Served) -> None:
    options: dict[str, Any] = {"model": NAME, "prompt": "a few words", "max_tokens": 9, "logprobs": 0}
    expected = served.model.generate("a few words", raw=True, max_new_tokens=9, log_probs=True)
    whole = served.client.completions.create(**options).choices[0]
    assert whole.logprobs.token_logprobs == expected.log_probs
    assert "".join(whole.logprobs.tokens) == whole.text == expected.text
    pairs = zip(whole.logprobs.text_offset, whole.logprobs.tokens, strict=True)
    assert all(whole.text[at : at + len(token)] == token for at, token in pairs)
    parts = [chunk.choices[0].logprobs for chunk in served.client.completions.create(stream=True, **options)]
    streamed = [part for part in parts if part is not None]
    assert [value for part in streamed for value in part.token_logprobs] == expected.log_probs
    assert [value for part in streamed for value in part.text_offset] == whole.logprobs.text_offset


def test_characters_of_several_tokens_stay_whole(served: Served) -> None:
    words = "café 日本語 😀"
    assert served.ask(extra_body={"regex": words}).choices[0].message.content == words
    chunks = list(served.ask(extra_body={"regex": words}, stream=True))
    assert joined(chunks) == words
    assert len(chunks) > 8


def test_the_model_is_listed_by_its_name(served: Served) -> None:
    (card,) = served.client.models.list().data
    assert (card.id, card.object, card.owned_by) == (NAME, "model", "streamfuse")
    assert served.client.models.retrieve(NAME) == card
    assert served.send("GET", "/health")[::2] == (200, '{"status":"ok"}')


def test_fields_without_a_meaning_here_are_ignored(served: Served) -> None:
    plain = served.ask(max_tokens=8).choices[0].message.content
    found = served.ask(
        max_tokens=8, user="me", store=False, metadata={"a": "b"}, n=1, logprobs=False, frequency_penalty=0,
        logit_bias={}, service_tier="auto", parallel_tool_calls=True, modalities=["text"], tools=[], top_p=None,
    )  # fmt: skip
    assert found.choices[0].message.content == plain


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_values_that_ask_for_nothing_are_like_none(served: Served, path: str) -> None:
    prompt: Any = {"prompt": "hi"} if path == "/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    with running(served.model, served.engines, max_new_tokens=8) as short:
        plain = short.post(path, prompt)[1]
        for fields in ({"max_tokens": -1}, {"stop": ""}, {"stop": []}):
            status, found = short.post(path, {**prompt, **fields})
            assert (status, found.get("choices")) == (200, plain["choices"])
        status, found = short.post("/chat/completions", {
            "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3, "max_tokens": -1,
        })  # fmt: skip
        assert (status, found["usage"]["completion_tokens"]) == (200, 3)


def test_a_task_adapter_is_a_model_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: manifest_fields()[name] for name in ("methods", "speculation", "quantization", "parity")}
    template = "{% for message in messages %}sql: {{ message.content }}{% endfor %}"
    bundle = write_bundle(tmp_path / "demo", adapters={"sql": {**own, "chat_template": template}})
    made, new = fake_engines(PrintableBackend)
    monkeypatch.setattr(engines, "engines_of", new)
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path))
    with streamfuse.load(bundle) as model, running(model, made) as served:
        assert [card.id for card in served.client.models.list()] == [NAME, f"{NAME}:sql"]
        assert served.client.models.retrieve(f"{NAME}:sql").id == f"{NAME}:sql"
        texts = {}
        for name, adapter in ((NAME, None), (f"{NAME}:sql", "sql")):
            ask = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
            status, whole = served.post("/chat/completions", ask)
            texts[name] = whole["choices"][0]["message"]["content"]
            assert (status, whole["model"]) == (200, name)
            assert texts[name] == model.generate("hi", adapter=adapter, max_new_tokens=12).text
        assert len(set(texts.values())) == 2
        status, refused = served.post("/completions", {"model": f"{NAME}:xml", "prompt": "hi"})
        assert status == 404
        assert refused["error"]["message"].endswith(f"this server has {NAME!r}, '{NAME}:sql'")
