"""Which architectures are encoders: what a node must know of a model before anything loads it.

No torch, so that the server's process can ask. Read next: `gpu_pool.models.bert.config` (computes
them), `gpu_pool.node` (asks).
"""

from typing import Final

_FAMILIES: Final = ("Bert", "Roberta", "XLMRoberta")
CLASSIFIER_ARCHITECTURES: Final = tuple(f"{f}ForSequenceClassification" for f in _FAMILIES)
"""Those with a head for labels."""
ENCODER_ARCHITECTURES: Final = (
    *(f"{family}{head}" for family in _FAMILIES for head in ("Model", "ForMaskedLM")),
    *CLASSIFIER_ARCHITECTURES,
)
