"""The template sandbox: what templates may use, and what it keeps from them."""

import json
import time
from datetime import UTC, datetime

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.service.loaders.template_sandbox import (
    STEPS,
    Steps,
    TemplateEnvironment,
    TemplateRefusal,
    TemplateTooLong,
)

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def render(source: str, **values: object) -> str:
    return TemplateEnvironment(lambda: NOON).from_string(source).render(**values)


def test_what_chat_templates_use_is_there() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "01 Mar 2025"
    loop = "{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop, x=[1, 2, 3]) == "13"
    stop = "{% for i in x %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(stop, x=[1, 2, 3]) == "1"
    assert render("{% generation %}a{{ x }}{% endgeneration %}b", x=1) == "a1b"
    assert render("{% set n = namespace(v=1) %}{% set n.v = 2 %}{{ n.v }}") == "2"
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"
    assert render("{{ x.split('b')[-1].strip() ~ '-' * 3 }}", x="abc ") == "c---"
    assert render("{{ '%s-%05d' % ('a', 7) }}{{ 7 % 4 }}{{ 2 ** 3 }}") == "a-0000738"
    assert render("{{ x | center(5) }}{{ x | indent(2, true) }}", x="a") == "  a    a"
    assert render("{{ '%s' | format('x') }}{{ '{}'.format('y') }}") == "xy"
    assert render("{{ '123456 **%s** {}' % 'x' }}") == "123456 **x** {}"
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_to_json_is_that_of_transformers() -> None:
    value = {"b": "<é'&>", "a": [1, None, 0.5]}
    assert render("{{ x | tojson }}", x=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ x | tojson(indent=2) }}", x=value) == json.dumps(
        value, ensure_ascii=False, indent=2
    )
    assert render(
        "{{ x | tojson(ensure_ascii=true, sort_keys=true) }}", x={"b": "é😀", "a": 1}
    ) == (json.dumps({"b": "é😀", "a": 1}, sort_keys=True))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self._TemplateReference__context.environment.loader.x }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(1)[0].x.y }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
    ],
)
def test_security_template_01_python_is_out_of_reach(source: str) -> None:
    messages: list[object] = [1]
    with pytest.raises((TemplateError, TypeError)):
        render(source, messages=messages)
    assert messages == [1]


@pytest.mark.parametrize(
    "source",
    [
        '{{ "x" * 10**10 }}',
        '{{ "x" * 10000000000 }}',
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 999999999 }}",
        "{{ 99999999999999999999 * 99999999999999999999 * 9 }}",
        '{{ "x".ljust(10000000000) }}',
        '{{ "x".zfill(width=10000000000) }}',
        '{{ "x" | center(10000000000) }}',
        '{{ "x" | indent(10000000000, true) }}',
        '{{ "%10000000000d" % 1 }}',
        '{{ "%*d" % (10000000000, 1) }}',
        '{{ "%10000000000d" | format(1) }}',
        '{{ "{:10000000000}".format(1) }}',
        "{{ x | tojson(indent=10000000000) }}",
        "{% for i in range(10000000000) %}x{% endfor %}",
        "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}"
        "{% endfor %}",
        "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}"
        "{% endfor %}",
    ],
)
def test_security_template_01_no_expression_builds_without_bound(source: str) -> None:
    started = time.process_time()
    with pytest.raises((TemplateError, OverflowError)):
        render(source, x=[1])
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100) %}{% for j in (range(90)|map('string')) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% for i in range(90) %}{{ range(100000)|list|length }}{% endfor %}",
        "{% set headway_steps = 1 %}{% for i in range(9000) %}x{% endfor %}",
        "{% for x in [[[1]]*9]*9 recursive %}{{ loop(range(900)) if x is iterable }}{% endfor %}",
    ],
)
def test_a_template_that_goes_on_for_long_is_stopped(source: str) -> None:
    began = time.process_time()
    with pytest.raises(TemplateTooLong):
        render(source, **{STEPS: Steps(8000)})
    assert time.process_time() - began < 1.0


def test_counting_changes_nothing_of_a_loop_or_of_a_joined_text() -> None:
    source = (
        "{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}-"
        "{% endfor %}{% for x in xs|map('upper') %}{{ loop.index ~ x ~ loop.last }}{% endfor %}"
        "{% for k, v in d.items() if v %}{{ k ~ v }}{% endfor %}{% for x in nobody %}{% else %}="
        "{% endfor %}"
    )
    plain = ImmutableSandboxedEnvironment().from_string(source)
    cases: list[dict[str, object]] = [
        {"xs": ["a", "b"], "d": {"k": 1, "l": 0}},
        {"xs": [], "d": {}},
    ]
    for values in cases:
        assert render(source, **values) == plain.render(**values)
        assert render(source, **values, **{STEPS: Steps(100)}) == plain.render(**values)
