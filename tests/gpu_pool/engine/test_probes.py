"""What another account can learn of a prefix: nothing from the cache, nothing from its time.

Both sides of every test see the same machine; the controls are the account itself, which does find
its prefixes and answers sooner for it, and a salt that is everybody's.
"""

from functools import cache
from random import Random
from typing import Final

import pytest

from contracts.ids import AccountId
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import KvGroup, KvGroupKind
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.engine.simulated_time import Simulation, Times

VICTIM, PROBER, OTHER = (AccountId(letter * 32) for letter in "abc")
SALT: Final = bytes(range(32))
ADAPTER: Final = bytes(range(100, 132))
"""What the victim's requests with an odd number are computed with."""
BLOCK: Final = 16
NUM_SECRETS: Final = 200
NUM_PROBES: Final = 100_000
NUM_TIMED: Final = 800


@cache
def create_secret(number: int) -> list[int]:
    """One of the victim's prompts: six blocks and a piece."""
    random = Random(number)
    return [random.randrange(1000) for _ in range(6 * BLOCK + 3)]


# -- what is found -------------------------------------------------------------------------------


def create_memory() -> KvMemory:
    """The KV memory that all accounts of a model share: about fifty secrets fit, with windows."""
    groups = (KvGroup(KvGroupKind.FULL, 1, 1), KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 64))
    return KvMemory(
        [GroupMemory(group, BLOCK, 400, 512, place) for place, group in enumerate(groups)],
        BLOCK,
        BlockHasher("revision", "bfloat16", BLOCK),
    )


def find_adapter(number: int) -> bytes:
    """What a secret is computed with."""
    return ADAPTER if number % 2 else b""


def compute(
    memory: KvMemory,
    account_id: AccountId,
    salt: bytes,
    token_ids: list[int],
    adapter: bytes = b"",
) -> None:
    """What a sequence does that comes, is computed and goes."""
    table = memory.create_table(account_id, salt, adapter_digest=adapter)
    found = memory.find(table, token_ids)
    assert memory.begin(table, found, token_ids, spare=0, takes_floors=True)
    assert memory.extend(table, found.num_tokens, len(token_ids), takes_floors=True)
    memory.register(table, token_ids, len(token_ids))
    memory.release(table)


def probe(memory: KvMemory, root_key: bytes, token_ids: list[int]) -> int:
    """Tokens that a request of the prober would find."""
    table = memory.create_table(PROBER, b"")
    table.root_key = root_key
    return memory.find(table, token_ids).num_tokens


def draw_root(random: Random, adapter: bytes) -> bytes:
    """The name space of a probe for what the victim has computed with `adapter`: anything that is
    near the victim's but not the same.
    """
    hasher = BlockHasher("revision", "bfloat16", BLOCK)
    kind = random.randrange(9)
    if kind == 0:  # the prober's own account
        return hasher.create_root(random.randbytes(32))
    if kind == 1:  # the victim's, one generation on: any bit may differ
        changed = int.from_bytes(SALT, "little") ^ 1 << random.randrange(256)
        return hasher.create_root(changed.to_bytes(32, "little"))
    if kind == 2:  # a part of it, or more than it
        return hasher.create_root((SALT + bytes(8))[: random.choice([*range(32), 33, 40])])
    if kind == 3:  # the salt's end in the next field
        cut = random.randrange(1, 32)
        name = SALT[cut:].decode("latin-1") + "revision"
        return BlockHasher(name, "bfloat16", BLOCK).create_root(SALT[:cut])
    if kind == 4:  # another model, dtype or size of block, under the victim's own salt
        size = random.choice([BLOCK, 2 * BLOCK])
        name, dtype = random.choice(
            [("revision2", "bfloat16"), ("revision", "float16"), ("revisionb", "float16")]
        )
        return BlockHasher(name, dtype, size).create_root(SALT)
    if kind == 5:  # the victim's adapter, which is public, under another salt
        return hasher.create_root(random.randbytes(32), ADAPTER)
    if kind == 6:  # the victim's own salt with another adapter, or with none where there is one
        others = [
            random.randbytes(32),
            ADAPTER[:-1],
            ADAPTER + bytes(1),
            b"" if adapter else ADAPTER,
        ]
        return hasher.create_root(SALT, random.choice(others))
    if kind == 7:  # the adapter in the field before, or the salt in that behind
        return random.choice([hasher.create_root(SALT + ADAPTER), hasher.create_root(b"", SALT)])
    return random.choice([b"", bytes(32), SALT])  # no name space at all


