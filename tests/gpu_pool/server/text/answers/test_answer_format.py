"""Which format a model's template speaks of."""

import pytest

from gpu_pool.server.text.answers.answer_format import PLAIN, find_answer_format
from gpu_pool.server.text.answers.call_format import CallFamily


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("{% if tools %}<tool_call>", CallFamily.HERMES),
        ("{% if tools %}<tool_call><function=x>", None),
        ("{% if tools %}<tool_call>name<arg_key>", None),
        ("{% if tools %}[TOOL_CALLS] [", CallFamily.MISTRAL),
        ("{% if tools %}[TOOL_CALLS]name[ARGS]", CallFamily.MISTRAL_NAMED),
        ("{% if tools %}<｜tool▁calls▁begin｜>```json", CallFamily.DEEPSEEK_V3),
        ("{% if tools %}<｜tool▁calls▁begin｜>", CallFamily.DEEPSEEK_V31),
        ("{% if tools %}<|tool_calls_section_begin|>", CallFamily.KIMI),
        ("{% if tools %}<|python_tag|>", CallFamily.LLAMA),
        ('{% if tools %}{"name": name, "parameters": p} ipython', CallFamily.LLAMA),
        ("{% if tools %}something else", None),
        ("no place for them", CallFamily.HERMES),
    ],
)
def test_the_template_shows_the_family(source: str, family: CallFamily | None) -> None:
    calls = find_answer_format(source).calls
    assert (calls.family if calls is not None else None) == family


def test_a_model_thinks_if_its_template_knows_thoughts() -> None:
    assert find_answer_format("x.split('</think>')").thinks
    assert not find_answer_format("x").thinks


def test_a_model_without_template_continues_text() -> None:
    assert find_answer_format(None) is PLAIN


def test_a_template_may_take_one_call_at_a_time() -> None:
    source = "{% if tools %}<|python_tag|>This model only supports single tool-calls at once!"
    assert find_answer_format(source).max_calls == 1
