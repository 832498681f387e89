"""Who is thought to have which beginning, and how long."""

from contracts.ids import ModelName, NodeId
from contracts.inference import ChatMessage, ChatPrompt, TextPrompt, Tool
from gateway.routing.prefix_index import MAX_KEYS, PrefixIndex
from gateway.routing.prefix_keys import (
    PIECE_ENDS,
    hash_opening,
    hash_prompt,
    hash_session,
)

A, B = NodeId("a"), NodeId("b")
MODEL = ModelName("@hearth/tests/small")
SALT = b"s" * 32


def hash_text(text: str, salt: bytes = SALT, model: ModelName = MODEL) -> tuple[int, ...]:
    return hash_prompt(TextPrompt(text=text), model, salt).keys


def test_keys_name_ever_longer_beginnings() -> None:
    short, long = hash_text("x" * 600), hash_text("x" * 1400)
    assert (len(short), len(long)) == (2, 5)
    assert long[:2] == short
    assert hash_text("x" * 255) == ()
    other = hash_text("x" * 300 + "y" + "x" * 1099)
    assert other[0] == long[0]
    assert not set(other[1:]) & set(long)  # nothing behind a difference is the same


def test_no_key_of_one_account_or_model_is_one_of_another() -> None:
    text = "x" * 100_000
    mine = set(hash_text(text))
    assert len(mine) > 70
    assert not mine & set(hash_text(text, salt=b"t" * 32))
    assert not mine & set(hash_text(text, model=ModelName("@hearth/tests/other")))
    assert mine == set(hash_text(text))  # the control
    assert hash_session(b"agent-1", MODEL, SALT) != hash_session(b"agent-1", MODEL, b"t" * 32)


def test_a_conversation_is_known_by_its_opening() -> None:
    turns = (
        ChatMessage(role="system", content="You help."),
        ChatMessage(role="user", content="Find the bug."),
        ChatMessage(role="assistant", content="Where?"),
        ChatMessage(role="user", content="Here."),
    )

    def name(*messages: ChatMessage, salt: bytes = SALT, model: ModelName = MODEL) -> int | None:
        return hash_opening(ChatPrompt(messages=messages), model, salt)

    first = name(*turns[:2])
    assert first is not None
    assert name(*turns) == first
    assert name(turns[0], turns[3], *turns[2:]) != first  # another conversation
    assert name(*turns, salt=b"t" * 32) != first
    assert name(*turns, model=ModelName("@hearth/tests/other")) != first
    with_tools = ChatPrompt(messages=turns, tools=(Tool(name="find"),))
    assert hash_opening(with_tools, MODEL, SALT) not in (None, first)
    assert name(turns[0]) is None
    assert hash_opening(TextPrompt(text="Find the bug."), MODEL, SALT) is None


def test_a_longer_conversation_begins_like_the_shorter_one() -> None:
    turns = tuple(ChatMessage(role="user", content=f"{i}" * 300) for i in range(8))
    tools = (Tool(name="find"),)
    before = hash_prompt(ChatPrompt(messages=turns[:4], tools=tools), MODEL, SALT).keys
    after = hash_prompt(ChatPrompt(messages=turns, tools=tools), MODEL, SALT).keys
    assert len(before) >= 4
    assert after[: len(before)] == before
    other_tools = hash_prompt(ChatPrompt(messages=turns), MODEL, SALT).keys
    assert other_tools[0] != after[0]


def test_the_node_with_most_of_a_prompt_is_named_first() -> None:
    index = PrefixIndex()
    keys = hash_text("x" * 5000)
    index.record(A, keys[:3])
    index.record(B, keys)
    assert index.find(keys) == [B, A]
    assert index.measure(B, keys) == PIECE_ENDS[len(keys) - 1]
    assert index.measure(A, keys) == PIECE_ENDS[2]
    assert index.find(hash_text("y" * 5000)) == []
    assert index.measure(A, hash_text("y" * 5000)) == 0


def test_what_was_used_least_recently_is_forgotten_from_its_end() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 10)
    first, second = hash_text("x" * 2048), hash_text("y" * 2048)
    index.record(A, first)
    index.record(A, second)
    assert index.measure(A, second) == PIECE_ENDS[7]
    assert index.measure(A, first) == PIECE_ENDS[1]
    assert index.num_keys == 10


def test_a_new_life_begins_with_nothing() -> None:
    index = PrefixIndex()
    keys = hash_text("x" * 2048)
    index.record(A, keys)
    index.record(B, keys)
    index.forget(A)
    assert index.find(keys) == [B]
    index.forget(B)
    assert index.num_keys == 0


def test_a_node_that_has_less_than_was_thought_is_taken_for_smaller() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 16)
    index.record(A, hash_text("x" * 4096))
    for _ in range(20):
        index.correct(A, 1000, 100, 50)
    assert index.num_keys < 4
    for _ in range(200):
        index.correct(A, 1000, 990, 50)
    index.record(A, hash_text("x" * 4096))
    assert index.num_keys == 16


def test_what_nodes_say_of_others_requests_counts_as_sent() -> None:
    index, keys = PrefixIndex(), hash_text("x" * 4096)
    index.hear(A, reversed(keys))
    assert index.find(keys) == [A]
    assert index.measure(A, keys) == 4096
    index.set_capacity(A, 3)
    index.record(A, keys[:1])
    assert index.measure(A, keys) == PIECE_ENDS[2]  # the end was forgotten, as of one's own


def test_all_nodes_together_have_so_much_room_and_no_more() -> None:
    index, nodes = PrefixIndex(), [NodeId(str(place)) for place in range(64)]
    for place, node_id in enumerate(nodes):
        index.hear(node_id, range(place * 20_000, (place + 1) * 20_000))
    for node_id in nodes:
        index.hear(node_id, ())
    assert index.num_keys == MAX_KEYS
    assert all(index.find([(place + 1) * 20_000 - 1]) for place in range(64))  # the latest stay