def count_hits(num_probes: int) -> tuple[int, int, int]:
    """Probes of another that found something, and the victim's own probes: all, and those too."""
    memory, random = create_memory(), Random(3)
    hasher = BlockHasher("revision", "bfloat16", BLOCK)
    num_hits = num_own = num_own_hits = 0
    newest = 0
    for turn in range(num_probes):
        if turn % 50 == 0:  # blocks change hands all the time
            newest = random.randrange(NUM_SECRETS)
            compute(memory, VICTIM, SALT, create_secret(newest), find_adapter(newest))
            length = random.randrange(1, 120)
            compute(memory, PROBER, b"prober", [random.randrange(1000) for _ in range(length)])
            num_own += 1
            own_root = hasher.create_root(SALT, find_adapter(newest))
            num_own_hits += probe(memory, own_root, create_secret(newest)) == 6 * BLOCK
        number = random.choice([newest, newest, random.randrange(NUM_SECRETS)])
        root = draw_root(random, find_adapter(number))
        num_hits += probe(memory, root, create_secret(number)) > 0
    return num_hits, num_own, num_own_hits


def test_no_probe_of_another_finds_anything_and_all_of_the_account_itself_do() -> None:
    num_hits, num_own, num_own_hits = count_hits(NUM_PROBES)
    assert num_hits == 0
    assert num_own_hits == num_own == NUM_PROBES // 50


def test_a_salt_that_is_everybodys_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same probes find what a hasher without salts has named."""
    create_root = BlockHasher.create_root
    monkeypatch.setattr(BlockHasher, "create_root", lambda self, *_: create_root(self, b""))
    num_hits, _, _ = count_hits(2000)
    assert num_hits > 500


def test_an_adapter_that_is_left_out_of_the_names_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what one adapter has computed is found with another."""
    create_root = BlockHasher.create_root
    monkeypatch.setattr(
        BlockHasher, "create_root", lambda self, salt, _=b"": create_root(self, salt)
    )
    num_hits, _, _ = count_hits(2000)
    assert num_hits > 100


# -- what time tells -----------------------------------------------------------------------------


class Timing:
    """A prober who times its requests while others use the machine; simulated clock."""

    def __init__(self, prober: AccountId, prober_salt: bytes, *, is_settled: bool) -> None:
        """`is_settled`: the victim's request is over before the prober asks."""
        settings = SchedulerSettings(max_batch_tokens=96, max_chunk_tokens=64, max_running=16)
        self._simulation = Simulation(settings, 2000)
        self._prober, self._prober_salt = prober, prober_salt
        self._is_settled = is_settled
        self._random = Random(9)

    def measure(self, number: int, *, is_hit: bool) -> float:
        """The prober's time to the first token, for what the victim has or has not sent."""
        simulation, random = self._simulation, self._random
        for _ in range(random.randrange(3)):
            simulation.add(OTHER, random.randrange(2, 150), random.randrange(1, 8))
        sent = self._add(VICTIM, SALT, create_secret(2 * number))
        for _ in range(random.randrange(5)):
            simulation.step()
        while self._is_settled and simulation.times[sent].finished is None:
            simulation.step()
        guess = create_secret(2 * number + (not is_hit))
        asked = self._add(self._prober, self._prober_salt, guess)
        while simulation.times[asked].finished is None:
            simulation.step()
        times = simulation.times[asked]
        assert times.first_token is not None
        return times.first_token - times.added

    def _add(self, account_id: AccountId, salt: bytes, prompt: list[int]) -> int:
        """A request with this very prompt."""
        simulation = self._simulation
        number = len(simulation.times)
        simulation.times[number] = Times(account_id, simulation.now_ms)
        simulation.scheduler.add(
            create_request(number, prompt, max_tokens=2, salt=salt, account_id=account_id)
        )
        return number


def measure_auc(timing: Timing, num_timed: int = NUM_TIMED) -> float:
    """How well time tells hits from misses: 0.5 is chance, 1 is always."""
    hits: list[float] = []
    misses: list[float] = []
    coin = Random(4)
    for number in range(num_timed):
        is_hit = coin.random() < 0.5
        (hits if is_hit else misses).append(timing.measure(number, is_hit=is_hit))
    wins = sum((miss > hit) + 0.5 * (miss == hit) for miss in misses for hit in hits)
    return wins / len(hits) / len(misses)


@pytest.mark.parametrize("is_settled", [True, False])
def test_time_tells_nothing_of_anothers_prefix(is_settled: bool) -> None:
    auc = measure_auc(Timing(PROBER, b"prober", is_settled=is_settled))
    assert 0.45 <= auc <= 0.55


def test_time_tells_an_account_its_own_prefixes() -> None:
    """The control: the same clock, the same load, and the difference is plain."""
    assert measure_auc(Timing(VICTIM, SALT, is_settled=True), 150) > 0.95


def test_time_tells_of_a_salt_that_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the control: it is the salt that hides the difference."""
    create_root = BlockHasher.create_root
    monkeypatch.setattr(BlockHasher, "create_root", lambda self, *_: create_root(self, b""))
    assert measure_auc(Timing(PROBER, b"prober", is_settled=True), 150) > 0.95
