"""What stores, systems and nodes may do wrong without ending a gateway's following of members."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from contracts.ids import NodeId
from contracts.membership import Heartbeat, HeartbeatRefusal, name_heartbeat, open_heartbeat
from contracts.pair_key import PairKey
from gateway.membership.enrolments import EnrolmentFolder
from tests.fixtures.redis_server import RedisServer, needs_redis
from tests.gateway.member_words import GONE_AFTER_S, enrol, open_scene, put, say, server, store
from tests.gateway.scripted_node import ScriptedNode

__all__ = ["server", "store"]
pytestmark = needs_redis


@pytest.mark.parametrize("answer", [b"$abc\r\n", b"*1\r\n" * 5000], ids=["text", "deep"])
async def test_a_store_that_speaks_another_protocol_counts_as_away(
    tmp_path: Path, answer: bytes
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(answer)
        writer.close()

    enrol(tmp_path, ScriptedNode("gpu-1"))
    async with await asyncio.start_server(babble, "127.0.0.1", 0) as liar:
        port = liar.sockets[0].getsockname()[1]
        async with open_scene(tmp_path, f"redis://127.0.0.1:{port}") as scene:
            await scene.desk.look()  # which raises nothing: else members were followed no more
            assert scene.desk.is_degraded


REFUSALS = {
    "rights": (["ACL SETUSER default -getrange"], ["ACL SETUSER default +getrange"]),
    "replica": (
        ["CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 9"],
        ["REPLICAOF NO ONE"],
    ),
}
"""What makes a store refuse to read, and what ends that."""


@pytest.mark.parametrize("trouble", [*REFUSALS, "control"])
async def test_a_store_that_refuses_to_read_counts_as_away_and_a_value_of_another_kind_as_none(
    tmp_path: Path, server: RedisServer, store: Any, trouble: str
) -> None:
    node = ScriptedNode("gpu-1")
    node.port = 9
    enrol(tmp_path, node)
    await put(store, node.node_id, say(node), node.pair_key)
    begin, end = REFUSALS.get(trouble, ([], []))
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]
        if trouble == "control":
            await store.delete(name_heartbeat(node.node_id))
            await store.lpush(name_heartbeat(node.node_id), "a", "list")
        try:
            for command in begin:
                await store.execute_command(*command.split())
            await asyncio.sleep(2 * GONE_AFTER_S)
            await scene.desk.look()
            assert scene.desk.is_degraded == (trouble != "control")
            assert list(scene.members) == ([] if trouble == "control" else ["gpu-1"])
        finally:
            for command in end:
                await store.execute_command(*command.split())
        await scene.desk.look()
        assert not scene.desk.is_degraded


async def test_a_member_whose_words_cannot_be_used_ends_nothing_for_the_others(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    nodes = [ScriptedNode(f"gpu-{number}") for number in range(2)]
    for node in nodes:
        node.port = 9
        enrol(tmp_path, node)
        await put(store, node.node_id, say(node), node.pair_key)

    def trip(sealed: bytes, node_id: NodeId, key: PairKey) -> Heartbeat:
        if node_id == "gpu-0":
            raise ZeroDivisionError
        return open_heartbeat(sealed, node_id, key)

    async with open_scene(tmp_path, server.url, trip) as scene:
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]
        assert scene.desk.num_refused[HeartbeatRefusal.MALFORMED] == 1


@pytest.mark.parametrize("trouble", [errno.EMFILE, errno.ENOENT], ids=["passing", "control"])
def test_enrolments_that_cannot_be_read_for_a_moment_put_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: int
) -> None:
    """Many clients can use up a gateway's files: then nothing can be opened."""
    enrol(tmp_path, ScriptedNode("gpu-1"))
    folder = EnrolmentFolder(tmp_path)
    assert list(folder.read()) == ["gpu-1"]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(trouble, os.strerror(trouble))

    expected = ["gpu-1"] if trouble == errno.EMFILE else []
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert list(folder.read()) == expected
    (tmp_path / "gpu-1.toml").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert list(folder.read()) == expected
    assert list(EnrolmentFolder(tmp_path).read()) == ["gpu-1"]


@pytest.mark.parametrize("law", ["EU", "e u", "x" * 64])
def test_an_enrolment_under_a_law_that_has_no_name_is_named_and_left_out(
    tmp_path: Path, law: str
) -> None:
    enrol(tmp_path, ScriptedNode("gpu-1"), jurisdiction=law)
    enrol(tmp_path, ScriptedNode("gpu-2"), jurisdiction="")  # the control: nobody's is none
    with capture_logs() as lines:
        assert list(EnrolmentFolder(tmp_path).read()) == ["gpu-2"]
    (line,) = lines
    assert (line["event"], line["node_id"]) == ("enrolment_unusable", "gpu-1")
    assert f"`{law}` names no jurisdiction" in line["reason"]


@pytest.mark.parametrize("place", ["region", "jurisdiction"])
def test_an_enrolment_where_no_place_is_is_named_and_left_out(tmp_path: Path, place: str) -> None:
    enrol(tmp_path, ScriptedNode("gpu-1"), **{place: "any"})
    enrol(tmp_path, ScriptedNode("gpu-2"), **{place: "anywhere"})  # the control
    with capture_logs() as lines:
        assert list(EnrolmentFolder(tmp_path).read()) == ["gpu-2"]
    (line,) = lines
    assert f"No {place} is called `any`" in line["reason"]
