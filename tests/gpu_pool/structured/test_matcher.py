"""Masks: whatever is drawn under them is what the grammar says, and bad grammars are refused."""

import json
import threading
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken

from benchmarks.engine.generated_schemas import list_schemas
from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.engine.grammar_desk import SHARED_TOKENS
from gpu_pool.structured.grammar_text import (
    AnswerGrammar,
    CallGrammar,
    CallsGrammar,
    Thoughts,
    is_opaque,
    write_grammar,
)
from gpu_pool.structured.matcher import GrammarMatcher, MatcherFactory
from gpu_pool.structured.schema_check import check_schema
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer
from tests.gpu_pool.structured.walks import FACTORY, TOKENIZER, accepts, list_allowed, walk

THINK = TOKENIZER.token_to_id("<think>")
END_OF_THOUGHT = TOKENIZER.token_to_id("</think>")


def create(schema: object) -> GrammarMatcher:
    """A matcher for values of `schema`."""
    checked = check_schema(json.dumps(schema), "response_format")
    return FACTORY.create(write_grammar(AnswerGrammar(None, checked, None)))


def test_what_is_too_complex_is_told_apart_from_a_forbidden_token() -> None:
    endless = create({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})
    brace = list_allowed(endless.fill_mask())[0]
    assert not endless.accept(brace)
    assert endless.has_given_up
    plain = create({"type": "object", "properties": {"a": {"type": "integer"}}})
    allowed = list_allowed(plain.fill_mask())
    assert not plain.accept(next(i for i in range(3, VOCAB_SIZE) if i not in allowed))
    assert not plain.has_given_up


def count_lost(take: Callable[[], GrammarMatcher], num_tokens: int) -> int:
    """Of many random answers of so many tokens, those that became too complex to follow."""
    random, num_lost = Random(5), 0
    for _ in range(60):
        matcher = take()
        for _ in range(num_tokens):
            allowed = list_allowed(matcher.fill_mask())
            if matcher.has_given_up or not matcher.accept(random.choice(allowed)):
                break
            if matcher.is_finished:
                break
        num_lost += matcher.has_given_up
    return num_lost


def test_copies_come_to_an_end_together_and_what_shares_one_at_the_desk_does_not() -> None:
    counted = {"type": "string", "pattern": "^(.{0,200}[a-z].{0,200}[0-9].{0,200})$"}
    alone = create(counted)
    assert count_lost(alone.copy, 100) > 10
    kept = [create(counted) for _ in range(12)]
    each = iter([one.copy() for one in kept for _ in range(SHARED_TOKENS // 100)])
    assert count_lost(each.__next__, 100) == 0


def test_a_copy_waits_for_another_without_keeping_everybody_else_from_going_on() -> None:
    """The library has one lexer for both, and would wait for it with Python's own lock held."""
    is_begun, let_go, accepted = threading.Event(), threading.Event(), threading.Event()

    class Library:
        def deep_copy(self) -> "Library":
            return Library()

        def compute_bitmask(self) -> bytes:
            is_begun.set()
            assert let_go.wait(30)
            return b"\1"

        def consume_token(self, token_id: int) -> bool:
            accepted.set()
            return True

        def is_error(self) -> bool:
            return False

    one = GrammarMatcher(cast("LLMatcher", Library()), b"", threading.Lock())
    other = one.copy()
    masking = threading.Thread(target=one.fill_mask)
    masking.start()
    assert is_begun.wait(30)
    accepting = threading.Thread(target=other.accept, args=(0,))
    accepting.start()
    has_begun = accepted.wait(0.1)
    let_go.set()
    masking.join()
    accepting.join()
    assert not has_begun
    assert accepted.is_set()


@pytest.mark.slow
def test_random_answers_validate() -> None:
    random = Random(11)
    num_finished = 0
    texts = list_schemas(seed=11, count=150)
    for text in texts:
        answer = walk(create(json.loads(text)), random)
        if answer is not None:
            num_finished += 1
            Draft202012Validator(json.loads(text)).validate(json.loads(answer))
    assert num_finished > 0.9 * len(texts)


def test_the_control_that_an_answer_without_masks_does_not_validate() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ids = [Random(1).randrange(VOCAB_SIZE) for _ in range(30)]
    with pytest.raises(json.JSONDecodeError):
        json.loads(TOKENIZER.decode(ids))
    assert not accepts(create(schema), TOKENIZER.decode(ids))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, '{"a": 1}', '{"a":1}'),
        ({"type": "integer", "maximum": 9}, "7", "10"),
        ({"enum": ["x", 2]}, "2", '"y"'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', '{"\\u0061": "x"}'),
        ({"properties": {"a/b": {"type": "integer"}}}, '{"a/b": 1}', '{"a\\/b": "x"}'),
        (
            {"properties": {"a": True}, "additionalProperties": False, "minProperties": 1},
            '{"a": 1}',
            "{}",
        ),
        ({"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"type": "string", "maxLength": 1}, '"é"', '"ab"'),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2024-02-31"'),
        ({"$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"}, "null", "1"),
        (
            {
                "$ref": "#/$defs/l",
                "$defs": {"l": {"items": {"$ref": "#/$defs/l"}, "type": "array"}},
            },
            "[[], [[]]]",
            "[[], 1]",
        ),
        (True, '{"a": [1]}', "{"),
    ],
)
def test_what_a_schema_says_is_what_is_accepted(schema: object, good: str, bad: str) -> None:
    assert accepts(create(schema), good)
    assert not accepts(create(schema), bad)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "string", "format": "colour"},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(?=a)b"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "frog"},
        {"type": "string", "minLength": 5, "maxLength": 1},
    ],
    ids=json.dumps,
)
def test_what_cannot_be_enforced_is_refused_with_a_reason(schema: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        create(schema)
    assert refusal.value.message.endswith(".")
    assert not refusal.value.message.endswith(":.")  # a heading is no reason
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "unclosed group"),
        ("a\n[z-b]", "invalid character class range"),
        ("^(?=.*[0-9]).{8,}$", "look-around, including look-ahead and look-behind"),
    ],
)
def test_what_is_wrong_with_a_pattern_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"enforced: regex parse error: {reason}"):
        create({"type": "object", "properties": {"word": {"type": "string", "pattern": pattern}}})


