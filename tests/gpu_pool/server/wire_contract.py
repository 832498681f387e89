"""What every node owes a gateway on the wire: run against the real node and the fake one.

A subclass brings the fixture `node`: the address of a node that is ready and whose answers can be
several thousand tokens long.
"""

import asyncio
import secrets
from dataclasses import replace

import aiohttp
import msgspec
import pytest

from contracts.adapters import AdapterPiece, AdapterRef
from contracts.codec import encode_request
from contracts.encoding import EncodeRequest, EncoderTask
from contracts.grant import seal_grant
from contracts.ids import GatewayId, ModelName, RegionId
from contracts.inference import Accepted, Delta, Finished, FinishReason, GenerateRequest, Usage
from contracts.prefix_keys import KEY_BYTES, pack_keys, unpack_keys
from contracts.seal import MAC_BYTES
from contracts.wire import (
    FRAGMENT_BYTES,
    GATEWAY_HEADER,
    GATEWAY_NONCE_HEADER,
    WIRE_PATH,
    Abort,
    Body,
    Credit,
    Hello,
    Open,
    encode_frame,
)
from tests.fixtures.gateway_client import (
    MANY,
    GatewayClient,
    NodeAddress,
    ask,
    failure_code,
    join_ids,
    join_text,
    with_other_key,
)


def ask_long(model: ModelName) -> GenerateRequest:
    """A request whose answer goes on for a while."""
    return ask(model, max_tokens=3000, ignore_eos=True)


