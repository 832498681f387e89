"""Thoughts, calls and text that go on elsewhere: wherever they are cut, a reader has the same."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.inference import Resumption
from gateway.upstream.progress import Progress
from gpu_pool.server.resumed_answer import ResumedAnswer
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.text_stream import AnyDelta
from tests.gpu_pool.server.text.test_text_stream import CALLING, CHAT, create, encode, merge

ANSWERS = {
    "calls": CALLING,
    "text behind thoughts": "<think>\nhm</think>\n\nÄpfel 🍏 and <tool_call",
    "a call cut short": '<tool_call>\n{"name": "look", "arguments": {"at": "the \\"f',
    "no call after all": '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call> so',
}


def count(deltas: Sequence[AnyDelta]) -> Resumption:
    """What a gateway notes of them; of text the connection's reader does."""
    progress = Progress()
    for delta in deltas:
        progress.note(delta)
        if type(delta).__name__ == "Delta":
            progress.token_ids += delta.token_ids
            progress.num_text_chars += len(delta.text)
    return progress.to_resumption()


@pytest.mark.parametrize("name", ANSWERS)
@given(data=st.data())
def test_parts_of_an_answer_go_on_where_they_were_cut_however_often(
    model_text: ModelText, name: str, data: st.DataObject
) -> None:
    ids = encode(ANSWERS[name])
    whole = create(model_text, prompt=CHAT)
    expected = merge([*whole.push(ids), *whole.finish()])
    had: list[AnyDelta] = []
    for _ in range(data.draw(st.integers(0, 3))):
        stream = create(model_text, prompt=CHAT)
        before = count(had)
        answer = ResumedAnswer(before, "", stream)
        more: list[AnyDelta] = []
        for token_id in ids[len(before.token_ids) :]:
            more += answer.cut(stream.push([token_id]))
        had += more[: data.draw(st.integers(0, len(more)))]
    stream = create(model_text, prompt=CHAT)
    before = count(had)
    answer = ResumedAnswer(before, "", stream)
    had += answer.cut(stream.push(ids[len(before.token_ids) :]))
    had += answer.cut(stream.finish())
    assert merge(had) == expected
    assert [token_id for delta in had for token_id in delta.token_ids] == ids
    assert stream.num_tokens == len(ids)
    assert stream.num_reasoning_tokens == whole.num_reasoning_tokens
