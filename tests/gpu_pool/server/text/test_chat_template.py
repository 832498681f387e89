"""Chat templates: rendered as models were trained, unable to get out of hand or out of the box."""

import itertools
import re
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.server.text.chat_template import ChatTemplate
from gpu_pool.server.text.conversation import Conversation
from tests.fixtures.random_checkpoint import TEMPLATE
from tests.gpu_pool.server.conftest import SOURCES

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <b>brief</b> & kind."},
    {"role": "user", "content": "Grüß dich 'world'"},
]


def create(source: str, monotonic_s: Callable[[], float] = SOURCES.monotonic_s) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, SOURCES.now, monotonic_s)


def render(template: ChatTemplate) -> str:
    """What it makes of the messages."""
    return template.render(Conversation(MESSAGES, None, {}), 100)


@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,
        "{% for m in messages %}\n  {{ m | tojson }}\n{% endfor %}",
        "{% for m in messages %}{{ m | tojson(indent=2) }}{% break %}{% endfor %}",
        "{% set a = namespace(n=0) %}{% if true %}{% set a.n = 2 * 3 %}{% endif %}{{ a.n }}",
        "{{ dict(a=1) }}{{ tools is none }}{{ '-' * 3 }}",
        "{{ bos_token }}{% generation %}{{ messages[0].content }}{% endgeneration %}!",
        "    {% if add_generation_prompt %}\n yes\n    {% endif %}\n",
    ],
)
def test_templates_render_as_in_transformers(source: str) -> None:
    theirs = _compile_jinja_template(source).render(
        messages=MESSAGES,
        tools=None,
        documents=None,
        add_generation_prompt=True,
        bos_token="<s>",
    )
    assert render(create(source)) == theirs


def test_a_template_may_ask_for_the_date() -> None:
    assert render(create("{{ strftime_now('%d %b %Y') }}")) == "03 Feb 2024"


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        render(create("{{ raise_exception('roles must alternate') }}"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append('x') }}",
        "{% set ns = namespace(__init__=1) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns }}",
        "{{ dict.__init__ }}{{ dict.fromkeys('a').__class__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 1 / 0 }}",
        "{{ 'a' * 10**10 }}",
        "{{ 'a' * 100000 }}",
        "{{ 100000 * 'a' }}",
        "{{ ('a' * 4000) * 4000 }}",
        "{{ 4000 * ('a' * 4000) }}",
        "{{ messages * 1000 }}",
        "{{ 10 ** 10000 ** 10 }}",
        "{{ messages + 1 }}",
        "{% include 'x' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_cannot_get_out_of_its_box(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(create(source))


def test_a_rendering_may_not_grow_without_end() -> None:
    source = "{% for i in range(90000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="too large"):
        render(create(source))


def test_a_rendering_may_not_go_on_for_ever() -> None:
    seconds: Iterator[float] = itertools.count(0.0, 1.0)
    with pytest.raises(InvalidRequest, match="too long"):
        render(create("{% for i in range(9) %}x{{ i }}{% endfor %}", lambda: next(seconds)))


def test_a_template_that_is_none_is_found_when_the_model_is_loaded() -> None:
    with pytest.raises(UnsupportedFeature, match="compiled"):
        create("{% for %}")


LOOP = "{% for a in [1, 1] recursive %}"
MACRO = "{% macro f(n) %}{% if n %}{% set x = f(n - 1) %}{% set x = f(n - 1) %}{% endif %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(DEPTH) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(DEPTH) if range(99999) | map('string') | list %}{% endfor %}",
        MACRO + "{% endmacro %}{{ f(DEPTH) }}",
        LOOP + "{% set x %}{{ loop([1, 1]) if loop.depth < DEPTH }}{% endset %}{% endfor %}",
    ],
)
def test_a_rendering_that_says_nothing_may_not_go_on_for_ever(source: str) -> None:
    seconds = itertools.count(0.0, 0.001)
    with pytest.raises(InvalidRequest, match="too long"):
        render(create(source.replace("DEPTH", "60"), lambda: next(seconds)))
    render(create(source.replace("DEPTH", "0")))  # the control


@pytest.mark.parametrize(
    "double",
    [
        "n.s ~ n.s",
        "n.s + n.s",
        "'%s%s' % (n.s, n.s)",
        "'%s%s' | format(n.s, n.s)",
        "'{}{}'.format(n.s, n.s)",
        "[n.s, n.s] | join",
        "''.join([n.s, n.s])",
        "n.s | replace('a', 'aa')",
        "n.s.replace('a', 'aa')",
        "n.s | list + n.s | list",
    ],
)
def test_what_doubles_ends_before_it_fills_the_memory(double: str) -> None:
    source = "{% set n = namespace(s='a\n' * 8) %}{% for i in range(TIMES) %}"
    source += "{% set n.s = DOUBLE %}{% endfor %}{{ n.s | length }}"
    source = source.replace("DOUBLE", double)
    with pytest.raises(InvalidRequest, match="too large"):
        render(create(source.replace("TIMES", "90"), lambda: 0.0))  # nor time alone
    assert int(render(create(source.replace("TIMES", "2")))) >= 40  # the control


