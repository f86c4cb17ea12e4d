"""Chat templates from a grammar: every filter, test, method and operator, in the hands of chance.

`template(rng)` is one that mostly works, to be compared; `hostile(rng)` is one that grows what it works with.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_METHODS = [
    "capitalize", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper", "join", "ljust", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit",
    "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "zfill",
]  # fmt: skip
_TEXTS = [
    "'abc'", "'a b  c'", "''", "'<think>x</think>'", "'é😀'", "'12'", "' x\\n'", "'a,b'", "'%s-%d'", "'{} {}'",
    "'3.5'",
]  # fmt: skip
_NAMES = [
    "messages", "message", "x", "y", "ns.a", "ns.b", "loop", "bos_token", "tools", "missing", "add_generation_prompt",
]  # fmt: skip
_TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping",
    "escaped", "callable", "iterable", "sequence", "odd", "even", "lower", "upper", "divisibleby(2)", "eq(1)",
    "ne('a')", "lt(3)", "ge(0)", "in([1, 'a'])", "in 'abc'", "equalto('user')", "filter", "test", "sameas(true)",
    "gt(1)", "le(2)",
]  # fmt: skip
_TEXT_FILTERS = [
    "upper", "lower", "capitalize", "title", "trim", "trim('a')", "center(9)", "indent", "indent(2, true)", "wordcount",
    "replace('a', 'bb')", "replace('', '-', 2)", "e", "safe", "string", "length", "list", "first", "last", "reverse",
    "format('a', 3)", "int", "float", "int(7)", "tojson", "default('d')", "d('d', true)", "escape | length",
    "indent(1, false, true)", "forceescape", "unique | list", "sort | join", "batch(2) | list", "map('upper') | join",
    "select('eq', 'a') | list", "tojson(true)", "tojson(indent=2)", "center", "attr('upper')",
]  # fmt: skip
_LIST_FILTERS = [
    "list", "length", "count", "first", "last", "reverse | list", "join", "join('-')", "sort", "sort(reverse=true)",
    "unique | list", "sum", "min", "max", "batch(2) | list", "batch(2, 'f') | list", "slice(2) | list", "tojson",
    "slice(3, 'f') | list", "map('string') | list", "map('upper') | join(',')", "select | list", "reject | list",
    "select('string') | list", "reject('number') | list", "map(attribute='role') | list", "map(attribute=0) | list",
    "selectattr('role', 'equalto', 'user') | list", "rejectattr('role') | list", "groupby('role') | list",
    "sort(attribute='role') | length", "map(attribute='content', default='D') | join('|')", "tojson(2)", "string",
    "sort(case_sensitive=true)", "unique(true) | list", "sum(start=[])", "join('-', attribute='role')", "select",
    "map('length') | sum", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)", "tojson(indent=1)", "default(1)",
    "groupby('role') | map(attribute='grouper') | list", "map('default', 'q') | list", "min(attribute='role')",
]  # fmt: skip
_DICT_FILTERS = [
    "dictsort", "dictsort(by='value')", "items | list", "length", "list", "tojson", "tojson(indent=2)", "string",
    "dictsort(reverse=true)", "tojson(sort_keys=true, separators=(',', ':'))", "first", "join(',')", "attr('get')",
    "tojson(ensure_ascii=true)", "reverse | list", "sort",
]  # fmt: skip
_NUMBER_FILTERS = ["abs", "round", "round(1)", "round(2, 'floor')", "int", "float", "string", "tojson", "default(3)"]
_DICT_METHODS = ["items()", "keys()", "values()", "get('role')", "get('q', 3)", "copy()", "role", "content", "q"]
_METHOD_ARGUMENTS = {
    "center": ["7", "9, '*'"], "ljust": ["5", "6, '.'"], "rjust": ["5", "6, '.'"], "zfill": ["4"],
    "count": ["'a'", "'', 1"],
    "endswith": ["'c'", "('x', 'c')", "'b', 0, 2"], "startswith": ["'a'", "('x', 'a')", "'b', 1"],
    "find": ["'b'", "'', 9"],
    "index": ["'a'"], "rfind": ["'b'", "'a', -2"], "rindex": ["'a'"], "format": ["1, 'a'", ""],
    "join": ["['a', 'b']", "'ab'"],
    "partition": ["' '", "'a'"],
    "rpartition": ["' '"], "removeprefix": ["'a'"], "removesuffix": ["'c'"],
    "replace": ["'a', 'bb'", "'', '-', 2", "' ', ''"], "split": ["", "','", "' ', 1", "none, 1", "sep='b'"],
    "rsplit": ["", "' ', 1", "none, 1", "'b'"], "strip": ["", "'a '"], "lstrip": ["", "'a'"], "rstrip": ["", "'\\n'"],
}  # fmt: skip
_OPERATORS = ["+", "-", "*", "/", "//", "%", "~"]
_COMPARISONS = ["==", "!=", "<", "<=", ">", ">=", "in", "not in"]


class Grammar:
    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng, self.left = rng, size

    def one(self, *choices: Callable[[], str] | str) -> str:
        self.left -= 1
        choice = self.rng.choice(choices)
        return choice if isinstance(choice, str) else choice()

    def of(self, names: list[str]) -> str:
        return self.rng.choice(names)

    def any(self) -> str:
        if self.left < 0:
            return self.one("1", "'a'", "[]", "none", "message")
        return self.one(self.text, self.text, self.number, self.list, self.dict, self.truth, self.name)

    def name(self) -> str:
        return self.of(_NAMES)

    def text(self) -> str:
        if self.left < 0 or self.rng.random() < 0.3:
            return self.of([*_TEXTS, "message.content", "message.role", "x", "messages[0].content"])
        if self.rng.random() < 0.05:
            return self.any()
        return self.one(
            lambda: f"({self.text()} ~ {self.any()})",
            lambda: f"({self.text()} + {self.text()})",
            lambda: f"{self.text()} | {self.of(_TEXT_FILTERS)}",
            self.method,
            self.method,
            lambda: f"({self.text()})[{self.index()}:{self.index()}:{self.of(['', '', '-1', '2'])}]",
            lambda: f"({self.text()})[{self.of(['0', '-1', '1', '9'])}]",
            lambda: f"({self.text()} if {self.truth()} else {self.text()})",
            lambda: f"({self.text()} * {self.number()})",
            lambda: f"(('%s|%5s|%-4d|%05.1f' % ({self.any()}, {self.text()}, {self.number()}, {self.number()})))",
            lambda: f"'{{:>4}}|{{}}|{{!r}}'.format({self.text()}, {self.any()}, {self.any()})",
            lambda: f"{self.list()} | join({self.text()})",
            lambda: f"m({self.any()}, {self.any()})",
        )

    def method(self) -> str:
        name = self.of(_METHODS)
        arguments = self.of(_METHOD_ARGUMENTS.get(name, [""]))
        return f"({self.text()}).{name}({arguments})"

    def index(self) -> str:
        return self.of(["", "", "0", "1", "-1", "2", "-9", "9"])

    def number(self) -> str:
        if self.left < 0 or self.rng.random() < 0.4:
            return self.of(["0", "1", "2", "3", "-1", "2.5", "1.0", "10", "true", "1e-5", "0.1", "1e16", "loop.index"])
        if self.rng.random() < 0.05:
            return self.any()
        return self.one(
            lambda: f"({self.number()} {self.of(_OPERATORS)} {self.number()})",
            lambda: f"({self.list()} | length)",
            lambda: f"({self.number()} | {self.of(_NUMBER_FILTERS)})",
            lambda: f"-{self.number()}",
            lambda: f"({self.number()} ** 2)",
            lambda: f"({self.text()} | length)",
        )

    def list(self) -> str:
        if self.left < 0 or self.rng.random() < 0.2:
            return self.of(
                [
                    "messages",
                    "[]",
                    "[1, 'a', none]",
                    "range(4)",
                    "['b', 'A', 'c']",
                    "[3, 1, 2]",
                    "(1, 2)",
                    "messages[1:]",
                ]
            )
        if self.rng.random() < 0.05:
            return self.any()
        return self.one(
            lambda: f"[{self.any()}, {self.any()}]",
            lambda: f"({self.list()} + {self.list()})",
            lambda: f"({self.list()} | {self.of(_LIST_FILTERS)})",
            lambda: f"({self.list()} | {self.of(_LIST_FILTERS)})",
            lambda: f"({self.list()})[{self.index()}:{self.index()}]",
            lambda: f"({self.text()}).split({self.of(['', repr(',')])})",
            lambda: f"({self.dict()}).items()",
            lambda: f"({self.any()},)",
            lambda: f"({self.list()})[{self.of(['0', '-1', '1'])}]",
            lambda: f"({self.list()} * 2)",
        )

    def dict(self) -> str:
        if self.left < 0 or self.rng.random() < 0.4:
            return self.of(
                ["message", "{'b': 1, 'a': 2}", "{}", "{'k': [1, {'z': none}]}", "messages[-1]", "{1: 2, 2: 'x'}"]
            )
        if self.rng.random() < 0.05:
            return self.any()
        return self.one(
            lambda: "{" + f"'r': {self.any()}, {self.text()}: {self.any()}" + "}",
            lambda: f"dict({self.dict()}, q={self.any()})",
            lambda: f"({self.dict()}).{self.of(_DICT_METHODS)}",
            lambda: f"({self.dict()})[{self.text()}]",
            lambda: f"({self.dict()} | {self.of(_DICT_FILTERS)})",
        )

    def truth(self) -> str:
        if self.left < 0:
            return self.of(["true", "false", "x", "message"])
        return self.one(
            lambda: f"{self.any()} is {self.of(['', 'not '])}{self.of(_TESTS)}",
            lambda: f"({self.any()} {self.of(_COMPARISONS)} {self.any()})",
            lambda: f"({self.text()} {self.of(_COMPARISONS)} {self.text()})",
            lambda: f"({self.number()} {self.of(_COMPARISONS)} {self.number()})",
            lambda: f"({self.truth()} {self.of(['and', 'or'])} {self.any()})",
            lambda: f"not {self.any()}",
            lambda: f"message.role == '{self.of(['user', 'system', 'assistant'])}'",
        )

    def tag(self, inner: str) -> str:
        return "{" + self.of(["%", "%", "%-", "%+"]) + f" {inner} " + self.of(["%}", "%}", "-%}"])

    def printed(self) -> str:
        return self.of(["{{ ", "{{ ", "{{- "]) + self.any() + self.of([" }}", " }}", " -}}"])

    def data(self) -> str:
        return self.of(["a", "\n", "  ", "\n  ", "x y\n", "\r\n", "{# c #}", "é", "\n\n", ""])

    def statements(self) -> str:
        return "".join(self.statement() for _ in range(self.rng.randint(1, 3)))

    def statement(self) -> str:
        if self.left < 0:
            return self.data()
        body = self.statements
        return self.one(
            self.printed,
            self.printed,
            self.printed,
            self.data,
            lambda: self.tag(f"set {self.of(['x', 'y', 'ns.a', 'ns.b', 'message'])} = {self.any()}"),
            lambda: self.tag("set x, y = 1, " + self.any()),
            lambda: (
                self.tag(f"set {self.of(['x', 'y'])}{self.of(['', ' | trim', ' | upper'])}")
                + body()
                + self.tag("endset")
            ),
            lambda: self.tag(f"if {self.truth()}") + body() + self.otherwise() + self.tag("endif"),
            lambda: self.loop("for message in messages"),
            lambda: self.loop(f"for x in {self.list()}"),
            lambda: self.loop(f"for x in {self.text()}"),
            lambda: self.loop(f"for x in {self.list()} if {self.truth()}"),
            lambda: self.loop(f"for x, y in ({self.dict()}).items()"),
            lambda: self.tag(f"with x = {self.any()}") + body() + self.tag("endwith"),
            lambda: (
                self.tag(f"filter {self.of(['upper', 'trim', 'indent', 'replace(1, 2)'])}")
                + body()
                + self.tag("endfilter")
            ),
            lambda: self.tag("generation") + body() + self.tag("endgeneration"),
            lambda: self.tag(f"macro m(x, y={self.any()})") + body() + self.tag("endmacro"),
            lambda: self.tag(f"call(x) c({self.any()})") + body() + self.tag("endcall"),
            lambda: "{% raw %}{{ x }}{% endraw %}",
        )

    def otherwise(self) -> str:
        return self.of(["", self.tag("else") + self.statements(), self.tag(f"elif {self.truth()}") + self.statements()])

    def loop(self, head: str) -> str:
        about = ["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.cycle('a', 'b') }}",
                 "{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ loop.revindex }}", "{{ loop.changed(x) }}",
                 "{% if x %}{% continue %}{% endif %}", "{% if loop.index > 2 %}{% break %}{% endif %}"]  # fmt: skip
        end = self.of(["", "", self.tag("else") + "none"])
        return self.tag(head) + self.of(about) + self.statements() + self.of(about) + end + self.tag("endfor")


_BEGINNING = (
    "{% macro m(x, y=2) %}({{ x }}{{ y }}){% endmacro %}{% macro c(x) %}[{{ caller(x) }}]{% endmacro %}"
    "{% set ns = namespace(a=1, b='t') %}{% set message = messages[0] %}"
)


def template(rng: random.Random) -> str:
    return _BEGINNING + Grammar(rng, rng.choice([6, 15, 40])).statements()


def hostile(rng: random.Random) -> str:
    """Something that grows or is shared, and then all that can be done with it."""
    grammar = Grammar(rng, 12)
    grows = [
        "ns.x ~ ns.x", "ns.x + ns.x", "[ns.x, ns.x]", "(ns.x, ns.x)", "{'a': ns.x, 'b': ns.x}", "ns.x * 2", "[ns.x]",
        "ns.x | string", "ns.x | list", "ns.x | tojson", "ns.x | map('string')", "ns.x.replace('a', ns.x)",
        "dict(a=ns.x)", "ns.x.join([ns.x, ns.x])", "ns.x | replace('a', ns.x)", "ns.x | batch(1) | list",
        "ns.x | indent(9)", "ns.x.split('b')", "ns.x | center(loop.index * 999)", "ns.x.ljust(loop.index * 99999)",
        "[ns.x] * 9", "ns.x | reverse", "ns.x * ns.y", "ns.y * ns.y", "ns.x | join(ns.x)", "namespace(a=ns.x)",
        "ns.x.format(ns.x)", "ns.x | unique", "ns.x | select", "ns.x | e", "cycler(ns.x)", "(ns.x, loop)", "f(ns.x)",
        "ns.x | groupby(0)", "ns.x | sort", "ns.x % ns.x", "ns", "ns.x.items()", "ns.x | items",
        "ns.x | sum(start=[])", "ns.x | upper", "[ns]", "ns.x[1:]", "ns.x[::-1]",
    ]  # fmt: skip
    uses = [
        "ns.x == ns.z", "ns.x < ns.z", "ns.x in ns.z", "ns.z in [ns.x]", "ns.x ~ ''", "ns.x", "ns.x | tojson",
        "ns.x | string", "''.join([ns.x])", "ns.x | length", "ns.x | join", "{ns.x: 1}", "{}[ns.x]",
        "[ns.x, ns.z] | unique | list", "ns.x.count('a')", "[ns.x, ns.z] | sort", "[ns.x, ns.z] | min",
        "'%s%s' % (ns.x, ns.z)", "'{}'.format(ns.x)", "ns.x.find('b')", "ns.x is eq ns.z", "[ns.x, ns.z].index(ns.z)",
        "[[ns.x, 1], [ns.z, 2]] | groupby(0)", "raise_exception(ns.x)", "ns.x.q.q", "x[ns.x].q", "loop.changed(ns.x)",
        "ns.x | tojson(indent=ns.y)", "range(ns.y) | list", "'a'.zfill(ns.y)", "'%*d' % (ns.y, 1)",
        "'{:>{w}}'.format(1, w=ns.y)", "'%1000000000d' % 1", "'{:9999999999}'.format('a')", "'a' | center(ns.y)",
        "10 ** ns.y", "ns.x | indent(ns.y)", "'a' | indent(ns.y)", "[1] | batch(ns.y, 'x') | list",
        "[1] | slice(ns.y) | list", "f(ns.x)", "ns.x | round(ns.y)", "ns.x | dictsort",
        "ns.x | map(attribute='a.' * ns.y) | list", "ns.x.splitlines()", "ns.x.strip(ns.z)", "ns.x.partition(ns.z)",
        "strftime_now('%Y' * ns.y)", "ns.x is divisibleby(ns.y)", "'%9999999d' is odd", "ns.x | title",
        "ns.x | wordcount", "dict(ns.x)", "dict(**ns.x)", "f(*ns.x)", "ns.x | attr(ns.x)",
        "ns.x | sort(attribute=ns.x)", "ns.x[::2]", "f", "ns.x.startswith((ns.z, ns.x))", "joiner(ns.x)",
        "ns.x | int", "ns.x | float", "ns.x | select('eq', ns.z) | list",
    ]  # fmt: skip
    start = grammar.of(["'ab'", "['a']", "{'a': 1}", "('a',)", "7", "messages", "'a' * 100000", "range(99)"])
    many = grammar.of(["9", "40", "100", "9999", "99999"])
    grow = grammar.of(grows)
    body = (
        "{% set ns.x = "
        + grow
        + " %}"
        + grammar.of(["", "{% set ns.y = ns.y * 2 %}", "{{ " + grammar.of(uses) + " }}"])
    )
    body = grammar.of(
        [body, body, "{% set v %}" + body + "{{ ns.x }}{% endset %}", "{% if ns.x %}" + body + "{% endif %}"]
    )
    loop = "{% for i in range(" + many + ") %}" + body + "{% endfor %}"
    if rng.random() < 0.4:
        loop = "{% for j in range(" + many + ") %}" + loop + "{% endfor %}"
    last = "".join("{{ " + grammar.of(uses) + " }}" for _ in range(2))
    if rng.random() < 0.3:
        last = "{% for i in range(9999) %}" + last + "{% endfor %}"
    macro = grammar.of(["{% macro f(a) %}{{ a }}{% endmacro %}", "{% macro f(a) %}{{ f(a) }}{% endmacro %}",
                        "{% macro f(a) %}{{ f([a, a]) }}{{ f(a) }}{% endmacro %}"])  # fmt: skip
    return (
        "{% set ns = namespace(x="
        + start
        + ", y=2, z="
        + start
        + ") %}"
        + macro
        + loop
        + "{% set ns.z = ns.x %}"
        + last
    )
