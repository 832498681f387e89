"""Cloudflare's own client, pointed at a gateway of a test."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from cloudflare import AsyncCloudflare

from tenancy.permissions import Permission
from tests.gateway.running_gateway import RunningGateway

ALL = frozenset(Permission)
ACCOUNT = "com.cloudflare.api.account."


@asynccontextmanager
async def connect(gateway: RunningGateway, api_token: str) -> AsyncGenerator[AsyncCloudflare]:
    """Cloudflare's client, pointed at the gateway with this token."""
    client = AsyncCloudflare(
        base_url=gateway.base + "/client/v4",
        api_token=api_token,
        max_retries=0,
        http_client=httpx.AsyncClient(),
    )
    async with client:
        yield client


async def find_groups(
    client: AsyncCloudflare, account_id: str, *names: str
) -> list[dict[str, str]]:
    """References to the permission groups of these names, found as programs find them."""
    groups = {
        group.name: group.id
        async for group in client.accounts.tokens.permission_groups.list(account_id=account_id)
    }
    return [{"id": str(groups[name])} for name in names]


def allow(account_id: str, groups: list[dict[str, str]]) -> list[dict[str, object]]:
    """One policy over the whole account."""
    resources = {ACCOUNT + account_id: "*"}
    return [{"effect": "allow", "permission_groups": groups, "resources": resources}]
