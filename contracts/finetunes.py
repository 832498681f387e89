"""Finetunes: adapters as their accounts know them, by a name, of one model.

Owns the values that gateways and tenancy exchange about them; what is in the files is opaque here.
Must not know HTTP or tables. Read next: `contracts.adapters` (what nodes get of one),
`tenancy.finetunes.store`. Units: seconds since 1970, bytes.
"""

import math
from typing import Final

import msgspec

from contracts.adapters import AdapterRef
from contracts.ids import AccountId, FinetuneId, ModelName

PIECE_BYTES: Final = 1024 * 1024
"""Of a file in store; only its last piece is shorter."""
MAX_FINETUNE_NAME: Final = 100
MAX_FINETUNE_TEXT: Final = 1000
"""Characters of a description."""


class NewFinetune(msgspec.Struct, frozen=True, kw_only=True):
    """What its maker says of a finetune."""

    name: str
    model: ModelName
    """Whose matrices it adds to."""
    description: str | None = None
    is_public: bool = False
    """Every account may use it, by its id."""


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of an `adapter_config.json`."""

    rank: int
    alpha: float
    divides_by_root: bool = False
    """True: by the rank's root instead of the rank (`use_rslora`)."""

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied with."""
        return self.alpha / (math.sqrt(self.rank) if self.divides_by_root else self.rank)


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an `adapter_model.safetensors` that lies in store whole."""

    sha256: bytes
    num_bytes: int
    rank: int
    """Of every pair of matrices."""


class FinetuneUpload(msgspec.Struct, frozen=True, kw_only=True):
    """Weights on their way into the store. They do not count until the upload is finished."""

    upload_id: str
    account_id: AccountId
    finetune_id: FinetuneId


class Finetune(msgspec.Struct, frozen=True, kw_only=True):
    """A finetune, with as much of it as has been uploaded."""

    finetune_id: FinetuneId
    account_id: AccountId
    name: str
    model: ModelName
    description: str | None
    is_public: bool
    created_unix_s: int
    modified_unix_s: int
    config: AdapterConfig | None = None
    weights: StoredWeights | None = None

    @property
    def adapter(self) -> AdapterRef | None:
        """What requests are computed with; None until both files are there."""
        if self.config is None or self.weights is None:
            return None
        return AdapterRef(
            weights_sha256=self.weights.sha256,
            num_bytes=self.weights.num_bytes,
            scale=self.config.scale,
            rank=self.config.rank,
        )
