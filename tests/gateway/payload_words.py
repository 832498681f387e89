"""Requests that are kept word for word, for tests that need one to be there.

Read next: `test_payload_logs`.
"""

import secrets
import time

from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId, create_request_id
from contracts.payloads import NewPayload
from tenancy.actors import Actor, ActorKind
from tests.fixtures.acting_tenancy import ActingTenancy

TOKEN = ApiTokenId("1" * 32)


async def keep_payload(tenancy: ActingTenancy, account_id: AccountId, words: str) -> RequestId:
    """The id of a request in which `words` were asked; its account wants such kept from now on."""
    own = tenancy.act_as(Actor(ActorKind.API_TOKEN, TOKEN, account_id))
    await own.set_payload_days(account_id, 7)
    now_ms = int(time.time() * 1000)
    payload = NewPayload(
        request_id=create_request_id(now_ms, secrets.randbits(74)),
        account_id=account_id,
        api_token_id=TOKEN,
        route="run",
        model=ModelName("@hearth/tests/small"),
        status=200,
        began_unix_ms=now_ms,
        asked=words.encode(),
        answered=b"{}",
        is_cut=False,
    )
    assert await tenancy.keep_payloads([payload]) == 1
    return payload.request_id
