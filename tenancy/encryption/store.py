"""The re-wrapping of data keys after the key ring has got a new version.

Owns the batches; what is encrypted under the data keys is not touched.
Read next: `tenancy.encryption.data_keys`.
"""

from typing import Final

from tenancy.changes import Action
from tenancy.encryption.data_keys import list_outdated, rewrap_data_key
from tenancy.store import ActingStore

BATCH_SIZE: Final = 100


class DataKeyStore(ActingStore):
    """Brings data keys under the ring's current version."""

    async def rewrap_data_keys(self) -> int:
        """How many keys were wrapped anew, at most a batch; 0 when all of them are current.

        Raises: `InvariantBroken` when the ring has lost a version that still wraps a key.
        """
        self._require_platform()
        async with self._database.read() as connection:
            outdated = await list_outdated(connection, self._keys, BATCH_SIZE)
        if not outdated:
            return 0
        version = self._keys.master_keys.current_version
        async with self._change(Action.DATA_KEY_REWRAP, moves_epoch=False) as change:
            count = 0
            for account_id in outdated:
                count += await rewrap_data_key(
                    change.connection, account_id, self._keys, self._randomness
                )
            change.note(str(version), count=count)
        return count
