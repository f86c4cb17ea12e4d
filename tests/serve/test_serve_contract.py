"""What clients of such servers rely on, byte by byte: the shapes of objects and events. docs/serve.md has the list.

The subjects are those of ExecuTorch's contract for servers of language models. The engine writes a given text, so that
the model's part is certain. Run: python -m pytest tests/serve/test_serve_contract.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import NAME, Served, serving
from writing_backend import BYTES, writing

from streamfuse.serve.requests import read_chat

TEXTS = {
    "hello": "Hello, world",
    "unicode": "café 日本語 😀🎉",
    "weather": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "long": "word " * 100,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), writing(TEXTS)) as served:
        yield served


def asking(words: str, **fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": [{"role": "user", "content": words}], **fields}


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1] if event["choices"])


def test_health_and_models(served: Served) -> None:
    status, headers, text = served.send("GET", "/health")
    assert (status, headers["content-type"], json.loads(text)) == (200, "application/json", {"status": "ok"})
    listed = json.loads(served.send("GET", "/v1/models")[2])
    assert listed["object"] == "list"
    assert [(card["id"], card["object"]) for card in listed["data"]] == [(NAME, "model")]


def test_an_answer_is_one_object(served: Served) -> None:
    status, found = served.post("/chat/completions", asking("hello"))
    (choice,) = found["choices"]
    assert (status, found["object"], found["model"]) == (200, "chat.completion", NAME)
    assert found["id"].startswith("chatcmpl-")
    assert isinstance(found["created"], int)
    assert choice["message"] == {"role": "assistant", "content": "Hello, world", "refusal": None}
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    usage = found["usage"]
    assert usage["completion_tokens"] == len("Hello, world")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > usage["prompt_tokens"] > 0


@pytest.mark.parametrize("width", [None, 4, 8])
def test_a_stream_begins_with_the_role_and_ends_with_a_reason_and_done(served: Served, width: int | None) -> None:
    *chunks, done = events = served.events(asking("hello", width=width))
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert text_of(events) == "Hello, world"
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_of_a_stream_is_a_chunk_without_choices(served: Served) -> None:
    *chunks, last, done = served.events(asking("hello", stream_options={"include_usage": True}))
    assert (done, last["choices"]) == ("[DONE]", [])
    assert last["usage"]["completion_tokens"] == len("Hello, world")
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_characters_of_several_bytes_arrive_whole(served: Served) -> None:
    assert (
        served.post("/chat/completions", asking("unicode"))[1]["choices"][0]["message"]["content"] == TEXTS["unicode"]
    )
    events = served.events(asking("unicode"))
    assert text_of(events) == TEXTS["unicode"]
    assert "\ufffd" not in json.dumps(events, ensure_ascii=False)


def test_events_are_ascii(served: Served) -> None:
    """Some clients split lines at U+2028, as Python's splitlines does."""
    _, _, text = served.send("POST", "/v1/chat/completions", asking("unicode", stream=True))
    assert text.isascii()


def test_tokens_of_control_never_show(served: Served) -> None:
    assert "<|im" not in json.dumps(served.events(asking("hello")))
    token = BYTES.encode("w").ids[0]
    found = served.post("/chat/completions", asking("hello", stop_token_ids=[token]))[1]
    assert found["choices"][0]["message"]["content"] == "Hello, "
    assert (found["choices"][0]["finish_reason"], found["usage"]["completion_tokens"]) == ("stop", len("Hello, "))


def test_a_call_that_the_model_decides_on_is_an_object_with_json_text(served: Served) -> None:
    for fields in ({}, {"tool_choice": "auto"}):
        (choice,) = served.post("/chat/completions", asking("weather", tools=[WEATHER], **fields))[1]["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert isinstance(call["id"], str)
        assert call["id"] != ""
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    *chunks, _ = events = served.events(asking("weather", tools=[WEATHER]))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
    }  # an empty text would be a part of its own
    (streamed,) = [one for delta in deltas for one in delta.get("tool_calls", ())]
    assert streamed == {"index": 0, **call, "id": streamed["id"]}
    assert (text_of(events), chunks[-1]["choices"][0]["finish_reason"]) == ("", "tool_calls")


