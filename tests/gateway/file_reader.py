"""A real, small holder of adapters' files for tests: a folder, slow if it is told to be."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from contracts.adapters import AdapterRef
from contracts.errors import NotFound


def make_ref(content: bytes, scale: float = 2.0, rank: int = 8) -> AdapterRef:
    """What a gateway says of a file."""
    return AdapterRef(
        weights_sha256=hashlib.sha256(content).digest(),
        num_bytes=len(content),
        scale=scale,
        rank=rank,
    )


@dataclass
class FileReader:
    """Files by their digest."""

    folder: Path
    delay_s: float = 0.0
    """Before each read."""
    held: asyncio.Event | None = None
    """Reads wait for it, where there is one."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    num_reading: int = 0
    most_reading: int = 0
    num_cancelled: int = 0

    def put(self, content: bytes, **changes: float) -> AdapterRef:
        """One more file."""
        ref = make_ref(content, **changes)  # type: ignore[arg-type]
        (self.folder / ref.weights_sha256.hex()).write_bytes(content)
        return ref

    async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
        """As `AdapterReader` has it."""
        self.reads.append((first, num_bytes))
        self.num_reading += 1
        self.most_reading = max(self.most_reading, self.num_reading)
        try:
            await asyncio.sleep(self.delay_s)
            if self.held is not None:
                await self.held.wait()
            return self._read_now(ref, first, num_bytes)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_reading -= 1

    def _read_now(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
        try:
            with (self.folder / ref.weights_sha256.hex()).open("rb") as file:
                file.seek(first)
                return file.read(num_bytes)
        except FileNotFoundError:
            raise NotFound("The finetune is gone.", param="lora") from None
