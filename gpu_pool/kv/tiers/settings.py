"""The tiers' section of an engine's settings.

Owns names, defaults and ranges; must not know where they are read from. All figures are per model.
Read next: `tier_store`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class HostTierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """KV in the host's memory, as it is: an operator who swaps to disk must encrypt that."""

    max_bytes: Positive
    account_bytes: Positive | None = None
    """What one account may keep; None: half of `max_bytes`."""


class FileTierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """KV in files of this machine, each sealed under a key that only a request brings."""

    path: Path
    """A directory for nothing else; all models of a node may share it, nodes may not."""
    max_bytes: Positive
    account_bytes: Positive | None = None
    """What one account may keep; None: half of `max_bytes`."""


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where prefixes go that the device has computed. Raises: `ValueError` without any tier."""

    host: HostTierSettings | None = None
    file: FileTierSettings | None = None
    staging_tokens: Positive = 4096
    """Tokens whose KV may be between device and tiers at once, either way; takes host memory."""

    def __post_init__(self) -> None:
        """Checks that there is a tier."""
        if self.host is None and self.file is None:
            raise ValueError("tiers need a `host` or a `file` section")
