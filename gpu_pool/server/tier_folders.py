"""KV files of models that this node serves no more.

Each core looks after the files of its own model; nobody would after those of one that is gone.
Read next: `gpu_pool.kv.tiers.file_tier`.
"""

from collections import defaultdict
from pathlib import Path

import structlog

from gpu_pool.kv.tiers.file_tier import remove_strangers
from gpu_pool.settings import PoolSettings


def clean_tier_folders(settings: PoolSettings) -> None:
    """Removes what other models have left where this node's models keep KV."""
    names: defaultdict[Path, list[str]] = defaultdict(list)
    for model in settings.models:
        tiers = (model.engine or settings.engine).tiers
        if tiers is not None and tiers.file is not None:
            names[tiers.file.path].append(model.name)
    for path, served in names.items():
        try:
            remove_strangers(path, served)
        except OSError as error:
            structlog.get_logger().warning(
                "KV files of other models stay", path=str(path), reason=error.strerror
            )
