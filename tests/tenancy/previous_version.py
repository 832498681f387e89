"""What a gateway's tenancy does all day, by whichever code is first on the path.

`python previous_version.py URL KEYS` with the older version's folders on PYTHONPATH; KEYS is the
key ring's file. Prints the ids of the account and the token that it made. Only what that version
had is used: it is read by its own code.
"""

import asyncio
import secrets
import sys
import time
from pathlib import Path

from contracts.ids import GatewayId, ModelName, NodeId, RegionId
from contracts.ids import create_request_id as create_id
from contracts.pricing import TokenCounts
from contracts.usage import Outcome, Step, UsageRecord
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing
from tenancy.encryption.key_ring_file import load_key_ring
from tenancy.interfaces import ApiTokenStatus
from tenancy.permissions import Permission
from tenancy.policies import allow

try:
    from tenancy.actors import Actor, ActorKind
except ImportError:  # where they lay up to revision 0008
    from tenancy.administration import Actor, ActorKind


async def work(url: str, keys: KeyRing) -> list[str]:
    """The ids of what was made. Raises: `AssertionError` when something is not as it was."""
    tenancy = create_tenancy(url, keys, time.time, secrets.token_bytes)
    acting = tenancy.act_as(Actor(ActorKind.COMMAND_LINE, "the version before"))
    account = await acting.create_account("made by the version before")
    policies = allow(frozenset({Permission.WORKERS_AI_READ}))
    issued = await acting.create_api_token(account.account_id, "kept", policies)
    other = await acting.create_api_token(account.account_id, "given up", policies)
    token_id = issued.api_token.api_token_id
    found = await tenancy.find_principal(issued.value.reveal())
    assert found is not None, "a token that was just made is not found"
    assert found.account_id == account.account_id
    await acting.set_api_token_status(
        account.account_id, other.api_token.api_token_id, ApiTokenStatus.DISABLED
    )
    rolled = await acting.roll_api_token(account.account_id, token_id)
    assert await tenancy.find_principal(issued.value.reveal()) is None
    assert await tenancy.find_principal(rolled.value.reveal()) is not None
    now_ms = int(time.time() * 1000)
    record = UsageRecord(
        create_id(now_ms, 1),
        account.account_id,
        token_id,
        ModelName("@hearth/tiny-chat"),
        NodeId("node-1"),
        RegionId("weur"),
        GatewayId("gateway-1"),
        now_ms,
        Outcome.COMPLETE,
        TokenCounts(1, 2, 3, 4),
        1,
        7,
        5,
    )
    assert await tenancy.append_usage([record], "old-gateway") == 1
    await tenancy.roll_up_usage()
    day = now_ms // 86_400_000
    (total,) = await tenancy.list_usage(account.account_id, Step.DAY, day, day + 1)
    assert total.cost_nano == 7
    tokens = await acting.list_api_tokens(account.account_id)
    assert [token.status for token in tokens] == [ApiTokenStatus.ACTIVE, ApiTokenStatus.DISABLED]
    await tenancy.close()
    return [account.account_id, token_id]


if __name__ == "__main__":
    made = asyncio.run(work(sys.argv[1], load_key_ring(Path(sys.argv[2]))))
    sys.stdout.write(" ".join(made) + "\n")
