"""KV that one engine has computed serves another through a real Mooncake Store: answers stay.

And where the store is away, frozen or dead, they are computed as if there were none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from contracts.grant import RetentionClass
from contracts.ids import RegionId
from gpu_pool.engine.messages import AddSequence
from gpu_pool.kv.tiers.settings import HostTierSettings, StoreTierSettings, TierSettings
from tests.fixtures.mooncake_master import MooncakeMaster, run_master
from tests.gpu_pool.engine.engine_rig import Outcome, create_request
from tests.gpu_pool.kv.tiers.store_nodes import SEGMENT_BYTES, wait_until
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES
from tests.gpu_pool.models.tier_rig import TierRig, open_rig

PREFIX = create_prompt(150, 99)
WEUR, ENAM = RegionId("weur"), RegionId("enam")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    with run_master(tmp_path) as master:
        yield master


@contextmanager
def open_engine(
    folder: Path,
    master: MooncakeMaster,
    *,
    has_host: bool = False,
    regions: tuple[RegionId, ...] = (),
) -> Iterator[TierRig]:
    """An engine whose store is there, whose nodes stand in `regions`."""
    store = StoreTierSettings(
        master=master.address, max_bytes=1 << 30, segment_bytes=SEGMENT_BYTES, regions=regions
    )
    host = HostTierSettings(max_bytes=1 << 30) if has_host else None
    with open_rig(folder, TierSettings(host=host, store=store, staging_tokens=1024)) as rig:
        wait_until(lambda: not rig.figure("store").is_off)
        yield rig


def ask(rig: TierRig, number: int, salt: bytes = b"A" * 32) -> Outcome:
    """What an engine answers that has nothing on its device."""
    rig.forget()
    return rig.answer(create_request(number, PREFIX, max_tokens=8, salt=salt))


def measure(rig: TierRig) -> None:
    """A prompt of its own: what an engine keeps first tells it what the store takes."""
    rig.answer(create_request(99, create_prompt(40, 5)))
    assert rig.figure("store").bytes_per_s > 0


def test_what_one_engine_has_computed_serves_another_of_the_same_account(
    llama: Path, master: MooncakeMaster
) -> None:
    with open_engine(llama, master) as first, open_engine(llama, master, has_host=True) as second:
        measure(second)
        expected = ask(first, 1)
        assert first.figure("store").num_kept == 9
        outcome = ask(second, 1)
        assert (outcome.token_ids, outcome.num_cached_tokens) == (expected.token_ids, [144])
        assert second.figure("store").num_fetched >= 9
        assert ask(second, 2).num_cached_tokens == [144]
        assert second.figure("host").num_fetched == 9, "what has come is kept in memory"
        for number, salt in enumerate((b"B" * 32, b"A" * 31 + b"a"), 10):
            outcome = ask(second, number, salt)
            assert (outcome.token_ids, outcome.num_cached_tokens) == (expected.token_ids, [0])


@pytest.mark.parametrize(
    ("family", "serves"),
    [
        ("latents", True),
        ("windows", False),
        ("windows and sinks", False),
        ("chunks", False),
        ("windows only", False),
    ],
)
def test_only_models_that_look_back_to_the_start_fetch_what_another_has_put_there(
    family: str, *, serves: bool, tmp_path: Path, master: MooncakeMaster
) -> None:
    """Latents of MLA travel; of windows and chunks a part of a prefix would be of no use. What an
    engine has computed itself it fetches in any case (the control).
    """
    model_type, changes = FAMILIES[family]
    folder = write_checkpoint(tmp_path / "model", model_type, **changes)
    with open_engine(folder, master) as first, open_engine(folder, master) as second:
        measure(second)
        expected = ask(first, 1).token_ids
        assert first.figure("store").num_kept > 0
        outcome = ask(second, 1)
        assert (outcome.token_ids, outcome.num_cached_tokens) == (expected, [144 if serves else 0])
        assert (second.figure("store").num_fetched > 0) is serves
        own = ask(second, 2)
        assert (own.token_ids, own.num_cached_tokens) == (expected, [144])


def test_nothing_of_a_private_request_gets_into_the_store_or_comes_from_there(
    llama: Path, master: MooncakeMaster
) -> None:
    private = RetentionClass.NONE
    with open_engine(llama, master) as rig:
        rig.answer(create_request(1, PREFIX, retention=private))
        assert master.list_names() == []
        rig.answer(create_request(2, PREFIX))
        assert len(master.list_names()) == 9, "the control"
        rig.forget()
        again = rig.answer(create_request(3, PREFIX, retention=private))
        assert again.num_cached_tokens == [0]


@pytest.mark.parametrize("stood_in", [(), (WEUR, ENAM)])
def test_nothing_of_a_bound_request_gets_into_a_store_that_may_lie_elsewhere_or_comes_from_there(
    stood_in: tuple[RegionId, ...], llama: Path, master: MooncakeMaster
) -> None:
    """Nor where nobody says where its nodes stand."""
    with open_engine(llama, master, regions=stood_in) as rig:
        bound = rig.answer(create_request(1, PREFIX, regions=(WEUR,)))
        assert master.list_names() == []
        free = rig.answer(create_request(2, PREFIX))
        assert (free.token_ids, len(master.list_names())) == (bound.token_ids, 9), "the control"
        for number, (regions, num_cached) in enumerate([((WEUR,), 0), (None, 144)], 3):
            rig.forget()
            again = rig.answer(create_request(number, PREFIX, regions=regions))
            assert (again.token_ids, again.num_cached_tokens) == (bound.token_ids, [num_cached])


def test_a_bound_request_shares_its_prefix_where_all_nodes_of_the_store_are_where_it_may_be(
    llama: Path, master: MooncakeMaster
) -> None:
    with open_engine(llama, master, regions=(WEUR,)) as rig:
        rig.answer(create_request(1, PREFIX, regions=(ENAM, WEUR)))
        assert len(master.list_names()) == 9
        rig.forget()
        again = rig.answer(create_request(2, PREFIX, regions=(WEUR,)))
        assert again.num_cached_tokens == [144]


def test_requests_are_answered_while_the_master_is_frozen_or_gone_and_it_serves_again(
    llama: Path, master: MooncakeMaster
) -> None:
    with open_engine(llama, master) as rig:
        expected = ask(rig, 1).token_ids
        assert ask(rig, 2).num_cached_tokens == [144]
        master.freeze()
        rig.tokens_per_s = 10_000.0  # so that patience is short, as it is with a real one
        for number in range(3, 8):
            outcome = ask(rig, number)
            assert (outcome.token_ids, outcome.num_cached_tokens) == (expected, [0])
        wait_until(lambda: rig.figure("store").is_off)  # when the first call is late
        master.thaw()
        wait_until(lambda: not rig.figure("store").is_off)
        rig.tokens_per_s = 1.0
        outcome = ask(rig, 8)
        assert (outcome.token_ids, outcome.num_cached_tokens) == (expected, [144])
        master.kill()
        for number in range(9, 12):
            outcome = ask(rig, number)
            assert (outcome.token_ids, outcome.num_cached_tokens) == (expected, [0])
        master.start()
        wait_until(lambda: not rig.figure("store").is_off)
        numbers = count(20)  # until its memory is lent anew, nothing is kept
        wait_until(lambda: ask(rig, next(numbers)).num_cached_tokens == [144])
        outcome = ask(rig, 1000)
        assert (outcome.token_ids, outcome.num_cached_tokens) == (expected, [144])


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_answers_from_the_store_are_those_without(
    family: str, tmp_path: Path, master: MooncakeMaster
) -> None:
    """Every kind of KV. Models with windows fetch only what this node knows to be there."""
    folder = tmp_path / "model"
    model_type, changes = FAMILIES[family]
    write_checkpoint(folder, model_type, **changes)

    def create_requests(first: int) -> list[AddSequence]:
        prompts = [PREFIX + create_prompt(10 + 9 * i, i) for i in range(4)]
        return [create_request(first + i, p, max_tokens=8) for i, p in enumerate(prompts)]

    with open_engine(folder, master) as rig:
        expected = [rig.answer(request).token_ids for request in create_requests(0)]
        rig.forget()
        outcomes = [rig.add(request) for request in create_requests(10)]
        rig.settle()
        assert [outcome.token_ids for outcome in outcomes] == expected
        assert all(outcome.num_cached_tokens[0] >= 96 for outcome in outcomes)
        assert rig.figure("store").num_fetched > 0
        assert rig.figure("store").num_damaged == 0
