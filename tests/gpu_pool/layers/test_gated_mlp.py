"""The feed-forward network against its formula, biases included."""

import torch
from torch.nn import functional

from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.linear import Linear


def test_the_gate_s_rows_come_first() -> None:
    gate, up, down = torch.randn(12, 8), torch.randn(12, 8), torch.randn(8, 12)
    biases = torch.randn(24), torch.randn(8)
    x = torch.randn(5, 8)
    with torch.inference_mode():
        network = GatedMlp(Linear(torch.cat((gate, up)), biases[0]), Linear(down, biases[1]))
        found = network(x)
    gated = functional.silu(x @ gate.T + biases[0][:12]) * (x @ up.T + biases[0][12:])
    assert (found - (gated @ down.T + biases[1])).abs().max() < 1e-4
