"""Heartbeats: whose they are, for whom, and in which order."""

import msgspec
import pytest

from contracts.fleet import NodeReport
from contracts.ids import BootId, NodeId, RegionId
from contracts.membership import (
    MAX_HEARTBEAT_BYTES,
    Heartbeat,
    HeartbeatRefusal,
    HeartbeatRefused,
    open_heartbeat,
    require_order,
    seal_heartbeat,
)
from contracts.pair_key import PairKey

NODE, OTHER = NodeId("gpu-1"), NodeId("gpu-2")
OLD, NEW, STRANGE = (PairKey(bytes([byte]) * 32) for byte in (1, 2, 3))


def beat(node_id: NodeId = NODE, unix_ms: int = 1_000_000) -> Heartbeat:
    report = NodeReport(
        node_id=node_id,
        boot_id=BootId("b"),
        region=RegionId("weur"),
        jurisdiction="eu",
        is_draining=False,
        models=(),
        loads=(),
    )
    return Heartbeat(unix_ms, "wss://gpu-1:8790", report)


def refuse(sealed: bytes, node_id: NodeId = NODE, key: PairKey = NEW) -> HeartbeatRefusal:
    with pytest.raises(HeartbeatRefused) as refused:
        open_heartbeat(sealed, node_id, key)
    return refused.value.reason


@pytest.mark.parametrize("key", [OLD, NEW])
def test_every_gateway_of_the_node_reads_it_also_while_a_key_is_replaced(key: PairKey) -> None:
    assert open_heartbeat(seal_heartbeat(beat(), (OLD, NEW)), NODE, key) == beat()


def test_nobody_else_can_say_it_and_nothing_of_it_can_be_changed() -> None:
    sealed = seal_heartbeat(beat(), (NEW,))
    assert refuse(seal_heartbeat(beat(), (STRANGE,))) is HeartbeatRefusal.SIGNATURE
    assert refuse(sealed.replace(b"weur", b"enam")) is HeartbeatRefusal.SIGNATURE
    assert refuse(sealed.replace(b"gpu-1:8790", b"gpu-9:8790")) is HeartbeatRefusal.SIGNATURE
    # the name of our key over another's code
    forged = seal_heartbeat(beat(), (STRANGE,)).replace(STRANGE.name.encode(), NEW.name.encode())
    assert refuse(forged) is HeartbeatRefusal.SIGNATURE


def test_a_node_speaks_for_itself_alone_even_where_a_key_was_copied() -> None:
    assert refuse(seal_heartbeat(beat(OTHER), (NEW,))) is HeartbeatRefusal.SIGNATURE


@pytest.mark.parametrize(
    "sealed",
    [
        b"",
        b"x",
        msgspec.msgpack.encode([1, 2]),
        bytes(MAX_HEARTBEAT_BYTES + 1),
        b"\x93\xc4\x00\x80" + b"\x91" * 60_000 + b"\xc0",  # lists in lists in lists
        b"\x92\xc4\x00\xdf\xff\xff\xff\xff",  # a map that is not there
    ],
    ids=["nothing", "a letter", "of another form", "too long", "deep", "of a false length"],
)
def test_what_is_no_heartbeat_is_refused(sealed: bytes) -> None:
    assert refuse(sealed) is HeartbeatRefusal.MALFORMED


@pytest.mark.parametrize(
    ("unix_ms", "last_ms", "reason"),
    [
        (1_000, 999, None),
        (1_000, 1_000, HeartbeatRefusal.REPLAY),
        (1_000, 1_001, HeartbeatRefusal.REPLAY),
        (1_000 - 501, -1, HeartbeatRefusal.CLOCK),
        (1_000 + 501, -1, HeartbeatRefusal.CLOCK),
        (1_000 + 500, -1, None),
    ],
)
def test_the_order_is_by_the_nodes_clock_and_that_is_near_ours(
    unix_ms: int, last_ms: int, reason: HeartbeatRefusal | None
) -> None:
    if reason is None:
        require_order(beat(unix_ms=unix_ms), last_ms, 1_000, 500)
        return
    with pytest.raises(HeartbeatRefused) as refused:
        require_order(beat(unix_ms=unix_ms), last_ms, 1_000, 500)
    assert refused.value.reason is reason