def test_thoughts_come_first_and_end() -> None:
    thoughts = Thoughts((THINK,), (END_OF_THOUGHT,))
    grammar = write_grammar(AnswerGrammar(thoughts, {"type": "boolean"}, None))
    assert accepts(FACTORY.create(grammar), "<think>hm {</think>\n\ntrue")
    assert accepts(FACTORY.create(grammar), "true")
    assert not accepts(FACTORY.create(grammar), "<think>hm true")
    begun = Thoughts(None, (END_OF_THOUGHT,))
    grammar = write_grammar(AnswerGrammar(begun, {"type": "null"}, None))
    assert accepts(FACTORY.create(grammar), "hm</think>null")
    assert not accepts(FACTORY.create(grammar), "null")


def test_marks_of_thoughts_may_be_plain_text() -> None:
    grammar = write_grammar(
        AnswerGrammar(Thoughts(("[think]",), ("[/think]",)), {"type": "null"}, None)
    )
    assert accepts(FACTORY.create(grammar), "[think]hm [ /think [/think] null")
    assert accepts(FACTORY.create(grammar), "null")


def test_a_grammar_names_by_id_exactly_what_masks_do_not_see() -> None:
    tokenizer = create_tokenizer()
    contents = ("<a>", "<|b|>", "<c d>", "[E]", "  ", "<", "<f", "g>", "<>")
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in contents])
    tokenizer.add_special_tokens([AddedToken("[H]", normalized=False)])
    masks = LLTokenizer(tokenizer.to_str())
    for content in (*contents, "[H]", "<think>"):
        token_id = tokenizer.token_to_id(content)
        assert is_opaque(content, content == "[H]") == masks.is_special_token(token_id), content


def test_calls_are_spelled_out() -> None:
    call = CallGrammar(("<c>look ",), {"type": "object", "maxProperties": 0}, ("</c>",))
    other = CallGrammar(("<c>find ",), {"type": "boolean"}, ("</c>",))
    many = CallsGrammar((), (call, other), ("\n",), ("!",))
    grammar = write_grammar(AnswerGrammar(None, None, many))
    assert accepts(FACTORY.create(grammar), "<c>look {}</c>!")
    assert accepts(FACTORY.create(grammar), "<c>look {}</c>\n<c>find true</c>!")
    assert not accepts(FACTORY.create(grammar), "<c>look {}</c>\n!")
    single = write_grammar(AnswerGrammar(None, None, CallsGrammar((), (call,), None, ())))
    assert not accepts(FACTORY.create(single), "<c>look {}</c>\n<c>look {}</c>")
    both = write_grammar(AnswerGrammar(None, {"type": "null"}, many))
    assert accepts(FACTORY.create(both), "null")
    assert accepts(FACTORY.create(both), "<c>find false</c>!")


def test_a_matcher_knows_when_nothing_may_follow() -> None:
    matcher = create({"const": 1})
    (one,) = TOKENIZER.encode("1", add_special_tokens=False).ids
    assert not matcher.is_finished
    assert matcher.accept(one)
    assert matcher.is_finished
    assert not create({"type": "integer"}).is_finished


def test_a_token_that_is_not_allowed_is_not_taken() -> None:
    matcher = create({"const": 1})
    assert not matcher.accept(TOKENIZER.token_to_id("x"))
    mask = matcher.fill_mask()  # it has given up, and says so by a token that it does not take
    assert len(list_allowed(mask)) == 1
    assert not matcher.accept(list_allowed(mask)[0])
    assert not matcher.is_finished


def test_a_vocabulary_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="masks"):
        MatcherFactory('{"model": {"type": "Other"}}', 10, (0,))
