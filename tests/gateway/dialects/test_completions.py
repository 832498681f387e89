"""OpenAI's older completions as pure functions."""

from typing import Any

import pytest

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    PromptScored,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
    Usage,
)
from gateway.dialects.completion_replies import CompletionForm
from gateway.dialects.completions import COMPLETIONS
from tests.gateway.dialects.dialect_words import (
    END,
    MODEL,
    USAGE_FIELDS,
    create_logprob,
    parse_body,
    read_data,
    render_stream,
    render_whole,
    to_deltas,
    to_generate,
)

PROMPT_SCORED = PromptScored(
    (
        TokenLogprob(1, b"On", None),
        create_logprob("ce", -0.5, ("ly", -2.0)),
    )
)


def parse(prompt: Any, **extra: Any) -> Any:
    """The request with `prompt`."""
    return to_generate(parse_body(COMPLETIONS, {"model": MODEL, "prompt": prompt} | extra))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once", TextPrompt(text="Once")),
        (["Once"], TextPrompt(text="Once")),
        ([5, 6], TokenPrompt(token_ids=(5, 6))),
        ([[5, 6]], TokenPrompt(token_ids=(5, 6))),
    ],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, expected: Any) -> None:
    assert parse(prompt).prompt == expected


@pytest.mark.parametrize("prompt", [["Once", "Twice", [7]], [[5, 6], "Once", [7]]])
def test_several_prompts_are_texts_or_token_ids_in_their_order(prompt: Any) -> None:
    request = parse(prompt, n=2)
    assert [
        one.text if isinstance(one, TextPrompt) else [*one.token_ids] for one in request.prompts
    ] == prompt
    assert (request.num_choices, request.num_answers) == (2, 6)


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [-1], [[2**31]], [1, "a"], ["a", 1], ["a", ""], [[1], []]]
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(prompt)


@pytest.mark.parametrize(("num_prompts", "n"), [(129, 1), (65, 2), (2, 65)])
def test_more_answers_than_nodes_give_are_refused_with_their_number(
    num_prompts: int, n: int
) -> None:
    with pytest.raises(InvalidRequest, match=str(num_prompts * n)) as caught:
        parse(["a"] * num_prompts, n=n)
    assert caught.value.param == "prompt"
    assert parse(["a"] * 128).num_answers == parse(["a"] * 2, n=64).num_answers == 128


def test_the_length_is_short_unless_said_and_may_be_nothing() -> None:
    assert parse("a").sampling.max_tokens == 16
    assert parse("a", max_tokens=0, echo=True).sampling.max_tokens == 0


def test_an_echo_with_logprobs_scores_the_prompt() -> None:
    request = parse("a", echo=True, logprobs=1)
    assert request.echoes_prompt
    assert (request.sampling.num_logprobs, request.sampling.num_prompt_logprobs) == (1, 1)
    assert parse("a", logprobs=1).sampling.num_prompt_logprobs is None


@pytest.mark.parametrize("extra", [{"suffix": "end"}, {"best_of": 2}, {"n": 2, "best_of": 3}])
def test_what_is_not_served_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse("a", **extra)
    assert caught.value.param in extra


@pytest.mark.parametrize("extra", [{"suffix": ""}, {"best_of": 1}, {"n": 2, "best_of": 2}])
def test_what_asks_for_nothing_is_taken(extra: dict[str, Any]) -> None:
    parse("a", **extra)


def test_the_whole_answer_is_a_text_completion() -> None:
    whole = render_whole(CompletionForm(), Delta("Hello", (1,)), END)
    assert whole == {
        "id": "cmpl-r",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}],
        "usage": USAGE_FIELDS,
    }


def test_a_scored_prompt_stands_before_its_continuation_in_columns() -> None:
    events = (PROMPT_SCORED, Delta("Once", ()), Delta(" é", (3,), 0, (create_logprob(" é", -1.0),)))
    (choice,) = render_whole(CompletionForm(), *events, END)["choices"]
    assert choice["text"] == "Once é"
    assert choice["logprobs"] == {
        "tokens": ["On", "ce", " é"],
        "token_logprobs": [None, -0.5, -1.0],
        "top_logprobs": [None, {"ce": -0.5, "ly": -2.0}, {" é": -1.0}],
        "text_offset": [0, 2, 4],
    }