class WireContract:
    """The contract."""

    async def test_a_report_follows_hello_and_another_each_second(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            report = await asyncio.wait_for(client.reports.get(), 2)
            assert report.region == node.region
            assert [card.name for card in report.models] == [node.model]
            assert [load.is_ready for load in report.loads] == [True]
            again = await asyncio.wait_for(client.reports.get(), 5)
            assert again.boot_id == report.boot_id

    async def test_reports_to_all_gateways_name_the_sessions_that_have_just_been_there(
        self, node: NodeAddress
    ) -> None:
        session = 2**64 - 1
        async with GatewayClient(node) as client, GatewayClient(node) as other:
            before = await asyncio.wait_for(other.reports.get(), 5)
            await client.generate(ask(node.model, max_tokens=2), session=session)
            await client.generate(ask(node.model, max_tokens=2))  # of no session
            async with asyncio.timeout(10):
                while session not in (report := await other.reports.get()).sessions:
                    pass
        assert session not in before.sessions
        assert 0 not in report.sessions

    async def test_reports_to_all_gateways_name_the_prompts_that_have_just_been_there(
        self, node: NodeAddress
    ) -> None:
        names = pack_keys((2**64 - 1, secrets.randbits(64)))
        async with GatewayClient(node) as client, GatewayClient(node) as other:
            before = await asyncio.wait_for(other.reports.get(), 5)
            await client.generate(ask(node.model, max_tokens=2), prefixes=names)
            async with asyncio.timeout(10):
                while names[KEY_BYTES:] not in (await other.reports.get()).prefixes:
                    pass
        assert names[KEY_BYTES:] not in before.prefixes
        async with GatewayClient(node) as late:
            first = await asyncio.wait_for(late.reports.get(), 5)
        assert set(unpack_keys(names)) <= set(unpack_keys(first.prefixes))

    async def test_texts_to_encode_are_refused_where_a_model_gives_no_vectors(
        self, node: NodeAddress
    ) -> None:
        texts = EncodeRequest(model=node.model, task=EncoderTask.EMBED, inputs=("text",))
        async with GatewayClient(node) as client:
            assert failure_code(await client.generate(texts)) == "unsupported_feature"
            events = await client.generate(ask(node.model, max_tokens=2))
        assert isinstance(events[-1], Finished)

    async def test_an_adapter_beyond_what_a_model_takes_is_refused(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            (card,) = (await asyncio.wait_for(client.reports.get(), 5)).models
            rank = card.max_adapter_rank + 1
            ref = AdapterRef(weights_sha256=bytes(32), num_bytes=1, scale=1.0, rank=rank)
            adapted = msgspec.structs.replace(ask(node.model), adapter=ref)
            assert failure_code(await client.generate(adapted)) == "adapter_unsupported"

    async def test_a_piece_of_an_adapter_that_was_not_asked_for_ends_its_stream_alone(
        self, node: NodeAddress
    ) -> None:
        async with GatewayClient(node) as client:
            bad, good = [await client.open(ask_long(node.model)) for _ in range(2)]
            for stream in (bad, good):
                assert isinstance(await stream.next(), Accepted)
            await client.send(bad, AdapterPiece(0, b"x"))
            assert failure_code(await bad.read_all()) == "invalid_request"
            assert isinstance(await good.next(), Delta)
            await client.send(good, Abort())

    async def test_an_answer_is_accepted_then_streamed_then_finished(
        self, node: NodeAddress
    ) -> None:
        async with GatewayClient(node) as client:
            events = await client.generate(ask(node.model, max_tokens=8, ignore_eos=True))
        first, *deltas, last = events
        assert isinstance(first, Accepted)
        assert all(isinstance(delta, Delta) for delta in deltas)
        assert len(deltas) > 1
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.LENGTH
        assert last.usage.num_prompt_tokens == first.num_prompt_tokens
        assert last.usage.num_completion_tokens == len(join_ids(events)) == 8

    async def test_without_streaming_the_text_comes_in_one_piece(self, node: NodeAddress) -> None:
        request = ask(node.model, max_tokens=8, ignore_eos=True)
        async with GatewayClient(node) as client:
            streamed = await client.generate(request)
            whole = await client.generate(msgspec.structs.replace(request, stream=False), credit=0)
        assert [type(event) for event in whole] == [Accepted, Delta, Finished]
        assert join_text(whole) == join_text(streamed)
        assert join_ids(whole) == join_ids(streamed)

    async def test_streams_do_not_mix(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            request = ask(node.model, max_tokens=40, ignore_eos=True)
            streams = [await client.open(request) for _ in range(8)]
            answers = [await stream.read_all() for stream in streams]
            assert len({join_text(events) for events in answers}) == 1

    async def test_streams_share_frames(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            streams = [await client.open(ask_long(node.model)) for _ in range(8)]
            for stream in streams:
                assert isinstance(await stream.next(), Accepted)
            async with asyncio.timeout(20):
                while all(len({sent_to for sent_to, _ in frame}) < 8 for frame in client.frames):
                    await streams[0].next()
            for stream in streams:
                await client.send(stream, Abort())

    async def test_a_body_in_fragments_is_put_together(self, node: NodeAddress) -> None:
        request = ask(node.model, stop=tuple(chr(0x4E00 + n) * 1000 for n in range(60)))
        assert len(encode_request(request)) > 2 * FRAGMENT_BYTES
        async with GatewayClient(node) as client:
            assert isinstance((await client.generate(request))[-1], Finished)

    async def test_more_body_than_announced_fails_that_stream_only(self, node: NodeAddress) -> None:
        body = encode_request(ask(node.model))
        async with GatewayClient(node) as client:
            other = await client.open(ask_long(node.model))
            stream = client.expect(client.draw_stream_id())
            grant = seal_grant(client.create_grant(), client.connection_key)
            await client.send(stream, Open(grant, len(body) + 1, MANY, body))
            await client.send(stream, Body(b"xx"))
            assert failure_code(await stream.read_all()) == "invalid_request"
            assert isinstance(await other.next(), Accepted)
            await client.send(other, Abort())

    async def test_fragments_and_bodies_have_a_largest_size(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            grants = [seal_grant(client.create_grant(), client.connection_key) for _ in range(3)]
            codes: list[str] = []
            for sealed, announced, first in (
                (grants[0], 13 * 1024 * 1024, b"x"),
                (grants[1], 2 * FRAGMENT_BYTES, bytes(FRAGMENT_BYTES + 1)),
                (grants[2], 0, b""),
            ):
                stream = client.expect(client.draw_stream_id())
                await client.send(stream, Open(sealed, announced, MANY, first))
                codes.append(failure_code(await stream.read_all()))
        assert codes == ["payload_too_large", "invalid_request", "invalid_request"]

    @pytest.mark.parametrize("position", [0, MAC_BYTES, -1])
    async def test_a_grant_with_a_changed_bit_is_refused(
        self, node: NodeAddress, position: int
    ) -> None:
        async with GatewayClient(node) as client:
            sealed = seal_grant(client.create_grant(), client.connection_key)
            changed = bytearray(sealed)
            changed[position] ^= 1
            bad = await client.generate(ask(node.model), sealed_grant=bytes(changed))
            good = await client.generate(ask(node.model), sealed_grant=sealed)
        assert failure_code(bad) == "forbidden"
        assert isinstance(good[-1], Finished)

    async def test_a_grant_works_once(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            sealed = seal_grant(client.create_grant(), client.connection_key)
            first = await client.generate(ask(node.model), sealed_grant=sealed)
            second = await client.generate(ask(node.model), sealed_grant=sealed)
        assert isinstance(first[-1], Finished)
        assert failure_code(second) == "forbidden"

    async def test_a_grant_of_another_connection_is_refused(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as other, GatewayClient(node) as client:
            foreign = seal_grant(client.create_grant(), other.connection_key)
            refused = await client.generate(ask(node.model), sealed_grant=foreign)
            served = await other.generate(ask(node.model), sealed_grant=foreign)
        assert failure_code(refused) == "forbidden"
        assert isinstance(served[-1], Finished)

    async def test_a_grant_for_another_attempt_is_refused(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            sealed = seal_grant(client.create_grant(attempt=1), client.connection_key)
            events = await client.generate(ask(node.model), sealed_grant=sealed)
            assert failure_code(events) == "forbidden"
            assert isinstance((await client.generate(ask(node.model), attempt=1))[-1], Finished)

    async def test_a_request_past_its_deadline_is_refused(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            events = await client.generate(ask(node.model), deadline_unix_ms=1)
        assert failure_code(events) == "deadline_exceeded"

    async def test_a_region_that_is_not_allowed_does_not_compute(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            elsewhere = (RegionId("apac"),)
            refused = await client.generate(ask(node.model), regions=elsewhere)
            served = await client.generate(ask(node.model), regions=(*elsewhere, node.region))
        assert failure_code(refused) == "residency_violation"
        assert isinstance(served[-1], Finished)

    async def test_a_grant_covers_its_model_only(self, node: NodeAddress) -> None:
        other = ModelName("@test/other")
        async with GatewayClient(node) as client:
            assert failure_code(await client.generate(ask(other))) == "forbidden"
            unknown = await client.generate(ask(other), model=other)
        assert failure_code(unknown) == "unknown_model"

    async def test_an_abort_ends_the_answer_and_says_what_was_consumed(
        self, node: NodeAddress
    ) -> None:
        async with GatewayClient(node) as client:
            stream = await client.open(ask_long(node.model))
            assert isinstance(await stream.next(), Accepted)
            assert isinstance(await stream.next(), Delta)
            await client.send(stream, Abort())
            last = (await stream.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.ABORTED
        assert last.usage.num_prompt_tokens > 0
        assert 0 < last.usage.num_completion_tokens < 3000

    async def test_an_abort_overtakes_the_rest_of_a_body(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            stream = client.expect(client.draw_stream_id())
            grant = seal_grant(client.create_grant(), client.connection_key)
            await client.send(stream, Open(grant, 1_000_000, MANY, b"x" * 100))
            await client.send(stream, Abort())
            aborted = Finished(FinishReason.ABORTED, Usage(0, 0, 0))
            assert await stream.read_all() == [aborted]
            await client.send(stream, Body(b"late"))  # of a stream that is over: not worth a word
            assert isinstance((await client.generate(ask(node.model)))[-1], Finished)
            assert stream.events.empty()

    async def test_without_credit_deltas_are_merged(self, node: NodeAddress) -> None:
        request = ask(node.model, max_tokens=60, ignore_eos=True)
        async with GatewayClient(node) as client:
            free = await client.generate(request)
            stream = await client.open(request, credit=2)
            scarce = await stream.read_all()
        assert join_text(scarce) == join_text(free)
        assert join_ids(scarce) == join_ids(free)
        assert sum(isinstance(event, Delta) for event in free) > 10
        assert sum(isinstance(event, Delta) for event in scarce) <= 3

    async def test_new_credit_lets_the_merged_text_out(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            stream = await client.open(ask_long(node.model), credit=1)
            assert isinstance(await stream.next(), Accepted)
            assert isinstance(await stream.next(), Delta)
            with pytest.raises(TimeoutError):
                await stream.next(timeout_s=0.3)
            await client.send(stream, Credit(1))
            merged = await stream.next()
            assert isinstance(merged, Delta)
            assert len(merged.token_ids) > 1
            await client.send(stream, Abort())
            assert isinstance((await stream.read_all())[-1], Finished)

    @pytest.mark.parametrize(
        "message",
        [
            msgspec.Raw(b"\xc1"),
            msgspec.Raw(msgspec.msgpack.encode([99])),
            msgspec.Raw(msgspec.msgpack.encode([11, "no grant"])),
            msgspec.Raw(msgspec.msgpack.encode([14, -1])),
            msgspec.Raw(msgspec.msgpack.encode([10, "hello"])),
        ],
    )
    async def test_a_malformed_message_fails_its_stream_only(
        self, node: NodeAddress, message: msgspec.Raw
    ) -> None:
        async with GatewayClient(node) as client:
            streams = [await client.open(ask_long(node.model)) for _ in range(2)]
            for stream in streams:
                assert isinstance(await stream.next(), Accepted)
            frame = msgspec.msgpack.encode([[streams[0].stream_id, 0, message]])
            if bytes(message) == b"\xc1":  # a byte that msgpack never uses: no frame can hold it
                frame = msgspec.msgpack.encode([[streams[0].stream_id, 0, b"bytes"]])
            await client.send_frame(frame)
            assert failure_code(await streams[0].read_all()) == "invalid_request"
            await client.send(streams[1], Abort())
            last = (await streams[1].read_all())[-1]
            assert isinstance(last, Finished)
            assert last.reason is FinishReason.ABORTED

    @pytest.mark.parametrize(
        "frame",
        [b"", b"\xc1", b"\x91\x93\x01", b"\x91\x93\x01\x00" + b"\x91" * 200_000 + b"\xc0"],
        ids=["empty", "no msgpack", "cut", "nested without end"],
    )
    async def test_a_malformed_frame_ends_the_connection(
        self, node: NodeAddress, frame: bytes
    ) -> None:
        async with GatewayClient(node) as client:
            await client.send_frame(frame)
            assert await client.wait_closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR
        async with GatewayClient(node) as client:
            assert isinstance((await client.generate(ask(node.model)))[-1], Finished)

    async def test_a_text_message_ends_the_connection(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            await client.socket.send_str("hello")
            assert await client.wait_closed() == aiohttp.WSCloseCode.PROTOCOL_ERROR

    async def test_a_late_word_of_an_earlier_attempt_changes_nothing(
        self, node: NodeAddress
    ) -> None:
        async with GatewayClient(node) as client:
            request = ask(node.model, max_tokens=40, ignore_eos=True)
            stream = await client.open(request, attempt=1)
            late = [(stream.stream_id, 0, Abort()), (stream.stream_id + 7, 0, Credit(1))]
            await client.send_frame(encode_frame(late))
            last = (await stream.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.LENGTH

    async def test_a_later_attempt_replaces_the_earlier_one(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            first = await client.open(ask_long(node.model))
            assert isinstance(await first.next(), Accepted)
            second = await client.open(ask(node.model), attempt=1, stream_id=first.stream_id)
            assert isinstance((await second.read_all())[-1], Finished)
            while not first.events.empty():
                assert isinstance(first.events.get_nowait(), Delta)

    async def test_a_stream_id_in_use_cannot_be_opened_again(self, node: NodeAddress) -> None:
        async with GatewayClient(node) as client:
            stream = await client.open(ask_long(node.model))
            assert isinstance(await stream.next(), Accepted)
            await client.open(ask(node.model), stream_id=stream.stream_id)
            assert failure_code(await stream.read_all()) == "invalid_request"

    async def test_a_body_that_is_no_request_is_refused(self, node: NodeAddress) -> None:
        surrogate = encode_request(ask(node.model, "@@@")).replace(b"@@@", b"\xed\xa0\x80")
        newer = msgspec.structs.replace(ask(node.model), schema_version=99)
        async with GatewayClient(node) as client:
            for body in (b"\x00", b"\x80", surrogate, encode_request(newer)):
                assert failure_code(await client.generate(body)) == "invalid_request"
            assert isinstance((await client.generate(ask(node.model)))[-1], Finished)

    async def test_nothing_is_served_to_a_gateway_without_the_key(self, node: NodeAddress) -> None:
        client = GatewayClient(node)
        try:
            good = await client.connect()
            grant = seal_grant(client.create_grant(), client.connection_key)
            body = encode_request(ask(node.model))
            opening = (1, 0, Open(grant, len(body), MANY, body))
            wrong = Hello("0" * len(good.proof))
            await client.send_frame(encode_frame([(0, 0, wrong), opening]))
            client.start_reading()
            assert await client.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
            assert client.frames == []
        finally:
            await client.close()

    @pytest.mark.parametrize("leads", ["open", "other stream", "nonsense", "nothing"])
    async def test_hello_comes_first(self, node: NodeAddress, leads: str) -> None:
        client = GatewayClient(node)
        try:
            hello = await client.connect()
            grant = seal_grant(client.create_grant(), client.connection_key)
            body = encode_request(ask(node.model))
            opening = (1, 0, Open(grant, len(body), MANY, body))
            frames = {
                "open": encode_frame([opening, (0, 0, hello)]),
                "other stream": encode_frame([(1, 0, hello)]),
                "nonsense": b"\xc1",
                "nothing": encode_frame([]),
            }
            await client.send_frame(frames[leads])
            client.start_reading()
            assert await client.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
            assert client.frames == []
        finally:
            await client.close()

    async def test_requests_may_follow_hello_in_its_frame(self, node: NodeAddress) -> None:
        client = GatewayClient(node)
        try:
            hello = await client.connect()
            stream = client.expect(1)
            grant = seal_grant(client.create_grant(), client.connection_key)
            body = encode_request(ask(node.model))
            opening = (1, 0, Open(grant, len(body), MANY, body))
            await client.send_frame(encode_frame([(0, 0, hello), opening]))
            client.start_reading()
            assert isinstance((await stream.read_all())[-1], Finished)
        finally:
            await client.close()

    async def test_the_upgrade_is_refused_to_strangers(self, node: NodeAddress) -> None:
        stranger = replace(node, gateway_id=GatewayId("stranger"))
        client = GatewayClient(stranger)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await client.connect()
        assert refusal.value.status == 401
        await client.close()

    @pytest.mark.parametrize("nonce", [None, "", "00", "zz" * 32, "00" * 33])
    async def test_the_upgrade_needs_a_whole_nonce(
        self, node: NodeAddress, nonce: str | None
    ) -> None:
        headers = {GATEWAY_HEADER: str(node.gateway_id)}
        if nonce is not None:
            headers[GATEWAY_NONCE_HEADER] = nonce
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                await session.ws_connect(node.url + WIRE_PATH, headers=headers)
        assert refusal.value.status == 401

    async def test_a_node_with_another_key_cannot_prove_itself(self, node: NodeAddress) -> None:
        client = GatewayClient(with_other_key(node))
        with pytest.raises(AssertionError):
            await client.connect()
        await client.close()

    async def test_only_health_is_public(self, node: NodeAddress) -> None:
        async with aiohttp.ClientSession() as session:
            for path, status in (
                ("/health/live", 200),
                ("/health/ready", 200),
                ("/", 404),
                ("/metrics", 404),
                ("/health", 404),
                ("//health/live", 404),
            ):
                async with session.get(node.url + path) as answer:
                    assert (path, answer.status) == (path, status)
