"""Starts a fake node: `python -m benchmarks.fake_node --key-file FILE --model @hearth/fake`."""

import argparse
from pathlib import Path

import uvloop
from aiohttp import web

from benchmarks.fake_node.server import create_application
from benchmarks.fake_node.settings import FakeAnswer, FakeNodeSettings
from contracts.ids import GatewayId, ModelName, NodeId, RegionId


def main() -> None:
    """Runs until a signal ends it."""
    default = FakeAnswer()
    parser = argparse.ArgumentParser(prog="benchmarks.fake_node")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8790)
    parser.add_argument("--key-file", type=Path, required=True, help="32 bytes in hexadecimal")
    parser.add_argument("--gateway-id", default="gateway-1")
    parser.add_argument("--node-id", default="fake-node")
    parser.add_argument("--region", default="local")
    parser.add_argument("--model", default="@hearth/fake")
    parser.add_argument("--tick-s", type=float, default=default.tick_s)
    parser.add_argument("--num-events", type=int, default=default.num_events)
    parser.add_argument("--num-prompt-tokens", type=int, default=default.num_prompt_tokens)
    parser.add_argument("--text", default=default.text)
    options = parser.parse_args()
    settings = FakeNodeSettings(
        model=ModelName(options.model),
        gateway_id=GatewayId(options.gateway_id),
        pair_key=bytes.fromhex(options.key_file.read_text(encoding="ascii")),
        answer=FakeAnswer(
            tick_s=options.tick_s,
            num_events=options.num_events,
            num_prompt_tokens=options.num_prompt_tokens,
            text=options.text,
        ),
        node_id=NodeId(options.node_id),
        region=RegionId(options.region),
    )
    web.run_app(
        create_application(settings),
        host=options.host,
        port=options.port,
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
