"""From token ids to what a reader sees: which tokens belong to which text, and where it stops."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from contracts.ids import ModelName
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    Delta,
    GenerateRequest,
    PlainPrompt,
    ReasoningDelta,
    SamplingParams,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.text_stream import AnyDelta, TextStream
from gpu_pool.server.text.token_bytes import create_token_bytes
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer

TOKENIZER = create_tokenizer()
CHAT = ChatPrompt(
    messages=(ChatMessage(role="user", content="x"),), tools=(Tool(name="look"), Tool(name="find"))
)
CALLING = (
    "<think>\nhm, 1 < 2\n</think>\n\nI look. "
    '<tool_call>\n{"name": "look", "arguments": {"at": "the \\"fox\\""}}\n</tool_call>\n'
    '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def create(model_text: ModelText, *stops: str, **changes: Any) -> TextStream:
    """The way out of a plain request, unless `changes` say otherwise."""
    request = GenerateRequest(
        model=ModelName("@a/b"), prompt=TextPrompt(text="x"), sampling=SamplingParams(stop=stops)
    )
    return model_text.create_stream(msgspec.structs.replace(request, **changes), 0, False)


def join_text(deltas: Sequence[AnyDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Delta))


def join_ids(deltas: Sequence[AnyDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def merge(deltas: Sequence[AnyDelta]) -> list[tuple[object, str]]:
    """What a reader has at the end: kind with its text, neighbours of a kind joined."""
    merged: list[tuple[object, str]] = []
    for delta in deltas:
        kind: object = type(delta)
        text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if isinstance(delta, ToolCallDelta):
            if delta.name:
                merged.append((delta.name, ""))
            kind = delta.call_index
        if merged and merged[-1][0] == kind:
            merged[-1] = kind, merged[-1][1] + text
        elif text:
            merged.append((kind, text))
    return merged


@given(ids=st.lists(st.integers(0, VOCAB_SIZE), max_size=40), data=st.data())
def test_any_chunking_shows_the_whole_text_and_all_tokens(
    model_text: ModelText, ids: list[int], data: st.DataObject
) -> None:
    stream = create(model_text, "unlikely stop")
    deltas: list[AnyDelta] = []
    rest = ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas += stream.push(rest[:size])
        rest = rest[size:]
    deltas += stream.finish()
    assert join_text(deltas) == TOKENIZER.decode(ids)
    assert join_ids(deltas) == ids
    assert stream.num_tokens == len(ids)


@given(data=st.data())
def test_any_chunking_gives_the_same_thoughts_and_calls(
    model_text: ModelText, data: st.DataObject
) -> None:
    ids = encode(CALLING)
    stream = create(model_text, prompt=CHAT)
    deltas: list[AnyDelta] = []
    rest = ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas += stream.push(rest[:size])
        rest = rest[size:]
    deltas += stream.finish()
    assert merge(deltas) == [
        (ReasoningDelta, "hm, 1 < 2"),
        (Delta, "I look."),
        ("look", ""),
        (0, '{"at": "the \\"fox\\""}'),
        ("find", ""),
        (1, "{}"),
    ]
    assert join_ids(deltas) == ids
    assert stream.num_calls == 2
    num_thoughts = len(encode("\nhm, 1 < 2\n</think>"))
    assert stream.num_reasoning_tokens == num_thoughts


def test_ids_of_calls_are_drawn_and_differ(model_text: ModelText) -> None:
    stream = create(model_text, prompt=CHAT)
    deltas = [*stream.push(encode(CALLING)), *stream.finish()]
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCallDelta) and delta.id]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)


def test_an_answer_ends_before_a_call_too_many(model_text: ModelText) -> None:
    stream = create(model_text, prompt=CHAT, tool_choice=ToolChoice(is_parallel=False))
    deltas = stream.push(encode(CALLING))
    assert stream.is_over
    assert stream.num_calls == 1
    assert "find" not in str(deltas)
    assert stream.num_tokens < len(encode(CALLING))


def test_stop_strings_count_in_what_is_said_only(model_text: ModelText) -> None:
    stream = create(model_text, "hm", "look.", "fox", prompt=CHAT)
    deltas = stream.push(encode(CALLING))
    assert stream.is_over
    assert merge(deltas) == [(ReasoningDelta, "hm, 1 < 2"), (Delta, "I ")]


def test_calls_without_tools_are_text(model_text: ModelText) -> None:
    prompt = msgspec.structs.replace(CHAT, tools=())
    stream = create(model_text, prompt=prompt)
    deltas = [*stream.push(encode(CALLING)), *stream.finish()]
    assert stream.num_calls == 0
    assert join_text(deltas) == CALLING.partition("</think>\n\n")[2]


def test_tokens_come_with_the_character_they_complete(model_text: ModelText) -> None:
    stream = create(model_text)
    ids = [TOKENIZER.token_to_id(token) for token in ("a", "ð", "Ł", "¦", "ĸ")]
    deltas = [stream.push([token_id]) for token_id in ids]
    assert deltas == [[Delta("a", (ids[0],))], [], [], [], [Delta("🦖", tuple(ids[1:]))]]


def test_logprobs_come_with_their_tokens(model_text: ModelText) -> None:
    stream = create(model_text)
    ids = [TOKENIZER.token_to_id(token) for token in ("a", "ð", "Ł", "¦", "ĸ")]
    scores = [TokenLogprob(i, b"", -1.0) for i in ids]
    pieces = [stream.push([i], [score]) for i, score in zip(ids, scores, strict=True)]
    assert pieces[0] == [Delta("a", (ids[0],), 0, tuple(scores[:1]))]
    assert pieces[4] == [Delta("🦖", tuple(ids[1:]), 0, tuple(scores[1:]))]


def test_tokens_of_held_text_come_with_it(model_text: ModelText) -> None:
    stream = create(model_text, "ello!")
    ids = [TOKENIZER.token_to_id(token) for token in "eln"]
    assert [stream.push([i]) for i in ids] == [[], [], [Delta("eln", tuple(ids))]]


def test_text_ends_before_the_stop_string_and_tokens_count_up_to_it(model_text: ModelText) -> None:
    ids = encode("How are you today? The quick brown fox")
    stream = create(model_text, "today")
    deltas = stream.push(ids)
    assert stream.is_over
    assert stream.stop == "today"
    assert join_text(deltas) == "How are you "
    assert join_ids(deltas) == ids[: stream.num_tokens]
    assert "today" in TOKENIZER.decode(ids[: stream.num_tokens])
    assert "today" not in TOKENIZER.decode(ids[: stream.num_tokens - 1])


def test_a_stop_string_may_end_with_the_rest_of_a_broken_character(model_text: ModelText) -> None:
    stream = create(model_text, "\ufffd")
    ids = [TOKENIZER.token_to_id("a"), TOKENIZER.token_to_id("ð")]
    assert join_text(stream.push(ids)) == "a"
    stream.finish()
    assert stream.is_over


WORDS = {"<s>": 0, "\u2581Once": 1, "\u2581upon": 2, "\u2581a": 3}


def create_metaspace_text(model_text: ModelText) -> tuple[Tokenizer, ModelText]:
    """A vocabulary whose words bring the space in front of them, as SentencePiece has it."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, "<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    table = create_token_bytes(tokenizer, json.loads(tokenizer.to_str()))
    return tokenizer, replace(model_text, table=table, thought_table=table, call_table=table)


@pytest.mark.parametrize("prompt", [TextPrompt(text="Once"), TokenPrompt(token_ids=(0, 1))])
def test_what_continues_a_text_keeps_the_space_before_its_first_word(
    model_text: ModelText, prompt: PlainPrompt
) -> None:
    tokenizer, spaced = create_metaspace_text(model_text)
    continued = join_text(create(spaced, prompt=prompt).push([2, 3]))
    assert "Once" + continued == tokenizer.decode([1, 2, 3])


@pytest.mark.parametrize("prompt", [CHAT, TokenPrompt(token_ids=(0,))])
def test_what_begins_a_text_does_not(
    model_text: ModelText, prompt: ChatPrompt | TokenPrompt
) -> None:
    _, spaced = create_metaspace_text(model_text)
    stream = create(spaced, prompt=prompt)
    assert join_text([*stream.push([2, 3]), *stream.finish()]) == "upon a"
