"""Tickets hold for one connection, one request and one account; what is malformed is not read."""

import msgspec
import pytest

from contracts.errors import Forbidden
from contracts.grant import unseal_grant
from contracts.ids import AccountId, ModelName, NodeId, RequestId
from contracts.kv_transfer import (
    TAG_BYTES,
    KvExported,
    KvHalf,
    KvImport,
    KvRun,
    KvTicket,
    digest_account,
    seal_ticket,
    unseal_ticket,
)
from contracts.wire import decode_frame, decode_to_node, encode_frame

KEY = b"k" * 32
TICKET = KvTicket(
    half=KvHalf.DECODE,
    request_id=RequestId("r-1"),
    account_digest=digest_account(AccountId("a" * 32)),
    model=ModelName("@a/b/c"),
    revision="rev",
    layout="layout",
    deadline_unix_ms=1000,
    prefill_node=NodeId("p"),
    prefill_incarnation="1",
    decode_node=NodeId("d"),
    decode_incarnation="2",
)


def test_a_ticket_comes_back_as_it_was_sealed() -> None:
    assert unseal_ticket(seal_ticket(TICKET, KEY), KEY) == TICKET


@pytest.mark.parametrize("place", [0, 31, 32, 60, -1])
def test_a_ticket_with_any_byte_changed_is_refused(place: int) -> None:
    sealed = bytearray(seal_ticket(TICKET, KEY))
    sealed[place] ^= 1
    with pytest.raises(Forbidden):
        unseal_ticket(bytes(sealed), KEY)


def test_a_ticket_of_another_connection_or_a_newer_version_is_refused() -> None:
    with pytest.raises(Forbidden):
        unseal_ticket(seal_ticket(TICKET, b"x" * 32), KEY)
    newer = msgspec.structs.replace(TICKET, version=2)
    with pytest.raises(Forbidden, match="version 2"):
        unseal_ticket(seal_ticket(newer, KEY), KEY)


def test_a_ticket_is_no_grant() -> None:
    with pytest.raises(Forbidden, match="seal"):
        unseal_grant(seal_ticket(TICKET, KEY), KEY)


def test_accounts_have_digests_of_their_own() -> None:
    assert digest_account(AccountId("a" * 32)) != digest_account(AccountId("b" * 32))


def test_what_was_exported_is_passed_on_as_it_is() -> None:
    run = KvRun(0, 3, (4096, 8192), (b"t" * TAG_BYTES, b"u" * TAG_BYTES))
    message = KvImport(KvExported("1", b"agent", (run,), True), b"ticket")
    (entry,) = decode_frame(encode_frame([(5, 1, message)]))
    assert decode_to_node(entry.message) == message


@pytest.mark.parametrize(
    "run",
    [
        [0, 0, [1], []],
        [0, 0, [1], [b"short"]],
        [-1, 0, [], []],
        [0, 0, [-1], [b"t" * TAG_BYTES]],
        [0, 0, [2**64 - 1], [b"t" * TAG_BYTES]],
    ],
)
def test_a_run_that_does_not_add_up_is_not_read(run: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=KvRun)
