"""A scripted node in a process of its own, so that it can be killed: prints its port and serves.

Run by `test_kills` as `python -m tests.gateway.node_process KEY`.
"""

import asyncio
import sys

from tests.gateway.scripted_node import ScriptedNode
from tests.gateway.scripted_talks import talk_and_hold


async def serve(pair_key: bytes) -> None:
    """Until it is killed."""
    node = ScriptedNode()
    node.pair_key = node.proof_key = pair_key
    node.script = talk_and_hold
    await node.start()
    sys.stdout.write(f"{node.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(bytes.fromhex(sys.argv[1])))
