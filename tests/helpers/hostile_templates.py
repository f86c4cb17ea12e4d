"""Chat templates that work without end, or need memory without end: each must end with one sentence."""

_LOOP, _END = "{% for a in range(9999) %}{% for b in range(9999) %}", "{% endfor %}{% endfor %}"
_GROW = "{% set ns = namespace(x='ab', y='ab') %}" + _LOOP
_NEST = _GROW.replace("9999", "250")
_SHARED = (
    "{% set ns = namespace(x=['ab'], y=['ab']) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
_LONG = "{% set a = 'a' * 1000000 %}{% set b = 'b' * 1000000 %}"
HOSTILE = {
    "loops without end": _LOOP + _LOOP + _END + _END,
    "doubles a text": _GROW + "{% set ns.x = ns.x ~ ns.x %}" + _END,
    "doubles a text in a block": _GROW + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}" + _END,
    "nests a list": _GROW + "{% set ns.x = [ns.x] %}" + _END + "{{ ns.x }}",
    "nests a list and writes it": _NEST + "{% set ns.x = [ns.x] %}" + _END + "{{ ns.x }}{{ 1 // 0 }}",
    "nests a list and compares it": _NEST + "{% set ns.x = [ns.x] %}" + _END + "{{ ns.x == [ns.x] }}{{ 1 // 0 }}",
    "nests a list and dumps it": _NEST + "{% set ns.x = {'a': ns.x} %}" + _END + "{{ ns.x | tojson }}",
    "writes a shared list": _SHARED + "{{ ns.x }}",
    "joins a shared list": _SHARED + "{{ ''.join([ns.x]) }}{{ [ns.x] | join }}",
    "concatenates a shared list": _SHARED + "{{ ns.x ~ '' }}",
    "dumps a shared list": _SHARED + "{{ ns.x | tojson }}",
    "compares shared lists": _SHARED + "{{ ns.x == ns.y }}",
    "orders shared lists": _SHARED + "{{ ns.x < ns.y }}",
    "finds a shared list": _SHARED + "{{ ns.x in [ns.y] }}",
    "tests a shared list": _SHARED + "{{ ns.x is eq ns.y }}",
    "selects shared lists": _SHARED + "{{ [ns.x] | select('eq', ns.y) | list }}",
    "sorts shared lists": _SHARED + "{{ [ns.x, ns.y] | sort | length }}",
    "counts a shared list": _SHARED + "{{ [ns.x].count(ns.y) }}",
    "formats a shared list": _SHARED + "{{ '%s' % (ns.x,) }}",
    "formats a shared list by a method": _SHARED + "{{ '{}'.format(ns.x) }}",
    "hashes a shared tuple": _SHARED.replace("[ns.x, ns.x]", "(ns.x, ns.x)").replace("['ab']", "'ab'")
    + "{{ {ns.x: 1} }}",
    "looks up a shared tuple": _SHARED.replace("[ns.x, ns.x]", "(ns.x, ns.x)").replace("['ab']", "'ab'")
    + "{{ {}[ns.x] }}",
    "refuses with a shared list": _SHARED + "{{ raise_exception(ns.x) }}",
    "misses a shared list": _SHARED + "{{ {}[(ns.x,)].y }}",
    "asks whether a shared list changed": _SHARED
    + "{% for i in [1, 2] %}{{ loop.changed(ns.x) }}{% endfor %}{{ ns.x }}",
    "replaces text by text": _LONG + "{{ a.replace('a', b) | length }}",
    "replaces text by text in a filter": _LONG + "{{ a | replace('a', b) | length }}",
    "joins by a text": _LONG + "{{ b.join(a) | length }}{{ a | join(b) }}",
    "counts in a loop": _LONG + "{% for i in range(9999) %}{{ a.count('b') }}{% endfor %}",
    "finds in a loop": _LONG + "{% for i in range(9999) %}{{ 'ab' in a }}{{ a.find('ab') }}{% endfor %}",
    "slices in a loop": _LONG + "{% for i in range(9999) %}{% set c = a[i:] %}{% endfor %}",
    "upper case in a loop": _LONG
    + "{% for i in range(9999) %}{{ (a | upper | length) + (a.title() | length) }}{% endfor %}",
    "repeats a text": "{{ 'ab' * 10000000000 }}",
    "repeats a list": "{{ [1] * 10000000000 }}",
    "pads a text": "{{ '%1000000000d' | format(1) }}",
    "pads a text by a method": "{{ '{:>100000000000}'.format(1) }}",
    "pads a text by a number": "{{ '%*d' % (1000000000, 1) }}",
    "centres a text": "{{ 'a'.center(10000000000) }}",
    "fills a text with zeros": "{{ 'a'.zfill(10000000000) }}",
    "indents a text": "{{ 'a\nb' | indent(10000000000) }}",
    "indents JSON": "{{ [1] | tojson(indent=10000000000) }}",
    "fills rows": "{{ [1] | batch(10000000000, 'x') | list }}",
    "makes slices": "{{ [1] | slice(10000000000) | list }}",
    "names a long attribute": "{% set a = 'a.' * 100000 %}{{ range(9999) | map(attribute=a) | list }}",
    "calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "calls itself by a block": "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    "goes into itself": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "maps a generator without end": _GROW + "{% set ns.x = ns.x | map('string') %}" + _END,
    "divides by zero": "{{ 1 // 0 }}",
    "takes a remainder of zero": "{{ 1 % 0 }}",
    "raises a number": "{{ 10 ** 100000000 }}",
    "multiplies a number": "{% set ns = namespace(x=3) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "asks for a range": "{{ range(100000000000) | list }}",
    "reads what is not there": "{{ messages[99].content.x }}",
    "calls what is none": "{{ none() }}",
    "writes a date of a wrong form": "{{ strftime_now('%Q') }}",
}
