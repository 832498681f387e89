"""One uploaded file of a finetune: a form with `file_name` and `file`, in either order.

Owns how the parts are told apart. A file whose name comes behind it is kept while it is as short as
a configuration can be; what is longer can only be weights. Read next:
`gateway.finetunes.weights_intake`, `gateway.finetunes.multipart`.
"""

from collections.abc import AsyncIterable
from typing import Final

from contracts.errors import InvalidRequest
from contracts.finetunes import Finetune
from gateway.finetunes.adapter_config import CONFIG_FILE, MAX_CONFIG_BYTES, read_adapter_config
from gateway.finetunes.multipart import MultipartReader, PartBegun, PartEnded, PartEvent
from gateway.finetunes.weights_header import WEIGHTS_FILE
from gateway.finetunes.weights_intake import WeightsIntake
from tenancy.finetunes.interface import FinetuneAdministration

NAME_FIELD: Final = "file_name"
FILE_FIELD: Final = "file"
_MAX_NAME_BYTES: Final = 256
_MAX_SHOWN: Final = 100
_NAMES: Final = f"`{CONFIG_FILE}` or `{WEIGHTS_FILE}`"


class AssetIntake:
    """Takes in one file."""

    def __init__(
        self,
        store: FinetuneAdministration,
        finetune: Finetune,
        weights: WeightsIntake,
        max_rank: int,
    ) -> None:
        """`weights` is for this finetune, and untouched."""
        self._store = store
        self._finetune = finetune
        self._weights = weights
        self._max_rank = max_rank
        self._part = ""
        self._seen: set[str] = set()
        self._name = bytearray()
        self._start = bytearray()
        """Of the file, as long as it could be a configuration."""
        self._is_long = False

    async def take(self, body: AsyncIterable[bytes], boundary: bytes) -> Finetune:
        """The finetune with the file in `body`.

        Raises: `InvalidRequest`, `PayloadTooLarge`, and what the store raises.
        """
        reader = MultipartReader(boundary)
        async for data in body:
            for event in reader.feed(data):
                await self._hear(event)
            if reader.is_over:
                break  # whatever follows is nobody's
        if not reader.is_over:
            raise InvalidRequest("The form ends in the middle: its last boundary is missing.")
        for field in (NAME_FIELD, FILE_FIELD):
            if field not in self._seen:
                raise InvalidRequest(f"The form has no `{field}`.", param=field)
        if self._read_name() == CONFIG_FILE:
            config = read_adapter_config(bytes(self._start), self._max_rank)
            return await self._store.set_finetune_config(
                self._finetune.account_id, self._finetune.finetune_id, config
            )
        await self._go_on_as_weights()
        return await self._weights.finish()

    async def _hear(self, event: PartEvent) -> None:
        """Takes what the form brings next."""
        if isinstance(event, PartBegun):
            if event.name not in (NAME_FIELD, FILE_FIELD):
                shown = event.name[:_MAX_SHOWN] if event.name.isprintable() else "?"
                raise InvalidRequest(f"The form has an unknown field `{shown}`.", param=shown)
            if event.name in self._seen:
                raise InvalidRequest(f"The form has `{event.name}` twice.", param=event.name)
            self._part = event.name
            self._seen.add(event.name)
        elif isinstance(event, PartEnded):
            if self._part == NAME_FIELD:
                self._read_name()
        elif self._part == NAME_FIELD:
            self._name += event
            if len(self._name) > _MAX_NAME_BYTES:
                raise _refuse_name()
        else:
            await self._add(event)

    async def _add(self, data: bytes) -> None:
        """Takes more of the file."""
        if self._is_long:
            await self._weights.add(data)
            return
        self._start += data
        if len(self._start) > MAX_CONFIG_BYTES:
            self._refuse_long_config()
            await self._go_on_as_weights()

    async def _go_on_as_weights(self) -> None:
        if not self._is_long:
            self._is_long = True
            await self._weights.add(bytes(self._start))
            self._start.clear()

    def _read_name(self) -> str:
        """Which of the two files it is. Raises: `InvalidRequest`."""
        name = self._name.decode("utf-8", "replace")
        if name not in (CONFIG_FILE, WEIGHTS_FILE):
            raise _refuse_name()
        if name == CONFIG_FILE and self._is_long:
            self._refuse_long_config()
        return name

    def _refuse_long_config(self) -> None:
        """Raises `InvalidRequest` if the file that was found too long says to be a configuration;
        one without a name so far can only be weights.
        """
        if bytes(self._name) == CONFIG_FILE.encode():
            raise InvalidRequest(
                f"{CONFIG_FILE} is longer than {MAX_CONFIG_BYTES} bytes.", param=FILE_FIELD
            )


def _refuse_name() -> InvalidRequest:
    return InvalidRequest(f"`{NAME_FIELD}` must be {_NAMES}.", param=NAME_FIELD)
