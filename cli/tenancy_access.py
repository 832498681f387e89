"""How commands reach tenancy: opened for one action, in the name of whoever runs the command.

Owns who is named in the audit log. Read next: `cli.tenancy_place`, `tenancy.directory`.
"""

import asyncio
import os
import pwd
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli.tenancy_place import TenancyPlace, explain, find_place, prepare
from contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from tenancy.actors import Actor
    from tenancy.administration import Administration

ResultT = TypeVar("ResultT")


def run_with_tenancy(
    place: TenancyPlace,
    action: "Callable[[Administration], Awaitable[ResultT]]",
    *,
    may_create: bool = False,
) -> ResultT:
    """What `action` returns. `may_create` lets it be the first in an empty place.

    Raises: `CommandFailed`, `SettingsError`, and what tenancy raises.
    """
    return asyncio.run(_run(place, action, may_create))


def record_first(config: Path, note: "Callable[[Administration], Awaitable[None]]") -> None:
    """An entry in the audit log of the gateway with these settings, made before what it tells of:
    then that never happens without its entry. Raises: `CommandFailed`, `SettingsError`.
    """
    run_with_tenancy(find_place(config, None, None), note)


async def _run(
    place: TenancyPlace, action: "Callable[[Administration], Awaitable[ResultT]]", may_create: bool
) -> ResultT:
    from tenancy.audit.heads import HeadFile
    from tenancy.directory import create_tenancy

    try:
        key_ring = await prepare(place, may_create)
        heads = HeadFile(place.audit_heads)
        tenancy = create_tenancy(
            place.database_url, key_ring, time.time, secrets.token_bytes, heads
        )
        try:
            return await action(tenancy.act_as(_find_actor()))
        finally:
            await tenancy.close()
    except StoreUnavailable as error:
        raise explain(place, error) from error


def _find_actor() -> "Actor":
    """Whoever runs this command, as the audit log names them."""
    from tenancy.actors import Actor, ActorKind

    user_id = os.getuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:  # a container's user may have no name
        name = str(user_id)
    return Actor(ActorKind.COMMAND_LINE, name)
