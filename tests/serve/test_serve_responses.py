"""OpenAI's Responses API, asked by OpenAI's own client: items, events, tools, schemas, stored responses.

The engine is that of test_serve_chat.py. Run: python -m pytest tests/serve/test_serve_responses.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest
from bundle_samples import CHAT_TEMPLATE
from served import CAPACITY, NAME, FailingBackend, Served, serving

from streamfuse.serve.errors import RequestError
from streamfuse.serve.responses.answer import ResponseAnswer
from streamfuse.serve.responses.request import read_response
from streamfuse.serve.responses.store import Store

THINKING = CHAT_TEMPLATE + "{{ '<think>\\n' }}{# </think> #}"  # the prompt opens the thoughts
PATTERN = {"regex": "[a-c]{3}</think>[d-e]{2}"}
PARAMETERS = {
    "type": "object",
    "properties": {"letter": {"enum": ["a", "b"]}, "loud": {"type": "boolean"}},
    "required": ["letter", "loud"],
    "additionalProperties": False,
}
CHOOSE: dict[str, Any] = {"type": "function", "name": "choose", "parameters": PARAMETERS, "strict": True}
OTHER: dict[str, Any] = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}


class Choice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    letter: Literal["a", "b"]
    loud: bool


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as served:
        yield served


def respond(served: Served, given: Any = "hi", **fields: Any) -> Any:
    """A response."""
    return served.client.responses.create(model=NAME, input=given, **fields)


def events_of(served: Served, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    status, headers, text = served.send("POST", "/v1/responses", {"input": "hi", **body, "stream": True})
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream"), text
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    assert {len(block) for block in blocks} == {2}
    found = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in found]
    return found


def built(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the small events of a stream build, all of which must agree."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        place = event["output_index"]
        if kind == "output_item.added":
            assert (place, event["item"]["status"]) == (len(items), "in_progress")
            items.append(event["item"])
            continue
        assert place == len(items) - 1
        item = items[place]
        if kind == "output_item.done":
            assert {**event["item"], "status": item["status"]} == item
            items[place] = event["item"]
            continue
        assert event["item_id"] == item["id"]
        if kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        else:
            name, index = ("summary", "summary_index") if "summary" in kind else ("content", "content_index")
            assert event[index] == 0
            if kind in ("content_part.added", "reasoning_summary_part.added"):
                item[name].append(event["part"])
            elif kind in ("content_part.done", "reasoning_summary_part.done"):
                assert event["part"] == item[name][0]
            elif kind.endswith(".delta"):
                item[name][0]["text"] += event["delta"]
                assert ("logprobs" in event) == (kind == "output_text.delta")
                if "logprobs" in event:
                    item[name][0]["logprobs"] += event["logprobs"]
            else:
                assert kind in ("output_text.done", "reasoning_text.done", "reasoning_summary_text.done")
                assert event["text"] == item[name][0]["text"]
    last = events[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["output"] == items
    assert events[0]["response"] == {
        **last["response"], "status": "in_progress", "output": [], "usage": None, "completed_at": None,
        "incomplete_details": None,
    }  # fmt: skip
    return items


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of answers to equal requests, as far as they are equal."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


@pytest.mark.parametrize(
    "options",
    [
        {"max_output_tokens": 20},
        {"max_output_tokens": 20, "temperature": 0.9, "top_p": 0.95, "extra_body": {"seed": 3}},
        {"max_output_tokens": 30, "extra_body": {"top_k": 5, "temperature": 1.1, "seed": 4, "width": 4}},
        {"max_output_tokens": 20, "extra_body": {"regex": "[a-d]{7}", "speculative": False}},
    ],
    ids=["greedy", "sampled", "filters", "regex"],
)
def test_a_response_is_that_of_the_public_api_in_one_piece_and_as_a_stream(
    served: Served, options: dict[str, Any]
) -> None:
    own = {**options, **options.get("extra_body", {})}
    own.pop("extra_body", None)
    own["max_new_tokens"] = own.pop("max_output_tokens")
    expected = served.model.generate("hi", **own)
    whole = respond(served, **options)
    assert whole.output_text == expected.text
    is_cut = expected.finish_reason == "length"
    assert whole.status == whole.output[0].status == ("incomplete" if is_cut else "completed")
    assert whole.incomplete_details == (
        openai.types.responses.response.IncompleteDetails(reason="max_output_tokens") if is_cut else None
    )
    found = expected.statistics
    counts = (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens)
    assert counts == (
        found.prompt_tokens, found.generated_tokens, found.prompt_tokens + found.generated_tokens,
    )  # fmt: skip
    fields = {name: value for name, value in options.items() if name != "extra_body"}
    (item,) = built(events_of(served, **fields, **options.get("extra_body", {})))
    assert item["content"][0]["text"] == expected.text
    with served.client.responses.stream(model=NAME, input="hi", **options) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == expected.text


def test_a_response_repeats_what_was_asked(served: Served) -> None:
    asked: dict[str, Any] = {
        "instructions": "be brief", "max_output_tokens": 5, "metadata": {"a": "b"}, "tools": [OTHER],
        "tool_choice": "none", "parallel_tool_calls": False, "temperature": 0.5, "truncation": "auto",
    }  # fmt: skip
    status, found = served.post("/responses", {"input": "hi", **asked})
    assert status == 200
    assert {name: found[name] for name in asked} == asked
    assert served.post("/responses", {"input": "hi", "top_p": 0, "max_output_tokens": 1})[1]["top_p"] == 0
    assert (found["object"], found["model"], found["top_p"], found["error"]) == ("response", NAME, 1.0, None)
    plain = served.post("/responses", {"input": "hi", "max_output_tokens": 5})[1]
    assert (plain["tool_choice"], plain["tools"], plain["text"]["format"]) == ("auto", [], {"type": "text"})


def same_prompt(served: Served, given: Any, messages: list[dict[str, Any]], **fields: Any) -> None:
    """Input that the model reads as these messages."""
    expected = served.model.generate(messages=messages, max_new_tokens=8)
    status, found = served.post("/responses", {"input": given, "max_output_tokens": 8, **fields})
    assert status == 200, found
    assert found["usage"]["input_tokens"] == expected.statistics.prompt_tokens
    assert "".join(part["text"] for part in found["output"][0]["content"]) == expected.text


def test_items_are_read_as_messages(served: Served) -> None:
    messages = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi\nthere"},
        {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"},
    ]  # fmt: skip
    parts = [{"type": "input_text", "text": "hi"}, {"type": "input_text", "text": "there"}]
    answer = {"type": "output_text", "text": "yes", "annotations": [], "logprobs": None}
    as_sent: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": "be brief"}, {"role": "user", "content": parts},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [answer]},
        {"role": "user", "content": "why", "type": "message"},
    ]  # fmt: skip
    same_prompt(served, as_sent, messages)
    same_prompt(served, as_sent[1:], messages, instructions="be brief")
    same_prompt(served, "why", messages[-1:])
    same_prompt(served, [], messages[:1], instructions="be brief")


def test_a_response_is_continued_by_its_id(served: Served) -> None:
    first = respond(served, "hi", instructions="be brief", max_output_tokens=6)
    second = respond(served, "why", previous_response_id=first.id, max_output_tokens=6)
    messages = [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "why"}, {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "and"},
    ]  # fmt: skip
    same_prompt(served, "and", messages, previous_response_id=second.id)
    same_prompt(served, [*first.model_dump()["output"], {"role": "user", "content": "and"}], [messages[1], messages[4]])
    references = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "and"}]
    same_prompt(served, references, [messages[1], messages[4]])
    same_prompt(served, [{"id": first.output[0].id}, *references[1:]], [messages[1], messages[4]])
    same_prompt(served, None, messages[:4], previous_response_id=second.id)  # the last answer goes on
    items = list(served.client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1].id == first.output[0].id
    pages = served.client.responses.input_items.list(second.id, after=items[2].id)
    assert [item.id for item in pages] == [items[1].id, items[0].id]


def test_a_stored_response_is_returned_until_it_is_deleted(served: Served) -> None:
    found = respond(served, max_output_tokens=4)
    assert served.client.responses.retrieve(found.id) == found
    with pytest.raises(openai.BadRequestError, match="not streamed"):
        list(served.client.responses.retrieve(found.id, stream=True))
    assert served.send("DELETE", f"/v1/responses/{found.id}")[0] == 200
    for ask in (served.client.responses.retrieve, served.client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not found: the server keeps"):
            ask(found.id)
    unstored = respond(served, max_output_tokens=4, store=False)
    with pytest.raises(openai.BadRequestError, match=r"previous response .* not found") as caught:
        respond(served, previous_response_id=unstored.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    streamed = events_of(served, max_output_tokens=4)[-1]["response"]
    assert served.client.responses.retrieve(streamed["id"]).output_text == found.output_text


def test_the_store_forgets_the_responses_that_were_used_longest_ago() -> None:
    def response(id_: str, text: str = "") -> dict[str, Any]:
        return {"id": id_, "output": [{"id": f"msg_{id_}", "text": text}]}

    store = Store(most=3, most_bytes=5000)
    for id_ in "abc":
        store.add(response(id_), [])
    store.get("a")
    store.add(response("d"), [])
    assert len(store) == 3
    assert store.item("msg_a") == {"id": "msg_a", "text": ""}
    with pytest.raises(RequestError):
        store.get("b")
    shared = [{"id": "msg_0", "text": "x" * 2500}]
    store.add(response("e"), shared)
    assert len(store) == 1
    store.add(response("f", "x" * 5000), shared)  # too large for it
    assert (len(store), store.item("msg_0"), store.item("msg_f")) == (0, None, None)
    store.add(response("g"), shared)
    store.delete("g")
    store.add(response("h"), shared)
    assert (len(store), store.item("msg_0"), store.item("msg_g")) == (1, shared[0], None)


def test_references_are_found_in_no_time_and_lead_to_no_item_of_others(served: Served) -> None:
    """One body can have tens of thousands of them, and ids that clients make up are not those of the server."""
    words = "of somebody else"
    first = respond(served, [{"id": "__fake_id__", "role": "user", "content": words}], max_output_tokens=1)
    with pytest.raises(openai.NotFoundError, match="is not stored"):
        respond(served, [{"type": "item_reference", "id": "__fake_id__"}])
    (item,) = served.client.responses.input_items.list(first.id)
    assert item.content[0].text == words
    assert item.id != "__fake_id__"
    started = time.monotonic()
    body = {"input": [{"id": item.id}] * 20_000}
    assert served.post("/responses/input_tokens", body)[0] == 200
    assert time.monotonic() - started < 5


def test_pages_of_items_end_though_an_item_is_there_twice(served: Served) -> None:
    first = respond(served, max_output_tokens=1)
    (item,) = served.client.responses.input_items.list(first.id)
    again = respond(served, [{"type": "item_reference", "id": item.id}] * 5, max_output_tokens=1)
    assert len(list(served.client.responses.input_items.list(again.id, limit=2))) <= 5


def test_little_is_stored_of_a_large_body(served: Served) -> None:
    part = {"type": "output_text", "text": "yes", "annotations": [{}] * 10_000, "logprobs": [{"token": "x"}], "x": "y"}
    given = [{"role": "assistant", "content": [part], "x": "y"}, {"role": "user", "content": "why", "x": "y"}]
    found = respond(served, given, max_output_tokens=1)
    items = json.loads(served.send("GET", f"/v1/responses/{found.id}/input_items?order=asc")[2])["data"]
    assert [set(item) for item in items] == [{"id", "type", "status", "role", "content"}] * 2
    assert items[0]["content"] == [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_response_repeats_is_json_whatever_was_sent(served: Served, stream: bool) -> None:
    odd: dict[str, Any] = {"metadata": {"a": "\ud800"}, "max_output_tokens": 2, "stream": stream}
    status, _, text = served.send("POST", "/v1/responses", {"input": "hi", **odd})
    assert (status, "\\ud800" in text) == (200, True)
    for number in ("1e999", "-1e999"):
        body = f'{{"input": "hi", "metadata": {{"a": {number}}}, "stream": {str(stream).lower()}}}'
        status, _, text = served.send("POST", "/v1/responses", body)
        assert (status, json.loads(text)["error"]["code"]) == (400, "invalid_json")


def test_an_answer_that_is_ended_at_once_begins_and_fails(served: Served) -> None:
    result = served.model.generate("hi", max_new_tokens=1)
    stopped = replace(result, statistics=replace(result.statistics, finish_reason="stopped"))
    store = Store()
    answer = ResponseAnswer(read_response({"input": "hi"}, [NAME], store), {"temperature": 0.0, "top_p": 1.0}, store)
    with pytest.raises(RequestError) as caught:
        answer.chunks(stopped)
    events = answer.failed(caught.value)
    assert [event["type"] for event in events] == [f"response.{name}" for name in ("created", "in_progress", "failed")]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "choose"}])
def test_a_call_and_its_output_go_back_in(served: Served, choice: Any) -> None:
    found = respond(served, tools=[CHOOSE], tool_choice=choice)
    (call,) = found.output
    assert (found.status, call.type, call.name, call.status) == ("completed", "function_call", "choose", "completed")
    assert json.loads(call.arguments)["letter"] in ("a", "b")
    events = events_of(served, tools=[CHOOSE], tool_choice=choice)
    assert without_ids(built(events)) == without_ids([call.model_dump(exclude_none=True)])
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    with served.model.chat(tools=[CHOOSE_IN_CHATS], max_new_tokens=200) as chat:
        chat.send("hi", tool_choice="required")
        expected = chat.send_tool_results(["done"], max_new_tokens=12)
    history = [{"role": "user", "content": "hi"}, *found.model_dump()["output"], output]
    parts = {**output, "output": [{"type": "input_text", "text": "done"}]}
    for given, fields in ((history, {}), ([output], {"previous_response_id": found.id}), ([*history[:2], parts], {})):
        last = respond(served, given, tools=[CHOOSE], max_output_tokens=12, **fields)
        assert last.output_text == expected.text
        assert last.usage.input_tokens == expected.statistics.prompt_tokens


CHOOSE_IN_CHATS = {"type": "function", "function": {name: CHOOSE[name] for name in ("name", "parameters", "strict")}}


def test_calls_belong_to_the_message_before_them(tmp_path: Path) -> None:
    """A chat template sees text, thoughts and calls of a turn in one message."""
    template = (
        "{% for message in messages %}{{ message.role }}({{ message.reasoning_content or '' }}|{{ message.content }}|"
        "{% for call in message.tool_calls or [] %}{{ call.function.name }},{% endfor %}){% endfor %}{{ ask }}"
    )
    call = {"type": "function_call", "arguments": "{}"}
    given: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "wait"}, {**call, "call_id": "1", "name": "f"},
        {**call, "call_id": "2", "name": "g"}, {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "function_call_output", "call_id": "2", "output": None},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {**call, "call_id": "3", "name": "h"}, {"type": "function_call_output", "call_id": "3", "output": "y"},
    ]  # fmt: skip
    given += [
        {**call, "call_id": "4", "name": "i"},
        {"role": "assistant", "content": "so"},
        {**given[-1], "call_id": "4"},
    ]
    text = "user(|hi|)assistant(hm|wait|f,g,)tool(|x|)tool(||)assistant(so||h,)tool(|y|)assistant(|so|i,)tool(|y|)"
    with serving(tmp_path, template=template) as served:
        status, found = served.post("/responses/input_tokens", {"input": given})
        assert (status, found) == (200, {"object": "response.input_tokens", "input_tokens": len(text)})
        assert respond(served, given, max_output_tokens=1).usage.input_tokens == len(text)


def test_only_the_allowed_tools_are_there(served: Served) -> None:
    tool = {"type": "function", "name": "choose"}
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [tool]}
    found = respond(served, tools=[OTHER, CHOOSE], tool_choice=choice)
    assert found.output[0].name == "choose"
    assert found.usage.input_tokens == respond(served, tools=[CHOOSE], tool_choice="required").usage.input_tokens


def test_a_schema_is_parsed_by_the_client_and_with_tools_it_may_be_a_call(served: Served) -> None:
    found = served.client.responses.parse(model=NAME, input="hi", text_format=Choice, max_output_tokens=60)
    assert isinstance(found.output_parsed, Choice)
    form = {"type": "json_schema", "name": "c", "schema": Choice.model_json_schema(), "strict": True}
    kinds = set()
    for seed in range(12):
        item = respond(
            served, tools=[CHOOSE], text={"format": form, "verbosity": "medium"}, temperature=2, max_output_tokens=100,
            extra_body={"seed": seed},
        ).output[0]  # fmt: skip
        kinds.add(item.type)
        assert Choice.model_validate_json(item.arguments if item.type == "function_call" else item.content[0].text)
    assert kinds == {"message", "function_call"}
    answer = respond(served, text={"format": {"type": "json_object"}}, max_output_tokens=30).output_text
    assert answer.startswith("{")


@pytest.mark.parametrize("summary", [None, "auto"])
def test_thoughts_are_an_item_of_their_own(tmp_path: Path, summary: str | None) -> None:
    asked: dict[str, Any] = {"reasoning": {"summary": summary}} if summary else {}
    with serving(tmp_path, template=THINKING) as served:
        found = respond(served, extra_body=PATTERN, **asked)
        thoughts, message = found.output
        items = built(events_of(served, **PATTERN, **asked))
        parts = thoughts.summary if summary else thoughts.content
        other = thoughts.content if summary else thoughts.summary
        assert (len(parts), other or []) == (1, [])
        assert set(parts[0].text) <= set("abc")
        assert set(message.content[0].text) <= set("de")
        assert without_ids(items) == without_ids([item.model_dump(exclude_none=True) for item in found.output])
        assert found.usage.output_tokens_details.reasoning_tokens == len("abc</think>")
        again = respond(served, [*found.model_dump()["output"], {"role": "user", "content": "hi"}], max_output_tokens=1)
        assert again.usage.input_tokens > 0


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_log_probabilities_are_those_of_chats(served: Served, asked: dict[str, Any]) -> None:
    expected = served.ask(max_tokens=9, logprobs=True, top_logprobs=asked.get("top_logprobs", 0)).choices[0].logprobs
    wanted = [token.model_dump() for token in expected.content]
    found = respond(served, max_output_tokens=9, **asked).output[0].content[0].logprobs
    assert [token.model_dump() for token in found] == wanted
    (item,) = built(events_of(served, max_output_tokens=9, **asked))
    assert item["content"][0]["logprobs"] == wanted
    assert respond(served, max_output_tokens=9).output[0].content[0].logprobs == []


@pytest.mark.parametrize(("tokens", "arguments"), [(60, '{"letter"'), (20, None)])
def test_a_call_that_is_cut_off_is_incomplete(served: Served, tokens: int, arguments: str | None) -> None:
    body: dict[str, Any] = {"tools": [CHOOSE], "tool_choice": "required", "max_output_tokens": tokens}
    found = respond(served, **body)
    (item,) = found.output
    assert (found.status, item.status) == ("incomplete", "incomplete")
    if arguments is None:
        assert item.content[0].text.startswith("<tool_call>")
    else:
        assert item.name == "choose"
        assert item.arguments.startswith(arguments)
    assert without_ids(built(events_of(served, **body))) == without_ids([item.model_dump(exclude_none=True)])


def test_an_answer_without_text_has_an_empty_message(served: Served) -> None:
    found = respond(served, extra_body={"regex": ""})
    assert (found.status, found.output_text, len(found.output)) == ("completed", "", 1)
    (item,) = built(events_of(served, regex=""))
    assert item["content"][0]["text"] == ""


def test_the_oldest_turns_are_left_out_where_a_client_asks_for_that(served: Served) -> None:
    turn = [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y" * 300}]
    given = [{"role": "system", "content": "be brief"}, *turn * 6, {"role": "user", "content": "why"}]
    status, found = served.post("/responses", {"input": given, "max_output_tokens": 100})
    assert (status, found["error"]["code"], found["error"]["param"]) == (400, "context_length_exceeded", "input")
    for tokens in (8, 900, None):
        fitting = [given[:1] + given[1 + 2 * dropped :] for dropped in range(7)]
        counts = [len(served.model.encode(messages=messages)) for messages in fitting]
        expected = next(count for count in counts if count + (tokens or CAPACITY // 4) <= CAPACITY)
        status, found = served.post(
            "/responses", {"input": given, "max_output_tokens": tokens, "truncation": "auto", "ignore_eos": True}
        )
        assert (status, found["usage"]["input_tokens"]) == (200, expected)
        asked = {"input": given, "max_output_tokens": tokens, "truncation": "auto"}
        assert served.post("/responses/input_tokens", asked)[1]["input_tokens"] == expected
    same_prompt(served, given[-1:], given[-1:], truncation="auto")
    long = {"input": "x" * CAPACITY, "truncation": "auto"}
    assert served.post("/responses", long)[1]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"input": 5}, "input", "input must be a string or a list of items, not 5"),
        ({"input": None}, "input", "input must be a string or a list of items, not None"),
        ({"input": []}, "input", "the request has no messages; set input or instructions"),
        ({"input": ["hi"]}, "input[0]", "input[0] must be an object"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "one of user, assistant, system, developer"),
        ({"input": [{"role": "user"}]}, "input[0].content", "input[0].content must be a string or a list of parts"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input[0].content[0]", "the model reads text only",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
            "input[0].content[0]", "the model reads text only",
        ),
        ({"input": [{"type": "web_search_call", "id": "1"}]}, "input[0].type", "supported types are message"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "a string"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input[0].arguments", "must be a string"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "must be a string"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}]},
            "input[0].output[0]", "text only",
        ),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "a list of parts"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "the request has no messages"),
        ({"input": [{"content": "x"}]}, "input[0].role", "one of user, assistant, system, developer"),
        ({"reasoning": {"summary": {"a": 5}}}, "reasoning.summary", "reasoning.summary must be a string"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].id", "is not stored; send the item itself"),
        ({"instructions": 5}, "instructions", "instructions must be a string"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps only recently used responses"),
        ({"background": True}, "background", "set stream to receive"),
        ({"conversation": "conv_1"}, "conversation", "use previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "as instructions and input"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be an integer of at least 1"),
        ({"max_output_tokens": CAPACITY}, "max_output_tokens", "leave max_output_tokens out"),
        ({"max_tokens": 5}, "max_tokens", "there is no field max_tokens"),
        ({"top_logprobs": 21}, "top_logprobs", "an integer from 0 to 20"),
        ({"truncation": "always"}, "truncation", "truncation must be auto or disabled"),
        ({"text": {"verbosity": 3}}, "text.verbosity", "text.verbosity must be a string"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text, json_object or json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", 'an object with a "schema"'),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}},
            "text.format", 'text.format: #/type: "nothing" is no type',
        ),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "reasoning.effort must be a string"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", 'tools[0] must be a function, {"type": "function", "name"'),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "tools[0].name must be a string"),
        ({"tools": [CHOOSE_IN_CHATS]}, "tools[0].name", "must be a string"),
        ({"tools": [CHOOSE], "tool_choice": {"type": "file_search"}}, "tool_choice", "auto, none, required or"),
        (
            {"tools": [CHOOSE], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [OTHER]}},
            "tool_choice", "has 'other', which is not in tools",
        ),
        ({"store": "no"}, "store", "store must be true or false"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_obeyed_is_named(
    served: Served, fields: dict[str, Any], param: str, sentence: str, stream: bool
) -> None:
    body = {"input": "hi", "stream": stream, **fields}
    status, found = served.post("/responses", body)
    assert list(found) == ["error"]
    error = found["error"]
    assert (status, error["param"], error["type"]) == (
        404 if param == "input[0].id" else 400,
        param,
        "invalid_request_error",
    )
    assert sentence in error["message"]
    assert "--" not in error["message"]


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=msg_0", "after")]
)
def test_a_page_that_is_none_is_named(served: Served, query: str, param: str) -> None:
    found = respond(served, max_output_tokens=1)
    status, _, text = served.send("GET", f"/v1/responses/{found.id}/input_items?{query}")
    assert (status, json.loads(text)["error"]["param"]) == (400, param)


def test_fields_without_a_meaning_here_are_ignored(served: Served) -> None:
    plain = respond(served, max_output_tokens=8).output_text
    found = respond(
        served, max_output_tokens=8, include=["reasoning.encrypted_content"], service_tier="auto", user="me",
        safety_identifier="x", prompt_cache_key="k", background=False, max_tool_calls=3, parallel_tool_calls=True,
        reasoning={"effort": "low"}, text={"verbosity": "low"}, tool_choice="auto", top_logprobs=0,
    )  # fmt: skip
    assert found.output_text == plain


def test_a_bundle_without_a_chat_template_has_no_responses(tmp_path: Path) -> None:
    with serving(tmp_path, template=None) as served:
        for path in ("/responses", "/responses/input_tokens"):
            status, found = served.post(path, {"input": "hi"})
            assert (status, found["error"]["code"]) == (400, "no_chat_template")


def test_an_engine_that_fails_is_an_error_or_an_event(tmp_path: Path) -> None:
    with serving(tmp_path, FailingBackend) as served:
        body: dict[str, Any] = {"input": "hi", "max_output_tokens": 10, "width": 4}
        served.post("/responses", body)
        (engine,) = served.engines
        engine.passes_left = 1
        status, found = served.post("/responses", body)
        assert (status, found["error"]["type"]) == (500, "server_error")
        engine.passes_left = 3
        *_, last = events_of(served, **body)
        response = last["response"]
        assert (last["type"], response["status"]) == ("response.failed", "failed")
        assert [item["status"] for item in response["output"]] == ["incomplete"]
        assert response["error"]["code"] == "server_error"
        assert "the engine has no more power" in response["error"]["message"]
        assert served.send("GET", f"/v1/responses/{response['id']}")[0] == 404
