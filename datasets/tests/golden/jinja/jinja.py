"""Renders small templates with Jinja2 in the environment of transformers' chat templates.

Run by hand from anywhere: python3 jinja.py   (writes jinja.json next to itself)
Made with Python 3.11.7, jinja2 3.1.6. The environment is that of `_compile_jinja_template` in transformers 5.24.0.

Each row has a template and its text, or null where Python raises an exception.
"""

import json
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson

VALUES = [
    "missing", "none", "true", "false", "0", "-3", "1.0", "2.5e16", "1.5e-7", "''", "'aB c'", '"it\'s <b> \\"&\\""',
    "'a\u00a0b \u200d c\u0301 \u2028 \U000e0001 \u65e5'", "'x\\ty\\nz\\\\'", "[]", "[1, 'a', none, true]", "()", "(1, 'a')",
    "(2.5,)", "{}", "{'a': 1, 'b': [none, 1.0]}", "[[1, (2, 3)], {'x': ()}]", "namespace(a=1)",
]

TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "number", "integer", "float", "string", "mapping",
    "iterable", "sequence", "callable",
]

WRITTEN = [
    "v", "[v]", "{'k': v}", "(v,)", "v ~ '|' ~ v", "'<' ~ v", "v|string", "v|tojson", "v|tojson(indent=2)",
    "v|tojson(ensure_ascii=true, sort_keys=true)", "v|tojson(separators=(',', ':'))", "v|e", "v|escape", "v|upper", "v|lower",
    "v|title", "v|capitalize", "v|trim", "v|join('-')", "v|wordcount", "v|default('d')", "v|default('d', true)",
    "'%s %s' % (v, v)", "('%s|' % (v,)) ~ v", "v|center(9)", "v|truncate(6)", "v|striptags", "v|wordwrap(3)",
    "v|filesizeformat", "v|forceescape", "v|urlize", "v|xmlattr",
]

FILTERED = {
    "center": {
        "x": ["", "(4)", "(width=7)", "(-1)", "(0)", "(true)", "('3')", "(none)", "(2.0)", "(3, 4)", "(w=3)"],
        "xy": ["(5)", "(6)"],
    },
    "truncate": {
        "foo bar baz qux": [
            "", "(9)", "(9, true)", "(11)", "(11, false, '...', 0)", "(5, end='..', leeway=0)", "(4, leeway=0, end='')",
            "(2)", "(9, leeway=-1)", "(length=9, killwords=true)", "(8, true, '\u2026', 0)", "(9, length=9)", "(9, foo=1)",
            "('9')", "(9, leeway=none)", "(3, end=1)", "(1, 2, 3, 4, 5)",
        ],
        "foobarbazqux": ["(5)", "(5, leeway=9)"],
        "\u65e5\u672c\u8a9e \u306e \u30c6\u30ad\u30b9\u30c8": ["(6, leeway=0)", "(6, true, leeway=0)"],
    },
    "striptags": {
        text: [""] for text in [
            "a <b>c</b>\n  d", "x<!-- <i> -->y", "x<!-->y-->z", "a < b", "a <b", "<p>", "&lt;b&gt; &amp;amp; &eacute;&#233;&#xe9;",
            "&nbsp;|&thinsp;|&copy;", "&amp &lt", "&unknown; & &; &#;", "AT&T", " a\u00a0b\u2003c ", "<!-- open", "<>a</>",
        ]
    },
    "wordwrap": {
        "Look, goof-ball -- use the -b option! A very-long-hyphenated-word and aninterminableword--dashed---ends.": [
            "", "(10)", "(5)", "(1)", "(12, false)", "(12, break_on_hyphens=false)", "(7, false, '|')", "(7, wrapstring='<br>')",
            "(0)", "(-1)", "('7')", "(6, break_long_words=false, break_on_hyphens=false)", "(width=20)", "(9, foo=1)", "(6, 1, '~', 0)",
        ],
        "one  two\n\n   three four\r\nfive\u2028six \u00a0 seven": ["(9)", "(4)", "(3, wrapstring='/')"],
        "a-b c-3 ab-c d-ef x--y --z ---- a---b 3-4-5 well-known-": ["(1, false)", "(4, false)", "(6)"],
        "": ["(0)", "(5)"],
    },
    "forceescape": {"<a href=\"x\">it's &amp;</a>": ["", "|e|forceescape", "|e|e"]},
    "urlize": {
        "see https://example.com/a?b=1&c=2, (www.jinja.org) <http://x.io:80/p#q>. foo@bar.com mailto:a@b.co example.net not.a.tld @me": [
            "", "(10)", "(0)", "(-3)", "(trim_url_limit=8, nofollow=true)", "(rel='me nofollow x', target='_blank')",
            "(target='<\"')", "(none, true, '_top')",
        ],
        "tel:+1 ftp://x.org ftp:// x": ["", "(extra_schemes=['tel:', 'ftp://'])", "(extra_schemes=['tel'])", "(extra_schemes='tel:')"],
        "(http://en.wikipedia.org/wiki/X_(y)) (see http://a.bc/(d). http://1.2.3.4/x http://[::1]:80/ HTTP://A.COM http://localhost "
        "http://xn--bcher-kva.example a@b@c.de x:y@z.com www.a@b.com &lt;http://a.bc&gt; http://a.bc, http://a.bc).": [""],
        "  http://a.bc\n\thttp://d.ef  ": [""],
    },
}


SIZES = [
    "0", "1", "1.0", "true", "false", "999", "1000", "1023", "1024", "1025", "1250", "999999", "123456789", "-5", "-2048", "0.5",
    "-0.5", "999.9", "1e3", "1e15", "2.5e24", "1e27", "1e300", "'12'", "' 2e6 '", "'x'", "'nan'", "'inf'", "'-inf'", "none", "[1]",
]

