"""What splits where when several GPUs share a decoder's usual parts, by a parameter's last name.

Projections into heads or the intermediate size split by rows, those back by columns, so that a
layer needs two sums over ranks and no more. Biases behind a sum are kept whole (rank 0 adds them).
Experts split as dense networks do, each by itself; every rank routes all tokens.
Read next: `llama.sharding`, which joins the parts that family has.
"""

from typing import Final

from gpu_pool.models.parameters import Split

EMBEDDINGS: Final = {"embedding": Split.WHOLE, "norm": Split.WHOLE, "head": Split.ROWS}
LAYER_NORMS: Final = {"input_norm": Split.WHOLE, "post_norm": Split.WHOLE}
ATTENTION: Final = {"qkv": Split.ROWS, "o": Split.COLUMNS}
QKV_BIAS: Final = {"qkv_bias": Split.ROWS}
O_BIAS: Final = {"o_bias": Split.WHOLE}
HEAD_NORM: Final = {"q_norm": Split.WHOLE, "k_norm": Split.WHOLE}
GATED_MLP: Final = {"gate_up": Split.ROWS, "down": Split.COLUMNS}
MLP_BIAS: Final = {"gate_up_bias": Split.ROWS, "down_bias": Split.WHOLE}
EXPERTS: Final = {
    "router": Split.WHOLE,
    "expert_gate_up": Split.ROWS,
    "expert_down": Split.COLUMNS,
}
