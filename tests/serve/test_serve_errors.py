"""Requests that cannot be answered: each is an error in OpenAI's form that names the field.

Run: python -m pytest tests/serve/test_serve_errors.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served import CAPACITY, NAME, FailingBackend, Served, allowed, serving
from tool_samples import TOOLS

from streamfuse.runtime.core import GrammarStopped
from streamfuse.serve.app import MOST_BODY_BYTES
from streamfuse.serve.errors import request_error

ASK = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ODD = {"name": "odd", "strict": True, "parameters": {"type": "object", "properties": {"x": {"uniqueItems": True}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as served:
        yield served


def refused(served: Served, path: str, body: object) -> tuple[int, dict[str, Any]]:
    """Status and error object."""
    status, found = served.post(path, body)
    assert list(found) == ["error"]
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in found["error"]["message"]
    return status, found["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"n": 2}, "n", "an answer is one text; send the request several times"),
        ({"logprobs": 1}, "logprobs", "logprobs must be true or false, not 1"),
        ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be an integer from 0 to 20, not 21"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "use repetition_penalty"),
        ({"presence_penalty": -1}, "presence_penalty", "use repetition_penalty"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "use regex, grammar or response_format"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"reasoning_effort": 3}, "reasoning_effort", "reasoning_effort must be a string, not 3"),
        ({"max_token": 5}, "max_token", "there is no field max_token"),
        ({"\ud800": 5}, "\\ud800", "there is no field \\ud800"),
        ({"temperature": "hot"}, "temperature", "temperature must be a number, not 'hot'"),
        ({"temperature": -1}, "temperature", "temperature must be at least 0"),
        ({"top_p": -0.1}, "top_p", "top_p must be above 0 and at most 1"),
        ({"top_k": 1.5}, "top_k", "top_k must be an integer"),
        ({"seed": -(2**63) - 1}, "seed", "seed must be an integer from 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be an integer of at least 1"),
        ({"max_tokens": -2}, "max_tokens", "max_tokens must be an integer of at least 1"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens", "max_completion_tokens must be an integer"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens", "differ; give one of them"),
        ({"stop": 5}, "stop", "stop must be text, or a list of texts, not 5"),
        ({"stop": [""]}, "stop", "stop must not be empty"),
        ({"width": 5}, "width", "width must be one of"),
        ({"ignore_eos": 1}, "ignore_eos", "ignore_eos must be true or false, not 1"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token_ids must be a list of token ids"),
        ({"stream_options": 4}, "stream_options", "stream_options must be an object"),
        ({"tools": {}}, "tools", "tools must be a list of tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "tools[0] must be"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "must be a string, not None"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "there are two tools with the name get_weather"),
        ({"tools": [{"type": "function", "function": ODD}], "tool_choice": "required"}, "tools", "uniqueItems"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice required needs tools"),
        ({"tools": TOOLS, "tool_choice": "often"}, "tool_choice", "tool_choice must be auto, none, required or"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "snow"}}},
            "tool_choice", "tool_choice must be one of auto, required, none, get_weather, now, not 'snow'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "often", "tools": []}}},
            "tool_choice.allowed_tools", 'must be {"mode": "auto" or "required", "tools": [...]}',
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ODD]}}},
            "tool_choice.allowed_tools.tools[0]", "must be",
        ),
        (
            {"tools": TOOLS[:1], "tool_choice": allowed("auto", "get_weather", "snow")},
            "tool_choice.allowed_tools", "tool_choice.allowed_tools has 'snow', which is not in tools",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "\ud800"}}},
            "tool_choice", "tool_choice \\ud800 needs tools",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", "must be true or false"),
        ({"response_format": "json"}, "response_format", "response_format must be an object"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object or json_schema"),
        ({"response_format": {"type": "json_object", "schema": 1}}, "response_format.schema", "must be a schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", 'an object with a "schema"'),
        ({"response_format": SCHEMA}, "response_format", 'response_format: #/type: "nothing" is no type'),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "do not go together"),
        ({"regex": "("}, "regex", "regex: "),
        ({"grammar": "start: nowhere"}, "grammar", "grammar: "),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs", "chat_template_kwargs must be an object"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_obeyed_is_named(
    served: Served, fields: dict[str, Any], param: str, sentence: str, stream: bool
) -> None:
    status, error = refused(served, "/chat/completions", {"messages": ASK, "stream": stream, **fields})
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert sentence in error["message"]
    assert "--" not in error["message"]


@pytest.mark.parametrize(
    ("messages", "param", "sentence"),
    [
        (None, "messages", "messages must be a list with at least one message"),
        ([], "messages", "at least one message"),
        ("hi", "messages", "messages must be a list of messages, not 'hi'"),
        (["hi"], "messages[0]", "messages[0] must be an object"),
        ([{"content": "hi"}], "messages[0].role", "messages[0].role must be one of system, developer, user"),
        ([{"role": "function", "content": "hi"}], "messages[0].role", "not 'function'"),
        ([{"role": "user"}], "messages[0].content", "must be a string or a list of parts, not None"),
        ([{"role": "system"}, *ASK], "messages[0].content", "not None"),
        ([{"role": "assistant", "content": 5}, *ASK], "messages[0].content", "not 5"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}], "messages[0].content[0]", "text only"),
        ([*ASK, {"role": "user", "content": [IMAGE]}], "messages[1].content[0]", "the model reads text only"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]", "the model reads text only"),
        ([{"role": "user", "content": "hi", "audio": {"id": "1"}}], "messages[0].audio", "not supported"),
        ([{"role": "user", "content": "hi", "tool_calls": [1]}], "messages[0].tool_calls", "of the assistant"),
        (
            [*ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
            "messages[1].tool_calls[0].function.arguments", "must be the text of a JSON object, not [1]",
        ),
        ([*ASK, {"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[1].tool_calls[0]", "must be"),
        ([{"role": "tool", "content": "x", "tool_call_id": 4}], "messages[0].tool_call_id", "must be a string"),
        ([{"role": "user", "content": "\ud800"}], None, "is not UTF-8 text"),
    ],
)  # fmt: skip
def test_a_message_that_is_none_is_named(served: Served, messages: Any, param: str | None, sentence: str) -> None:
    status, error = refused(served, "/chat/completions", {"messages": messages})
    assert (status, error["param"]) == (400, param)
    assert sentence in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({}, "prompt", "prompt must be a string or a list of token ids, not None"),
        ({"prompt": {}}, "prompt", "prompt must be a string"),
        ({"prompt": ["a"] * 65}, "prompt", "prompt has 65 prompts; send at most 64 in a request"),
        ({"prompt": [1.5]}, "prompt", "prompt must be a string"),
        ({"prompt": ["a", 5]}, "prompt", "prompt must be a string or a list of token ids, not ['a', 5]"),
        ({"prompt": ["a", []]}, "prompt[1]", "prompt[1] must be a string or a list of token ids, not []"),
        ({"prompt": ["a", [999999]]}, "prompt[1]", "prompt[1]: the prompt holds token 999999, outside"),
        ({"prompt": ["a", "\ud800"]}, "prompt[1]", "is not UTF-8 text"),
        ({"prompt": [999999]}, None, "token 999999, outside this bundle's vocabulary"),
        ({"prompt": "a", "echo": 1}, "echo", "echo must be true or false, not 1"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "a", "best_of": 2}, "best_of", "one text"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "logprobs must be an integer from 0 to 20, not 21"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "logprobs must be an integer from 0 to 20, not True"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "does not fill gaps"),
        ({"prompt": "a", "tools": TOOLS}, "tools", "there is no field tools"),
        ({"prompt": "a", "messages": ASK}, "messages", "there is no field messages"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "needs stream: true"),
        (
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "tru",
        ),
    ],
)
def test_completions_name_their_fields_too(
    served: Served, fields: dict[str, Any], param: str | None, sentence: str
) -> None:
    status, error = refused(served, "/completions", fields)
    assert (status, error["param"]) == (400, param)
    assert sentence in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_before_it_is_read(served: Served, stream: bool) -> None:
    runs = [len(engine.calls) for engine in served.engines]
    long = [{"role": "user", "content": "word " * CAPACITY}]
    status, error = refused(served, "/chat/completions", {"messages": long, "stream": stream})
    assert (status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
    most = f"this model's maximum context length is {CAPACITY} tokens"  # clients look for these words, or for
    long = f"the prompt is too long: {most}, but it has "
    assert error["message"].startswith(long)
    assert error["message"].endswith(" and needs room for an answer; shorten it")
    body = {"messages": ASK, "max_completion_tokens": CAPACITY, "stream": stream}
    status, error = refused(served, "/chat/completions", body)
    assert (status, error["param"], error["code"]) == (400, "max_completion_tokens", "context_length_exceeded")
    tokens = len(served.model.encode("hi"))
    room = CAPACITY - tokens
    assert error["message"] == (
        f"{most}, but the prompt has {tokens} and max_completion_tokens is {CAPACITY}; ask for at most {room}, or "
        "leave max_completion_tokens out"
    )
    for length in (CAPACITY, CAPACITY + 1):
        status, error = refused(served, "/completions", {"prompt": [1] * length, "stream": stream})
        assert (status, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
        assert error["message"] == f"{long}{length} and needs room for an answer; shorten it"
    echo = {"prompt": [1] * (CAPACITY + 1), "echo": True, "max_tokens": 0, "stream": stream}
    assert refused(served, "/completions", echo)[1]["message"] == f"{long}{CAPACITY + 1}; shorten it"
    several = {"prompt": ["hi", [1] * CAPACITY], "stream": stream}
    status, error = refused(served, "/completions", several)
    assert (status, error["param"], error["code"]) == (400, "prompt[1]", "context_length_exceeded")
    words = f"{long}{CAPACITY} and needs room for an answer; shorten it"
    assert error["message"] == words.replace("the prompt", "prompt[1]")
    assert [len(engine.calls) for engine in served.engines] == runs
    most = served.post("/chat/completions", {"messages": ASK, "max_tokens": CAPACITY - tokens})
    assert most[0] == 200


@pytest.mark.parametrize("body", ["", "{", "[]", "[1]", '"hi"', '{"seed": NaN}', "[" * 100000, b'{"model": "\xff"}'])
def test_a_body_that_is_no_json_object_is_refused(served: Served, body: str | bytes) -> None:
    status, _, text = served.send("POST", "/v1/chat/completions", body)
    assert status == 400
    assert json.loads(text)["error"]["message"].startswith(("the body is not JSON: ", "the body must be a JSON object"))


def test_a_number_that_nothing_takes_is_named_in_few_words(served: Served) -> None:
    status, _, text = served.send("POST", "/v1/chat/completions", '{"seed": ' + "9" * 5000 + "}")
    assert status == 400
    words = "the body is not JSON: a number of 5000 digits; integers have at most 64 bits"
    assert json.loads(text)["error"]["message"] == words
    status, error = refused(served, "/chat/completions", {"messages": ASK, "seed": 10**4000})
    expected = f"seed must be an integer from 0 to 2**64 - 1, not 1{'0' * 19}... (4001 digits)"
    assert (status, error["param"], error["message"]) == (400, "seed", expected)


def test_a_large_body_and_one_of_another_type_are_refused(served: Served) -> None:
    large = {"messages": [{"role": "user", "content": "x" * MOST_BODY_BYTES}]}
    status, error = refused(served, "/chat/completions", large)
    assert (status, error["code"]) == (413, "body_too_large")
    status, _, text = served.send("POST", "/v1/chat/completions", "{}", Content_Type="text/plain")
    assert (status, json.loads(text)["error"]["code"]) == (415, "unsupported_media_type")


def test_another_model_path_or_method_is_an_error_in_the_same_form(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.chat.completions.create(model="gpt-9", messages=ASK)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert repr(NAME) in str(caught.value)
    with pytest.raises(openai.NotFoundError, match="there is no such model"):
        served.client.models.retrieve("gpt-9")
    for method, path, expected in (("GET", "/v2", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)):
        status, headers, text = served.send(method, path)
        assert status == expected
        assert ("allow" in headers) == (status == 405)
        assert json.loads(text)["error"]["type"] == "invalid_request_error"
        assert path in text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/chat/completions", "Not Found; the base URL of the API ends in /v1"),
        ("/responses", "the base URL of the API ends in /v1"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/resp_1/cancel: Not Found"),
        ("/v1/embeddings", "POST /v1/embeddings: Not Found"),
    ],
)
def test_a_path_that_is_not_there_names_the_one_that_is(served: Served, path: str, sentence: str) -> None:
    status, _, text = served.send("POST", path, {"messages": ASK})
    assert status == 404
    assert json.loads(text)["error"]["message"].endswith(sentence)


def test_a_bundle_without_a_chat_template_completes_only(tmp_path: Path) -> None:
    with serving(tmp_path, template=None) as served:
        status, error = refused(served, "/chat/completions", {"messages": ASK})
        assert (status, error["code"]) == (400, "no_chat_template")
        assert served.post("/completions", {"prompt": "hi", "max_tokens": 3})[0] == 200


def test_an_engine_that_fails_is_an_error_of_the_server_and_the_next_request_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, FailingBackend) as served:
        body = {"messages": ASK, "max_tokens": 10, "width": 4}
        (_, expected), (engine,) = served.post("/chat/completions", body), served.engines
        engine.passes_left = 1
        status, error = refused(served, "/chat/completions", body)
        assert (status, error["type"]) == (500, "server_error")
        assert "the engine has no more power" in error["message"]
        engine.passes_left = 3
        events = served.events(body)
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "the engine has no more power" in events[-2]["error"]["message"]
        assert events[-1] == "[DONE]"
        assert served.post("/chat/completions", body)[1]["choices"] == expected["choices"]


def test_a_grammar_that_meets_a_limit_while_a_text_is_generated_is_the_request_s_fault() -> None:
    found = request_error(GrammarStopped("grammar: step limit 4000 is reached"))
    assert found is not None
    assert (found.status, found.code, found.body["error"]["type"]) == (400, "invalid_grammar", "invalid_request_error")