def test_a_block_that_doubles_ends_as_well() -> None:
    source = "{% set n = namespace(s='aaaa') %}{% for i in range(TIMES) %}{% set t %}{{ n.s }}"
    source += "{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}{{ n.s | length }}"
    with pytest.raises(InvalidRequest, match="too large"):
        render(create(source.replace("TIMES", "40")))
    assert render(create(source.replace("TIMES", "2"))) == "16"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' | center(WIDTH) | length }}",
        "{{ 'a'.rjust(WIDTH) | length }}",
        "{{ 'a' | indent(WIDTH, true) | length }}",
        "{{ ('%WIDTHd' % 1) | length }}",
        "{{ '%WIDTHd' | format(1) | length }}",
        "{{ '{:>WIDTH}'.format(1) | length }}",
        "{{ [1] | tojson(indent=WIDTH) | length }}",
        "{{ [1] | batch(WIDTH, 'x') | list | length }}",
    ],
)
def test_nothing_is_padded_to_any_width(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        render(create(source.replace("WIDTH", "2000000000")))
    assert render(create(source.replace("WIDTH", "9")))  # the control


NEST = "{% set n = namespace(a=['x']) %}{% macro f() %}{% set n.a = varargs %}{% endmacro %}"


@pytest.mark.parametrize("write", ["{{ n.a }}", "{{ n.a | tojson }}", "{{ n.a ~ '' }}", ""])
@pytest.mark.parametrize(
    "nest",
    [
        "{% set n.a = [n.a, n.a] %}",
        "{% set n.a = n.a, n.a %}",
        "{% set n.a = {'a': n.a, 'b': n.a} %}",
        "{% set n.a = dict(a=n.a, b=n.a) %}",
        "{% set n.a = {}.fromkeys('ab', n.a) %}",
        "{% set n.a = [n.a] | batch(2, n.a) | list %}",
        "{% set n.a = cycler(n.a, n.a).items %}",
        "{% set x = f(n.a, n.a) %}",
    ],
)
def test_lists_that_hold_one_another_twice_end_before_they_are_written(
    nest: str, write: str
) -> None:
    source = NEST + "{% for i in range(TIMES) %}" + nest + "{% endfor %}" + write
    with pytest.raises(InvalidRequest, match="too large"):
        render(create(source.replace("TIMES", "90"), lambda: 0.0))  # nor time alone
    render(create(source.replace("TIMES", "5")))  # the control


def test_what_a_namespace_holds_is_not_written() -> None:
    source = "{% set n = namespace(a=1) %}{% for i in range(90) %}"
    source += "{% set n.a = namespace(a=n.a, b=n.a) %}{% endfor %}{{ n.a }}"
    assert render(create(source)) == "<Namespace>"


@pytest.mark.parametrize(
    "grow",
    [
        "range(N) | join(n.s)",
        "n.s.join(range(N) | map('string'))",
        "n.l | join('', attribute='s')",
        "n.l | map(attribute='s') | map('upper') | list",
        "range(N) | map('replace', '1', n.s) | list",
        "range(N) | map('string') | map('center', 4096) | list",
        "n.s | replace(new=n.s, old='a')",
        "n.s | replace('a', [n.s])",
        "n.s.translate({97: n.s})",
        "n.s | replace('a', '\n') | indent(4096, true, true)",
        "(n.s | replace('a', '\t')).expandtabs(4096)",
        "range(N) | list | tojson(indent=4096)",
        "range(N) | list | tojson(separators=[n.s, n.s])",
        "('{0}' * M).format(n.s)",
        "('{a}' * M).format_map({'a': n.s})",
        "('%(a)s' * M) % {'a': n.s}",
        "('%(a)s' * M) | format(a=n.s)",
    ],
)
def test_what_makes_much_of_little_is_refused_before_it_does(grow: str) -> None:
    source = "{% set n = namespace(s='a' * K, l=[]) %}{% for i in range(K) %}"
    source += "{% set n.l = n.l + [n] %}{% endfor %}{% set n.s = n.s ~ n.s ~ n.s ~ n.s %}"
    source += "{{ (GROW) | length }}".replace("GROW", grow)

    def fill(num: int, factor: int, size: int) -> str:
        sizes = {"N": num, "M": factor, "K": size}
        return re.sub(r"\b[NMK]\b", lambda found: str(sizes[found[0]]), source)

    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="too large"):
            render(create(fill(9_999, 800, 4000), lambda: 0.0))  # time alone ends nothing here
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1 << 23
    assert int(render(create(fill(3, 2, 4)))) > 0  # the control


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x'.encode().center(9) }}",
        "{{ (1).to_bytes(9, 'big') }}",
        "{{ (1.5).hex() }}",
        "{% set n = namespace(s='x') %}{{ '{0.s}'.format(n) }}",
        "{{ '{0[s]}'.format({'s': 'x'}) }}",
        "{{ ('<' | escape) * 4000 }}",
    ],
)
def test_what_cannot_be_measured_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        render(create(source))


def test_sums_of_lists_are_those_of_python() -> None:
    source = "{{ messages | map(attribute='role') | map('list') | sum(start=['x']) | join }}"
    assert render(create(source)) == "xsystemuser"
    assert render(create("{{ [1, 2] | sum }}{{ messages | sum('n', 7) if false }}")) == "3"
    with pytest.raises(InvalidRequest, match="cannot render"):
        render(create("{{ [1] | sum(start=[]) }}"))


def test_what_is_made_of_constants_is_bounded_when_a_template_is_compiled() -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        render(create("{{ 'a' | center(2000000000) }}"))


def test_templates_without_end_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="characters"):
        create("x" * (1 << 21))
    with pytest.raises(UnsupportedFeature, match="compiled"):
        create("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_limits_are_those_of_the_rendering_alone() -> None:
    """What one conversation may take says nothing of the next, which may be larger."""
    template = create("{{ messages[0].content ~ '!' }}")
    small = Conversation([{"role": "user", "content": "x"}], None, {})
    large = Conversation([{"role": "user", "content": "x" * 400_000}], None, {})
    assert template.render(small, 1) == "x!"
    assert len(template.render(large, 400_000)) == 400_001
    with pytest.raises(InvalidRequest, match="too large"):
        template.render(large, 1)
