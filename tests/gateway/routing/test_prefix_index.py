"""Who is thought to have which beginning, and how long."""

import random
import tracemalloc
from collections.abc import Sequence

from contracts.ids import ModelName, NodeId
from contracts.inference import ChatMessage, ChatPrompt, TextPrompt, Tool
from gateway.routing.prefix_index import PrefixIndex
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


def find(index: PrefixIndex, keys: Sequence[int]) -> list[NodeId]:
    """Who has it, all nodes being equally far away."""
    return index.find(keys, lambda _: 0.0)


def take(index: PrefixIndex, keys: Sequence[int]) -> None:
    """The prompt is sent to `A`, which accepts it."""
    index.record(A, keys)
    index.prove(A, keys)


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
    assert find(index, keys) == [B, A]
    assert index.measure(B, keys) == PIECE_ENDS[len(keys) - 1]
    assert index.measure(A, keys) == PIECE_ENDS[2]
    assert find(index, hash_text("y" * 5000)) == []
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
    assert find(index, keys) == [B]
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
    index.hear(A, keys[::-1])
    assert find(index, keys) == [A]
    assert index.measure(A, keys) == 4096
    index.set_capacity(A, 3)
    index.record(A, keys[:1])
    assert index.measure(A, keys) == PIECE_ENDS[2]  # the end was forgotten, as of one's own


def test_what_is_only_heard_of_is_bounded_and_crowds_out_nothing_of_ones_own() -> None:
    index, own = PrefixIndex(max_heard=1000), range(-50, 0)
    nodes = [NodeId(str(place)) for place in range(10)]
    index.record(nodes[0], own)
    silent = NodeId("silent")
    index.set_capacity(silent, 1000)
    index.hear(silent, ())  # takes no part
    for place, node_id in enumerate(nodes):
        index.hear(node_id, range(place * 1000, place * 1000 + 990))
        assert index.num_keys <= 1050
    assert index.num_keys == 1050
    for place, node_id in enumerate(nodes):
        assert index.measure(node_id, [place * 1000 + 989])  # the latest of each stays
    assert index.measure(nodes[0], own) == PIECE_ENDS[49]
    index.record(nodes[1], range(1950, 1990))  # what was heard of is sent there now, and taken
    index.prove(nodes[1], range(1950, 1990))
    index.hear(nodes[1], range(5_000_000, 5_000_500))
    assert index.measure(nodes[1], range(1950, 1990)) == PIECE_ENDS[39]
    for node_id in nodes:
        index.forget(node_id)
    assert index.num_keys == 0
    index.hear(A, range(2000))
    assert index.num_keys == 1000  # as if there had never been anything


def test_what_is_sent_and_what_is_heard_of_are_forgotten_in_one_order_of_use() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 4)
    for heard, sent in ((1, 2), (3, 4)):
        index.hear(A, [heard])
        take(index, [sent])
    index.hear(A, [1])
    take(index, [5])
    assert [key for key in range(6) if index.measure(A, [key])] == [1, 3, 4, 5]
    index.hear(A, [6])
    assert [key for key in range(7) if index.measure(A, [key])] == [1, 4, 5, 6]
    index.forget(A)
    assert index.num_keys == 0


def test_a_name_that_is_heard_of_takes_little_memory() -> None:
    index, rng = PrefixIndex(), random.Random(1)
    told = [[rng.getrandbits(64) for _ in range(100)] for _ in range(100)]
    tracemalloc.start()
    for place, keys in enumerate(told):
        index.hear(NodeId(f"n{place % 4}"), keys)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.num_keys == 10_000
    assert num_bytes < 120 * index.num_keys  # besides the names: in ordered dictionaries it is 155


def test_of_what_is_used_at_once_that_which_is_only_heard_of_is_forgotten_first() -> None:
    index = PrefixIndex()
    take(index, [1, 2])
    index.hear(A, [2, 3])
    index.set_capacity(A, 3)
    take(index, [4])
    assert [key for key in range(5) if index.measure(A, [key])] == [2, 3, 4]
    take(index, [5])
    assert [key for key in range(6) if index.measure(A, [key])] == [2, 4, 5]


def test_what_is_sent_and_never_accepted_crowds_out_nothing() -> None:
    """Refusals cost nobody anything: one account could have all others' prompts forgotten."""
    index = PrefixIndex()
    index.set_capacity(A, 100)
    known = range(80)
    take(index, known)
    index.record(A, coming := range(1000, 1010))
    for first in range(2000, 9000, 70):
        index.record(A, range(first, first + 70))
        assert index.num_keys <= 200
    assert index.measure(A, known) == PIECE_ENDS[79]
    assert not index.measure(A, coming)  # what is on its way has room as well, and no more
    index.record(A, coming)
    for first in range(2000, 2700, 70):
        index.record(A, range(first, first + 70))
        index.record(A, coming)  # in use all the while
    assert index.measure(A, coming) == PIECE_ENDS[9]
    for first in range(2000, 9000, 70):  # the control: what is accepted takes the place of others
        take(index, range(first, first + 70))
    assert not index.measure(A, known)
    assert index.num_keys <= 200
    index.forget(A)
    assert index.num_keys == 0


def test_of_those_that_have_it_the_near_ones_are_named_that_come_into_question() -> None:
    index, keys = PrefixIndex(), hash_text("x" * 4096)
    away_s = {NodeId(f"far{place}"): 0.08 for place in range(5)} | {A: 0.0, B: 0.001}
    for node_id in (NodeId("gone"), *away_s):
        index.hear(node_id, keys)
    assert index.find(keys, away_s.get) == [A, B, "far0"]
    assert find(index, keys) == ["gone", "far0", "far1"]  # the control: the order of hearing