def test_the_scores_of_a_long_prompt_come_in_pieces_of_which_none_is_lost() -> None:
    pieces = [PromptScored((create_logprob(letter, -0.5),)) for letter in "abc"]
    events = (*pieces, Delta("abcd", ()), Delta("", (4,), 0, (create_logprob("d", -1.0),)))
    (choice,) = render_whole(CompletionForm(), *events, END)["choices"]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "d"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_halves_of_a_character_have_names_and_offsets_of_their_own() -> None:
    halves = (TokenLogprob(1, b"\xc3", -1.0), TokenLogprob(2, b"\xa9", -1.0))
    (choice,) = render_whole(CompletionForm(), Delta("é!", (1, 2), 0, halves), END)["choices"]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert choice["logprobs"]["text_offset"] == [0, 0]
    after = TokenLogprob(3, b"!", -1.0)
    (choice,) = render_whole(CompletionForm(), Delta("é!", (), 0, (*halves, after)), END)["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


def test_what_the_text_does_not_show_of_a_token_moves_no_other() -> None:
    begin = TokenLogprob(1, b"<s>", None, (), 3)
    first = TokenLogprob(2, b" On", -1.0, (), 1)
    halves = (TokenLogprob(3, b" \xc3", -1.0, (), 1), TokenLogprob(4, b"\xa9", -1.0))
    word = create_logprob("ce", -1.0)
    for scored, text, offsets in (
        ((begin, first, word, begin, word), "Oncece", [0, 0, 2, 4, 4]),
        ((begin, *halves, word), "éce", [0, 0, 0, 1]),
    ):
        events = (PromptScored(scored), Delta(text, ()), END)
        (choice,) = render_whole(CompletionForm(), *events)["choices"]
        assert choice["logprobs"]["text_offset"] == offsets
        assert choice["logprobs"]["tokens"][:1] == ["<s>"]
        places = zip(offsets, scored, strict=True)
        shown = [(place, one.token[one.num_hidden_bytes :]) for place, one in places]
        pieces = [(place, piece.decode(errors="ignore")) for place, piece in shown]
        assert all(text[place:].startswith(piece) for place, piece in pieces)
        # With all that a token is made of, as it was, they would be behind the end of the text.
        assert sum(len(one.token) for one in scored[:-1]) > len(text)


def test_a_stream_gives_the_same_columns_piece_by_piece() -> None:
    events = (PROMPT_SCORED, Delta("Once", ()), Delta(" é", (3,), 0, (create_logprob(" é", -1.0),)))
    *pieces, last, done = read_data(render_stream(CompletionForm(), *events, END))
    listed = [piece["choices"][0]["logprobs"] for piece in pieces]
    offsets = [offset for entry in listed if entry for offset in entry["text_offset"]]
    assert offsets == [0, 2, 4]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "Once é"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert (last["usage"], done) == (USAGE_FIELDS, "[DONE]")


def test_several_answers_end_one_by_one() -> None:
    events = (
        Delta("b", (1,), 1),
        ChoiceFinished(1, FinishReason.STOP),
        ChoiceFinished(0, FinishReason.LENGTH),
        Finished(FinishReason.LENGTH, Usage(3, 1, 1)),
    )
    choices = render_whole(CompletionForm(2), *events)["choices"]
    assert [(c["text"], c["finish_reason"]) for c in choices] == [("", "length"), ("b", "stop")]
    text, first, second, last, done = read_data(render_stream(CompletionForm(2), *events))
    assert text["choices"][0]["index"] == 1
    ends = [(e["choices"][0]["index"], e["choices"][0]["finish_reason"]) for e in (first, second)]
    assert ends == [(1, "stop"), (0, "length")]
    assert (last["choices"], done) == ([], "[DONE]")


def test_each_prompt_of_several_has_its_own_scores_before_its_choices() -> None:
    form = CompletionForm(4, num_prompts=2)
    events = (
        PromptScored((create_logprob("b", -2.0),), 2),
        PromptScored((create_logprob("a", -1.0),), 0),
        Delta("b!", (1,), 3, (create_logprob("!", -3.0),)),
        *[ChoiceFinished(index, FinishReason.STOP) for index in range(4)],
        END,
    )
    choices = render_whole(form, *events)["choices"]
    columns = [choice["logprobs"] and choice["logprobs"]["tokens"] for choice in choices]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert columns == [["a"], ["a"], ["b"], ["b", "!"]]
    *pieces, _, _ = read_data(render_stream(form, *events))
    streamed: dict[int, list[str]] = {}
    for choice in [choice for piece in pieces for choice in piece["choices"]]:
        if choice["logprobs"] is not None:
            streamed.setdefault(choice["index"], []).extend(choice["logprobs"]["tokens"])
    assert streamed == dict(enumerate(columns))


def test_a_plain_stream_is_texts_and_an_end() -> None:
    texts = ["Hel", "lo"]
    *pieces, _, done = read_data(render_stream(CompletionForm(), *to_deltas(texts), END))
    assert [piece["choices"][0]["text"] for piece in pieces] == texts
    assert done == "[DONE]"


@pytest.mark.parametrize("several", [{"n": 5}, {"n": 2, "prompt": ["x" * 4_000_000] * 3}])
def test_answers_may_repeat_so_much_of_their_prompts_and_no_more(several: dict[str, Any]) -> None:
    body = {"prompt": "x" * 4_000_000} | several
    with pytest.raises(InvalidRequest, match=r"2\d,000,000 .* may repeat 16,777,216") as caught:
        parse(**body, echo=True)
    assert caught.value.param == "echo"
    assert parse(**body).echoes_prompt is False
    assert parse("x" * 10_000_000, echo=True).echoes_prompt
    assert parse([[5] * 4_000_000], echo=True, n=5).echoes_prompt  # nodes know what it comes to
