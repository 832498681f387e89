"""The epoch: one counter that tells every gateway when to forget its cached principals.

Owns the one-row table's statements. Call `bump_epoch` inside the transaction that makes the
change: whoever reads the new epoch then sees the change too. Creating a credential needs none,
since nobody can have asked for a value that did not exist.
"""

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import InvariantBroken
from tenancy.tables import EPOCH_ID, tenancy_epoch


async def bump_epoch(connection: AsyncConnection) -> None:
    """Counts one further. Other writers wait for this transaction, so the order is total."""
    result = await connection.execute(
        update(tenancy_epoch)
        .where(tenancy_epoch.c.epoch_id == EPOCH_ID)
        .values(epoch=tenancy_epoch.c.epoch + 1)
    )
    if result.rowcount != 1:
        raise InvariantBroken("The epoch of tenancy has lost its row.")


async def read_epoch(connection: AsyncConnection) -> int:
    """The epoch as of the last commit."""
    query = select(tenancy_epoch.c.epoch).where(tenancy_epoch.c.epoch_id == EPOCH_ID)
    epoch = (await connection.execute(query)).scalar_one_or_none()
    if epoch is None:
        raise InvariantBroken("The epoch of tenancy has lost its row.")
    return epoch
