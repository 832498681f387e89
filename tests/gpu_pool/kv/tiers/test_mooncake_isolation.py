"""Nobody finds another's blocks in a real Mooncake Store: by listing, guessing, or what it costs.

The store shows every name and gives whatever stands there to whoever reaches it, which the controls
use: without keyed names, and without seals, the same strangers succeed.
"""

import hashlib
import re
from collections.abc import Iterator
from random import Random

import pytest

from gpu_pool.kv.tiers.mooncake_life import Answer
from gpu_pool.kv.tiers.mooncake_words import ABSENT, StoreOp
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from tests.fixtures.mooncake_master import MooncakeMaster, run_master
from tests.gpu_pool.kv.tiers.blocks import SALT, A, B, blank, create_root, create_space, draw_space
from tests.gpu_pool.kv.tiers.store_nodes import (
    StoreNode,
    create_store_settings,
    open_nodes,
    write_block_name,
)

CANARY = b"The canary sings at noon, and nobody is to hear it. "
NUM_GUESSES = 100_000
NUM_FETCHES = 1000
"""Guesses that are read, past any look-up."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeMaster]:
    with run_master(tmp_path_factory.mktemp("master")) as master:
        yield master


@pytest.fixture(scope="module")
def nodes(master: MooncakeMaster) -> Iterator[tuple[StoreNode, StoreNode]]:
    """The victim's node and another."""
    with open_nodes(create_store_settings(master), 2) as (first, second):
        yield first, second


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> list[bytes]:
    """Blocks of one test's own; everybody else knows what stands in them, too."""
    name = request.node.name.encode()
    return [hashlib.sha256(name + bytes([number])).digest() for number in range(50)]


def keep_canaries(node: StoreNode, keys: list[bytes]) -> None:
    """The victim's blocks."""
    victim = create_space()
    for key in keys:
        assert node.tier.keep(victim, victim.name_block(0, key), write_canary())


def write_canary() -> memoryview:
    """A block that is easy to recognise."""
    return memoryview((CANARY * 100)[:5000])


def guess(keys: list[bytes], num_guesses: int) -> Iterator[tuple[TierNamespace, BlockName]]:
    """Blocks by those who know all of the victim's but the salt."""
    random = Random(7)
    for number in range(num_guesses):
        space = draw_space(random)
        yield space, space.name_block(0, keys[number % len(keys)])


def look_up_guesses(node: StoreNode, keys: list[bytes], num_guesses: int) -> int:
    """Guessed names that are there."""
    names = [write_block_name(space, name) for space, name in guess(keys, num_guesses)]
    return sum(node.look_up(names[start : start + 500]) for start in range(0, num_guesses, 500))


def test_no_guess_finds_a_block_of_another(
    nodes: tuple[StoreNode, StoreNode], keys: list[bytes]
) -> None:
    """Near salts, other accounts with the very salt, other models: by name, and read as it is."""
    mine, others = nodes
    keep_canaries(mine, keys)
    victim, block = create_space(), blank()
    own = [victim.name_block(0, key) for key in keys]
    assert look_up_guesses(others, keys, NUM_GUESSES) == 0
    for space, name in guess(keys, NUM_FETCHES):
        assert not others.tier.fetch(space, name, block)
    for name in own:  # the control
        assert others.tier.fetch(victim, name, block)
        assert block == write_canary()
    assert others.look_up([write_block_name(victim, name) for name in own]) == len(own)


def test_names_without_the_salt_are_guessed(
    nodes: tuple[StoreNode, StoreNode], keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same guesses hit wherever the guesser names the victim's account."""
    monkeypatch.setattr(
        TierNamespace, "name_block", lambda self, group, key: BlockName(group, key, key.hex())
    )
    keep_canaries(nodes[0], keys)
    assert look_up_guesses(nodes[1], keys, 1000) > 300


def test_what_is_known_to_others_and_what_is_known_to_nobody_cost_the_same(
    nodes: tuple[StoreNode, StoreNode], keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to time: the store is asked the same questions and gives the same answers,
    whether somebody else has computed those very tokens or nobody has.
    """
    mine, others = nodes
    keep_canaries(mine, keys)
    prober, calls = create_space(B, bytes(32)), list[tuple[StoreOp, int]]()
    ask = others.client.call

    def listen(op: StoreOp, *names: str, content: bytes = b"") -> Answer | None:
        answer = ask(op, *names, content=content)
        assert answer is not None
        calls.append((op, answer.code))
        return answer

    monkeypatch.setattr(others.client, "call", listen)

    def probe(space: TierNamespace, key: bytes) -> list[tuple[StoreOp, int]]:
        """What is said when a block is fetched, computed and kept, and fetched again."""
        calls.clear()
        name = space.name_block(0, key)
        others.tier.fetch(space, name, blank())
        others.tier.keep(space, name, write_canary())
        others.tier.fetch(space, name, blank())
        return calls.copy()

    unknown = probe(prober, Random(4).randbytes(32))
    assert unknown == [
        (StoreOp.GET, ABSENT),
        *((op, 0) for op in (StoreOp.LOOK_UP, StoreOp.PUT, StoreOp.GET)),
    ]
    assert all(probe(prober, key) == unknown for key in keys)
    assert probe(create_space(), keys[0]) != unknown, "the control: whoever has the salt is sooner"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_who_lists_and_reads_the_store_sees_neither_content_nor_account(
    master: MooncakeMaster,
    nodes: tuple[StoreNode, StoreNode],
    keys: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    is_sealed: bool,
) -> None:
    """A stranger with a client of his own; the control keeps blocks as they are."""
    if not is_sealed:
        monkeypatch.setattr(TierNamespace, "seal", seal_nothing)
    mine, stranger = nodes
    others = set(master.list_names())
    keep_canaries(mine, keys)
    names = [name for name in master.list_names() if name not in others]
    assert len(names) == len(keys)
    assert all(re.fullmatch(r"hearth\.kv\.[0-9a-f]{64}", name) for name in names)
    contents = [stranger.read(name) for name in names]
    assert all(contents)
    assert any(CANARY in content for content in contents) is not is_sealed
    for secret in (A.encode(), SALT, create_root(), *keys):
        assert not any(secret in content for content in contents)
        assert not any(secret.hex() in name for name in names)
    owner, texts = create_space().owner, [create_space().name_block(0, key).text for key in keys]
    assert not any(known in name for name in names for known in (owner, *texts))
    if is_sealed:
        assert len(set(contents)) == len(keys), "equal blocks do not look alike"


def seal_nothing(
    self: TierNamespace, name: BlockName, block: memoryview, sealed: memoryview
) -> int:
    """The control's seal."""
    sealed[32 : 32 + len(block)] = block
    return len(sealed)


def test_a_rotated_salt_reads_nothing_not_even_under_its_own_name(
    nodes: tuple[StoreNode, StoreNode], keys: list[bytes]
) -> None:
    """What deleting an account's key at the gateway comes to."""
    mine, stranger = nodes
    before, after, block = create_space(), create_space(A, bytes(32)), blank()
    old, new = (space.name_block(0, keys[0]) for space in (before, after))
    assert mine.tier.keep(before, old, write_canary())
    assert not mine.tier.fetch(after, new, block)
    stranger.rename(write_block_name(before, old), write_block_name(after, new))
    num_damaged = mine.tier.books.num_damaged
    assert not mine.tier.fetch(after, new, block)
    assert mine.tier.books.num_damaged == num_damaged + 1
