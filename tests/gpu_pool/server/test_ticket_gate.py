"""A ticket holds for one request, account, node and life of an engine; every other is refused."""

from typing import Any

import msgspec
import pytest

from contracts.errors import DeadlineExceeded, Forbidden, TransferFailed
from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, NodeId, RequestId
from contracts.kv_transfer import KvHalf, KvTicket, digest_account, seal_ticket
from gpu_pool.engine.messages import CoreReady, KvFacts
from gpu_pool.server.kv_ticket_fit import check_fit
from gpu_pool.server.wire.ticket_gate import TicketGate

KEY = b"k" * 32
ACCOUNT = AccountId("a" * 32)
GRANT = Grant(
    request_id=RequestId("r-1"),
    attempt=1,
    account_id=ACCOUNT,
    cache_salt=b"s" * 32,
    model=ModelName("@a/b/c"),
    regions=None,
    priority=0,
    retention=RetentionClass.STANDARD,
    deadline_unix_ms=5000,
    max_total_tokens=100,
)
TICKET = KvTicket(
    half=KvHalf.DECODE,
    request_id=GRANT.request_id,
    account_digest=digest_account(ACCOUNT),
    model=GRANT.model,
    revision="rev",
    layout="layout",
    deadline_unix_ms=2000,
    prefill_node=NodeId("p"),
    prefill_incarnation="1",
    decode_node=NodeId("d"),
    decode_incarnation="2",
)
READY = CoreReady(100, 100, 16, 10, "rev", kv_facts=KvFacts("nixl", "2", "layout", 16, 100))


def change(**fields: Any) -> KvTicket:
    return msgspec.structs.replace(TICKET, **fields)


def admit(ticket: KvTicket, *, grant: Grant = GRANT, key: bytes = KEY) -> KvTicket | None:
    return TicketGate(KEY, NodeId("d"), lambda: 1000).admit(seal_ticket(ticket, key), grant)


def test_a_ticket_that_fits_is_admitted() -> None:
    assert admit(TICKET) == change(patience_ms=1000)
    assert TicketGate(KEY, NodeId("d"), lambda: 1000).admit(b"", GRANT) is None
    check_fit(TICKET, READY)


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": RequestId("r-2")},
        {"account_digest": digest_account(AccountId("b" * 32))},
        {"model": ModelName("@a/b/d")},
        {"decode_node": NodeId("e")},
        {"half": KvHalf.PREFILL},
        {"version": 2},
    ],
)
def test_a_ticket_for_something_else_is_forbidden(fields: dict[str, Any]) -> None:
    with pytest.raises(Forbidden):
        admit(change(**fields))


def test_a_forged_an_expired_and_a_private_one_are_refused() -> None:
    with pytest.raises(Forbidden):
        admit(TICKET, key=b"x" * 32)
    prompt_alone = change(half=KvHalf.PREFILL, prefill_node=NodeId("d"))
    assert admit(prompt_alone)
    with pytest.raises(DeadlineExceeded):
        admit(msgspec.structs.replace(prompt_alone, deadline_unix_ms=1000))
    with pytest.raises(Forbidden, match="retained"):
        admit(TICKET, grant=msgspec.structs.replace(GRANT, retention=RetentionClass.NONE))


def test_an_expired_one_is_no_end_of_the_answer() -> None:
    """Its blocks are not waited for (`test_importer`); the request has a deadline of its own."""
    expired = change(deadline_unix_ms=1000, patience_ms=500)
    assert admit(expired) == change(deadline_unix_ms=1000, patience_ms=0)


@pytest.mark.parametrize(("now_ms", "patience_ms"), [(1000, 800), (1500, 500), (-3_600_000, 800)])
def test_no_clock_that_is_behind_makes_a_node_wait_longer(now_ms: int, patience_ms: int) -> None:
    """The gateway's is at 1200. The control: of a ticket that has an instant alone it would."""
    gate = TicketGate(KEY, NodeId("d"), lambda: now_ms)
    tickets = [gate.admit(seal_ticket(change(patience_ms=ms), KEY), GRANT) for ms in (800, 0)]
    assert [ticket and ticket.patience_ms for ticket in tickets] == [patience_ms, 2000 - now_ms]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"revision": "other"}, "revision"),
        ({"layout": "other"}, "lay out"),
        ({"decode_incarnation": "1"}, "earlier life"),
    ],
)
def test_what_does_not_fit_the_engine_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(TransferFailed, match=name):
        check_fit(change(**fields), READY)


def test_a_model_whose_blocks_do_not_move_takes_no_ticket() -> None:
    with pytest.raises(TransferFailed):
        check_fit(TICKET, msgspec.structs.replace(READY, kv_facts=None))
