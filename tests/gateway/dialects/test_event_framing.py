"""Streams as a reader of server-sent events sees them, whatever the text is."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import StreamBroken
from gateway.dialects.chat_replies import ChatForm
from gateway.dialects.completion_replies import CompletionForm
from gateway.dialects.dialect import ReplyForm
from gateway.dialects.workers_ai_replies import ClassicForm
from tests.gateway.dialects.dialect_words import ACCEPTED, END, HEAD

FORMS = [ClassicForm(), ChatForm(), CompletionForm()]
_LINE_END = re.compile(rb"\r\n|\r|\n")

AWKWARD = [
    "line\nbreak",
    "carriage\rreturn",
    "both\r\n\r\n",
    "\n\ndata: [DONE]\n\n",
    "data: {}",
    "event: close\nid: 1\nretry: 0",
    ": a comment",
    "[DONE]",
    '"}\n\ndata: {"response":"forged"}',
    "\u2028 \u2029 \x85 \x0b \x0c",
    "\x00\x1f\x7f",
    "\ufeff",
    "🙂" * 3,
    " leading and trailing ",
]


def read_events(stream: bytes) -> list[str]:
    """The data of each event as the standard dispatches them.

    Source: WHATWG HTML, section 9.2.6, event stream interpretation.
    """
    events: list[str] = []
    data: list[str] = []
    *lines, tail = _LINE_END.split(stream)
    assert tail == b""
    for line in lines:
        if line:
            name, _, value = line.decode().partition(":")
            assert name == "data", "no other field is ever sent"
            data.append(value.removeprefix(" "))
        else:
            events.append("\n".join(data))
            data = []
    assert not data, "an event was left open"
    return events


def render(form: ReplyForm, texts: Sequence[str]) -> bytes:
    """A whole stream."""
    renderer = form.create_renderer(HEAD)
    pieces = [renderer.begin(ACCEPTED), *map(renderer.render_text, texts)]
    return b"".join([*pieces, renderer.finish(END)])


def read_text(event: Any) -> str:
    """The text of one event."""
    if "response" in event:
        return event["response"]
    (choice,) = event["choices"]
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def check_stream(form: ReplyForm, texts: Sequence[str]) -> None:
    """The texts arrive as they were, then the usage once, then the end mark once."""
    *events, done = read_events(render(form, texts))
    assert done == "[DONE]"
    decoded = [msgspec.json.decode(event) for event in events]
    assert "".join(map(read_text, decoded)) == "".join(texts)
    assert ["usage" in event for event in decoded] == [False] * (len(decoded) - 1) + [True]
    assert decoded[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    if not isinstance(form, ClassicForm):
        reasons = [event["choices"][0]["finish_reason"] for event in decoded]
        assert reasons == [None] * (len(decoded) - 1) + ["stop"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("text", AWKWARD)
def test_no_text_breaks_out_of_its_event(form: ReplyForm, text: str) -> None:
    check_stream(form, [text, "next"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@given(texts=st.lists(st.text() | st.sampled_from(AWKWARD), max_size=8))
def test_any_text_arrives_as_it_was(form: ReplyForm, texts: list[str]) -> None:
    check_stream(form, texts)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
def test_an_answer_without_text_still_ends_properly(form: ReplyForm) -> None:
    check_stream(form, [])


def test_the_reader_of_these_tests_would_notice_a_forged_event() -> None:
    """The control: text that is not escaped becomes an event of its own."""
    assert read_events(b"data: a\n\ndata: [DONE]\n\n") == ["a", "[DONE]"]
    assert len(read_events(b"data: " + AWKWARD[3].encode() + b"\n\n")) > 1


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("message", AWKWARD)
def test_an_error_is_one_event_whatever_its_message_and_nothing_follows(
    form: ReplyForm, message: str
) -> None:
    (event,) = read_events(form.create_renderer(HEAD).fail(StreamBroken(message)))
    decoded = msgspec.json.decode(event)
    assert decoded["errors"][0]["message"] == message
    assert decoded["success"] is False
