"""The models of a store as a node's settings name them.

Owns that translation; must not know processes. Read next: `gpu_pool.model_store`.
"""

from pathlib import Path
from typing import Final

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.model_store import ModelStore

BUNDLED_DTYPE: Final = DtypeChoice.FLOAT32
"""On CPU the small model is fastest in it, and its answers do not depend on rounding."""
STORED_DTYPE: Final = DtypeChoice.AUTO


def list_served_models(store: Path) -> tuple[ServedModelSettings, ...]:
    """The bundled model, then all that were added to `store`, by name."""
    return tuple(
        ServedModelSettings(
            name=model.name,
            path=model.path.resolve(),
            dtype=BUNDLED_DTYPE if model.is_bundled else STORED_DTYPE,
            description=model.manifest.description,
        )
        for model in ModelStore(store).list_models()
    )