def test_usage_has_the_fields_of_openai(served: Served) -> None:
    *_, last, _ = served.events(asking("hello", stream_options={"include_usage": True}))
    for usage in (last["usage"], served.post("/chat/completions", asking("hello"))[1]["usage"]):
        assert usage["prompt_tokens_details"].keys() == {"cached_tokens", "audio_tokens"}
        assert usage["prompt_tokens_details"]["audio_tokens"] == 0
        details = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        assert usage["completion_tokens_details"].keys() == set(details)
        assert [usage["completion_tokens_details"][name] for name in details[:2]] == [0, 0]


def test_without_tools_or_with_none_allowed_a_call_is_text(served: Served) -> None:
    (choice,) = served.post("/chat/completions", asking("weather"))[1]["choices"]
    assert (choice["message"].get("tool_calls"), choice["finish_reason"]) == (None, "stop")
    assert "get_weather" in choice["message"]["content"]
    found = served.post("/chat/completions", asking("hello", tools=[WEATHER], tool_choice="none"))[1]
    assert found["choices"][0]["message"]["content"] == "Hello, world"


def test_the_reason_is_length_at_a_limit_and_stop_before_it(served: Served) -> None:
    def ended(**fields: Any) -> tuple[str, str]:
        (choice,) = served.post("/chat/completions", asking("hello", **fields))[1]["choices"]
        return choice["message"]["content"], choice["finish_reason"]

    assert ended(max_tokens=5) == ("Hello", "length")
    assert ended(max_tokens=100) == ("Hello, world", "stop")
    assert ended(max_tokens=8, stop=", w") == ("Hello", "stop")
    assert ended(max_tokens=100, stop=["zzz", "wor"]) == ("Hello, ", "stop")


def test_options_reach_the_generation(served: Served) -> None:
    given = {"max_tokens": 7, "temperature": 0.1, "top_p": 0.8, "top_k": 32, "seed": 123}
    assert served.post("/chat/completions", asking("long", **given))[1]["usage"]["completion_tokens"] == 7
    fields = ({"top_k": 1}, {"top_p": 0}, {"top_k": 0})
    wild = [served.post("/chat/completions", asking("long", temperature=1e20, seed=1, **one))[1] for one in fields]
    assert [found["choices"][0]["message"]["content"] == TEXTS["long"] for found in wild] == [True, True, False]


@pytest.mark.parametrize(("seed", "core"), [(-1, 2**64 - 1), (-(2**63), 2**63), (0, 0), (2**64 - 1, 2**64 - 1)])
def test_a_signed_seed_is_read_modulo_2_64(seed: int, core: int) -> None:
    assert read_chat({"messages": [{"role": "user", "content": "x"}], "seed": seed}, [NAME]).options["seed"] == core


@pytest.mark.parametrize(
    "body",
    [
        {"model": NAME},
        {"model": NAME, "messages": "hi"},
        {"model": NAME, "messages": [{"content": "hi"}]},
        asking("hello", temperature="hot"),
        asking("hello", stream="maybe"),
    ],
)
def test_a_malformed_request_is_a_400(served: Served, body: dict[str, Any]) -> None:
    status, found = served.post("/chat/completions", body)
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")


def test_an_unknown_model_is_a_404_and_a_long_prompt_a_400(served: Served) -> None:
    status, found = served.post("/chat/completions", {**asking("hello"), "model": "other"})
    assert (status, found["error"]["code"]) == (404, "model_not_found")
    for stream in (False, True):
        for body in (asking("word " * 40000, stream=stream), asking("hello", stream=stream, max_tokens=10000)):
            status, found = served.post("/chat/completions", body)
            assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
            assert found["error"]["message"]
