"""What splits where when several GPUs share a decoder's usual parts, by a parameter's last name.

Projections into heads or the intermediate size split by rows, those back by columns, so that a
layer needs two sums over ranks and no more. Biases behind a sum are rank 0's. KV heads split, or
are copied where there are fewer of them than ranks. Embedding and head split by the vocabulary.
Experts split as dense networks do, each by itself; every rank routes all tokens.
Read next: `llama.sharding`, which joins the parts that family has.
"""

from dataclasses import replace
from typing import Final

from gpu_pool.models.decoder_config import ConfigT
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import Split

EMBEDDINGS: Final = {"embedding": Split.ROWS, "norm": Split.WHOLE, "head": Split.ROWS}
LAYER_NORMS: Final = {"input_norm": Split.WHOLE, "post_norm": Split.WHOLE}
ATTENTION: Final = {"qkv": Split.ROWS, "o": Split.COLUMNS}
QKV_BIAS: Final = {"qkv_bias": Split.ROWS}
O_BIAS: Final = {"o_bias": Split.FIRST}
HEAD_NORM: Final = {"q_norm": Split.WHOLE, "k_norm": Split.WHOLE}
GATED_MLP: Final = {"gate_up": Split.ROWS, "down": Split.COLUMNS}
MLP_BIAS: Final = {"gate_up_bias": Split.ROWS, "down_bias": Split.FIRST}
EXPERTS: Final = {
    "router": Split.WHOLE,
    "expert_gate_up": Split.ROWS,
    "expert_down": Split.COLUMNS,
}


def share_heads(config: ConfigT, num_ranks: int) -> ConfigT:
    """What each of `num_ranks` computes of every layer: its own heads.

    Raises: `CheckpointError` where heads do not divide.
    """
    refuse_uneven("query heads", config.num_heads, num_ranks)
    num_kv_heads = config.num_kv_heads
    if num_ranks % num_kv_heads:  # else several ranks have a copy of one head
        refuse_uneven("KV heads", num_kv_heads, num_ranks)
    return replace(
        config,
        num_heads=config.num_heads // num_ranks,
        num_kv_heads=max(1, num_kv_heads // num_ranks),
    )


def refuse_uneven(what: str, count: int, num_ranks: int) -> None:
    """Raises: `CheckpointError` where `count` of something do not divide among ranks."""
    if count % num_ranks:
        raise CheckpointError(
            f"tensor_parallel is {num_ranks}, which does not divide the model's {count} {what}."
        )
