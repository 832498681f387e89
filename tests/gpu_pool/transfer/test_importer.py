"""How long a sequence waits for another node's blocks."""

from typing import cast

import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import MAX_STRETCH, KvExported, KvGaveUp, TransferEvent
from gpu_pool.engine.messages import KvArrival
from gpu_pool.kv.host_run import Prefix
from gpu_pool.plan import SequenceId
from gpu_pool.transfer.importer import Importer
from gpu_pool.transfer.puller import Puller

SEQUENCE = SequenceId(1)
PREFIX = Prefix(AccountId("a" * 32), bytes(32), (bytes(32),) * 3)
EXPORTED = KvExported("life", b"agent", (), is_last=False)


def test_a_sequence_waits_longer_while_blocks_keep_coming_and_not_for_ever() -> None:
    """What is half there is not computed a second time; who says nothing is not waited for."""
    now_ms = 1000
    told: list[TransferEvent] = []
    puller = cast(Puller, object())  # nothing is read before the landing begins
    importer = Importer(puller, (), lambda: now_ms, lambda _, event: told.append(event))
    importer.expect(SEQUENCE, KvArrival(1100))
    offer = importer.find(SEQUENCE, PREFIX, 0)
    assert offer is not None
    assert offer.extend is not None
    assert (offer.num_blocks, offer.deadline_ms) == (3, 1100)
    assert offer.extend() == 1100
    now_ms = 1090
    importer.take_export(SEQUENCE, EXPORTED)
    assert offer.extend() == 1190
    while now_ms < 3000:
        now_ms += 100
        importer.take_export(SEQUENCE, EXPORTED)
    assert offer.extend() == 1000 + MAX_STRETCH * 100
    importer.decline(SEQUENCE)
    assert told == [KvGaveUp("declined")]
    assert importer.find(SEQUENCE, PREFIX, 0) is None


@pytest.mark.parametrize(("deadline_ms", "is_offered"), [(1001, True), (1000, False)])
def test_nothing_is_reserved_for_a_ticket_that_has_expired_on_its_way(
    deadline_ms: int, *, is_offered: bool
) -> None:
    """Nobody is asked for a prompt whose blocks could only be late. The control has time left."""
    told: list[TransferEvent] = []
    puller = cast(Puller, object())
    importer = Importer(puller, (), lambda: 1000, lambda _, event: told.append(event))
    importer.expect(SEQUENCE, KvArrival(deadline_ms))
    assert (importer.find(SEQUENCE, PREFIX, 0) is not None) == is_offered
    importer.decline(SEQUENCE)
    assert told == [KvGaveUp("declined")]
