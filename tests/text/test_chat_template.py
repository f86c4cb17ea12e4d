"""Chat templates (text/src/jinja) give the text that transformers renders."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hostile_templates import HOSTILE
from template_grammar import template
from template_renders import CHAT, MARKS, by_streamfuse, by_transformers
from text_samples import TEMPLATES, chats
from tiers import cases
from tokenizer_samples import opened, qwen_like

from streamfuse.runtime.text import Message

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of random templates that transformers compiles

CONSTRUCTS = {
    "line ends of another system": "{% if true %}\r\na\r\n{% endif %}\r\n{{ 'b\r\n' }}\rc\r\n",
    "a text is a sequence": "{{ 'abc' is sequence }}{{ messages[0].content is sequence }}{{ none is sequence }}",
    "a loop over a text": "{% for c in 'abc' %}{{ c }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
    "tools that are none": "{% if tools is iterable and tools | length > 0 %}x{% else %}y{% endif %}",
    "what a trainer learns": "a{% generation %}{{ messages[1].content }}{% set x = 1 %}{% endgeneration %}{{ x }}b",
    "JSON in ASCII": "{{ {'é': '😀\x7f'} | tojson(2) }}{{ ['é'] | tojson(ensure_ascii=true) }}",
    "JSON in other forms": "{{ {'b': [1, {}], 'a': 1e22} | tojson(indent=2, sort_keys=true) }}"
    "{{ {'b': 1, 'a': []} | tojson(separators=(',', ':')) }}{{ [1] | tojson(indent='\\t') }}{{ {1: none} | tojson }}",
    "methods of texts": "{{ 'a-b-c'.partition('-') }}{{ 'abc'.removeprefix('a') }}{{ 'x'.zfill(3) }}|"
    "{{ 'a b'.split(' ', 1) }}{{ ' a b '.rsplit(none, 1) }}{{ 'abcb'.rfind('b') }}{{ 'ab'.ljust(4, '.') }}"
    "{{ '{:>5}|{}'.format('a', [1]) }}{{ 'a'.join('xyz') }}{{ 'aXb'.title() }}{{ 'A1'.isupper() }}{{ 'b'.count('') }}",
    "values as text": "{{ [1.0, 1e16, 1e-5, true, none, 'it\\'s', \"q'\\\"\", '\\u200b', (1,), {'a': 1}] }}",
    "arithmetic": "{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 2 ** -1 }}{{ -7.5 % 2 }}{{ 2 ** 3 ** 2 }}"
    "{{ 1 + true }}{{ 0.1 + 0.2 }}",
    "white space": "{%- if true -%} a {%- endif %}\n  {%+ if true +%}\n b\n  {%- endif %}\n\t{# c #}\n{{ 1 -}}  \n d",
    "names that a scope sets later": "{% for m in messages %}{{ bos_token }}{% endfor %}"
    "{% set bos_token = 'q' %}{{ bos_token }}",
    "generators are read once": "{% set g = messages | map(attribute='role') %}{{ g | list }}{{ g | list }}"
    "{{ g is sequence }}",
    "loops that test": "{% set ns = namespace(n=0) %}{% for m in messages if ns.n < 2 %}{% set ns.n = ns.n + 1 %}"
    "{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}{{ ns.n }}",
    "macros and blocks": "{% macro f(a, b=a, c='d') %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% macro g() %}[{{ caller(1) }}]{% endmacro %}{{ f(1, 2, 3, 4, k=5) }}{{ f(1) }}"
    "{% call(x) g() %}{{ x }}{% endcall %}",
    "loops into themselves": "{% for a in [[1, [2]], [3]] recursive %}{{ loop.depth }}"
    "{% if a is iterable %}({{ loop(a) }}){% else %}{{ a }}{% endif %}{% endfor %}",
    "sorted and grouped": "{{ messages | groupby('role') | map(attribute='grouper') | list }}{{ ['b', 'A'] | sort }}"
    "{{ {'b': 1, 'A': 2} | dictsort }}{{ ['a', 'A'] | unique | list }}{{ [3, 1] | min }}"
    "{{ [1, 2, 3] | batch(2) | list }}",
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_what_a_template_writes_is_what_transformers_writes(name: str) -> None:
    assert by_streamfuse(CONSTRUCTS[name], CHAT) == by_transformers(CONSTRUCTS[name], CHAT)


def is_plain(content: str) -> bool:
    """Whether Python's tables of Unicode know all of it, and it spells no control token, which would be cut."""
    known = all(unicodedata.category(letter) != "Cn" for letter in content)
    return known and "\ufdd0" not in content and not any(mark in content for mark in MARKS.values())


def test_families_of_templates_are_rendered_as_transformers_does() -> None:
    for source in TEMPLATES.values():
        for messages in chats(60):
            if not all(is_plain(one["content"]) for one in messages):
                continue
            expected = by_transformers(source, messages)
            found = by_streamfuse(source, messages)
            assert found[0] == expected[0], messages
            assert found[1] == expected[1] or not expected[0], messages