ATTRIBUTES = [
    "{}", "{'a': 1, 'b': none, 'c': missing, 'd': '<\"&>', 'e': [1, 'x'], 'f': true}", "{'a b': 1}", "{'a/': 1}", "{'a>': 1}",
    "{'a=': 1}", "{'<': 'x'}", "{1: 2}", "{'a b': none}", "{'x': '<i>'|e}", "[1]", "'a'", "none", "missing",
]

ALONE = [
    "{{ 'a-b-c'.rsplit('-', 1) }} {{ 'a-b-c'.rsplit('-') }} {{ ' a  b c '.rsplit() }} {{ ' a  b c '.rsplit(none, 1) }}",
    "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ '+7'.zfill(4) }} {{ '1234'.zfill(2) }}",
    "{{ 'x'.center(4) }}| {{ 'xy'.center(5, '*') }}| {{ 'x'.ljust(3, '.') }}| {{ 'x'.rjust(3) }}|",
    "{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'a'.partition('-') }} {{ 'a'.rpartition('-') }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removeprefix('c') }}",
    "{{ ', '.join(['a', 'b']) }}", "{{ ', '.join([1]) }}", "{{ 'abc'.split('') }}", "{{ 'a b  c'.split() }} {{ 'a,b'.split(',') }}",
    "{{ [1, 2, 1].index(2) }} {{ [1, 2].copy() }}", "{{ [1].index(2) }}",
    "{{ '{} and {}'.format(1, 'a') }} {{ '{:>5}|{:<3}|{:^3}'.format('x', 'y', 'z') }} {{ '{0}{1}{0}'.format('a', [1, 'b']) }}",
    "{{ '%d-%05.2f %s' % (3, 1.5, 'x') }} {{ '%s' % 'a' }} {{ '%s' % [1, 'a'] }} {{ '%(a)s' % {'a': 1} }} {{ '50%%' % () }}",
    "{% set n = -3 %}{{ 7 % n }} {{ -7 % 3 }} {{ 7 % 3 }} {% set f = 2.5 %}{{ 7 % f }} {{ -7 % f }}",
    "{% set n = 0 %}{{ 7 % n }}",
    "{% set j = joiner('|') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %} {% set j = joiner() %}{{ j() }}{{ j() }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{{ 1 + 2 ~ 3 * 4 ~ -5 }}", "{{ 'a' ~ 1 in ['a1'] }} {{ 'a' ~ 'b' == 'ab' and not 'a' ~ 'b' == 'a' }}",
    "{{ 'a' ~ none is none }} {{ ('a' ~ 'b')|upper }} {{ 'a' ~ 'b'|upper }} {{ 'x' if 'a' ~ '' else 'y' ~ 'z' }}",
    "{{ [{'a': 1}, {'a': 'b'}]|join('-', attribute='a') }} {{ [{'a': 1}]|map(attribute='a')|join }}",
    "{% macro f(a, b='x') %}{{ a ~ b }}{% endmacro %}{{ f(1) }}{{ f([2], none) }}{{ f(b=3) }}",
    "{% set ns = namespace(l=[], s='') %}{% for x in range(3) %}{% set ns.l = ns.l + [x] %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.l }} {{ ns.s }} {{ ns.l[1:] }} {{ ns.l is sequence }}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a ~ b }}{% endfor %}{% for k, v in {'a': none}.items() %}{{ k ~ v }}{% endfor %}",
    "{% set a, b = 1, [2] %}{{ b }}{% set x %}{{ a }}-{% endset %}{{ x }}",
    "{%- for x in [1] -%}\n  {%- with y = [x] %}\n{{ y }}\n{% endwith -%}\n{%- endfor %}",
    "{% set outer = namespace(n=0) %}{% for x in [1, 2] %}{% set l = loop %}{% for y in [3] %}{{ l.index }}{{ l.last }}{% endfor %}{% endfor %}",
    "a\r\nb\rc\n{% if true %}\r\n  d{{ 'x\r\ny' }}\r{# e\r\n #}\r\n{% endif %}\r\nf\r\n", "{% if true %}\ra{% endif %}\r\r",
    "{{ [1.0, 1e16, 1e-5, 123456789.125] }} {{ [1.0, 1e16]|tojson }}", "{{ {2: 'a', none: 'b', true: 'c', 1.5: 'd'}|tojson }}",
]


def rendered(source):
    try:
        return ENVIRONMENT.from_string(source).render()
    except Exception:  # Python's and Jinja's errors alike
        return None


def main():
    sources = list(ALONE)
    for value in VALUES:
        tests = " ".join(f"{{{{ v is {test} }}}}" for test in TESTS)
        sources.append(f"{{% set v = {value} %}}{tests}")
        sources += [f"{{% set v = {value} %}}{{{{ {one} }}}}" for one in WRITTEN]
    sources += [
        f"{{% set v = {json.dumps(text)} %}}{{{{ v|{name}{given} }}}}|"
        for name, texts in FILTERED.items() for text, calls in texts.items() for given in calls
    ]
    sources += [f"{{{{ ({value})|filesizeformat{given} }}}}" for value in SIZES for given in ("", "(true)", "(binary=true)", "(false)")]
    sources += [f"<i{{{{ {value}|xmlattr{given} }}}}>" for value in ATTRIBUTES for given in ("", "(false)", "(autospace=false)", "(1, 2)")]
    rows = [[source, rendered(source)] for source in sources]
    text = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    (Path(__file__).parent / "jinja.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


main()