def test_more_fields_of_a_message_reach_the_template() -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.title }}{{ m.content }}{{ m | tojson }}{% endfor %}"
    messages = [{"role": "assistant", "content": "a", "title": "b<c>", "name": "d"}]
    assert by_streamfuse(source, messages) == by_transformers(source, messages)


PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}[image]{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_template_that_reads_lists_of_parts_alone_gets_these() -> None:
    """As a processor of transformers passes them."""
    in_parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    assert by_streamfuse(PARTS, CHAT) == by_transformers(PARTS, in_parts)  # type: ignore[arg-type]
    either = PARTS.replace("{% for part in", "{{ m.content if m.content is string }}{% for part in")
    assert by_streamfuse(either, CHAT) == by_transformers(either, CHAT)


def test_control_tokens_in_parts_are_text() -> None:
    text = opened(qwen_like(), PARTS)
    end = qwen_like().token_to_id("<|im_end|>")
    messages: list[Message] = [{"role": "user", "content": "a<|im_end|>b"}]
    assert "<|im_end|>" in text.render(messages)
    assert end not in text.encode_chat(messages)
    text.check_chat()


def holds(found: tuple[bool, str], source: str, messages: list[Message]) -> bool:
    """Whether a rendered text is that of transformers; a refusal is always right."""
    expected = by_transformers(source, messages)
    assert not found[0] or found == expected, source
    return found[0] or not expected[0]


def test_random_templates_give_the_text_of_transformers_or_an_error() -> None:
    sources = [template(random.Random(number)) for number in range(cases(100, 400))]
    same = sum(holds(by_streamfuse(source, CHAT), source, CHAT) for source in sources)
    assert same > 0.95 * len(sources)  # what is not supported is rare


def ended(source: str) -> str:
    started = time.monotonic()
    rendered, message = by_streamfuse(source, CHAT)
    assert time.monotonic() - started < 20
    assert not rendered
    assert "\n" not in message
    assert "the chat template" in message
    return message


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_with_a_sentence(name: str) -> None:
    ended(HOSTILE[name])


# As templates that look back at all earlier messages, or at each word of one.
LONG = {
    "many messages": (
        "{% for m in messages %}{% for other in messages[:30] %}{% if other.role == m.role and other.content %}"
        "{% set last = other.content | length + loop.index %}{% endif %}{% endfor %}{{ m.content }}{% endfor %}",
        [{"role": role, "content": "Hello."} for _ in range(1_500) for role in ("user", "assistant")],
    ),
    "many words": (
        "{% for m in messages %}{% for word in m.content.split(' ') %}{% if word and word != 'x' and loop.index %}"
        "{{ word + ' ' }}{% endif %}{% endfor %}{% endfor %}",
        [{"role": "user", "content": "word " * 100_000}],
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_chat_is_rendered(name: str) -> None:
    source, messages = LONG[name]
    assert by_streamfuse(source, messages) == by_transformers(source, messages)


def test_the_limit_of_steps_is_named_and_grows_with_the_messages() -> None:
    endless = HOSTILE["loops without end"]
    few = ended(endless)
    found = re.fullmatch(r"the chat template needs more than (\d+) steps for these messages, .*", few)
    assert found is not None
    assert 1_000_000 < int(found[1]) < 1_100_000
    longer = by_streamfuse(endless, [{"role": "user", "content": "a" * 20_000}])[1]
    assert 1_500_000 < int(longer.split("more than ")[1].split()[0]) < 4_000_000


NOT_VALID = [
    "{{ (" * 300 + "1" + ") }}" * 300,
    "a" * (1 << 21),
    "{{ a }}" * 9_000,
    "{% block a %}",
    "{% include 'a' %}",
]


@pytest.mark.parametrize("source", NOT_VALID)
def test_a_template_that_is_too_large_or_reaches_for_others_is_refused(source: str) -> None:
    ended(source)


def test_a_short_run_of_the_fuzzer_finds_nothing() -> None:
    command = [sys.executable, str(ROOT / "tests" / "fuzz" / "templates.py"), "--count", "60"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


_LITTLE_MEMORY = """
import resource, sys
from template_renders import CHAT, by_streamfuse
assert by_streamfuse("{{ messages[0].role }}", CHAT) == (True, "system")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for more in (96 << 20, 1 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    print(by_streamfuse("{{ messages[0].role }}", CHAT))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(by_streamfuse("{{ messages[0].role }}", CHAT))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's addresses is Linux's")
def test_little_memory_for_a_stack_is_a_sentence_and_no_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LITTLE_MEMORY], capture_output=True, text=True, cwd=ROOT / "tests" / "helpers"
    )
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert first == last == "(True, 'system')"
    assert second == first or "no memory" in second
