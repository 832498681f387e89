"""What oneDNN keeps for products of ever new row counts: bounded here, not by itself."""

import os
import re
import subprocess
import sys

import pytest

from gpu_pool.kernels.linear import cut_rows

_MULTIPLY = """
import sys
import torch
from gpu_pool.kernels.linear import PackedWeight, linear, pack_weight

torch.set_num_threads(1)
first, last = int(sys.argv[2]), int(sys.argv[3])
with torch.inference_mode():
    weight = pack_weight(torch.randn(64, 96))
    if not isinstance(weight, PackedWeight):
        sys.exit("no oneDNN")
    x = torch.randn(last, 96)
    for count in range(first, last):
        if sys.argv[1] == "cut":
            linear(x[:count], weight)
        else:
            torch.ops.mkldnn._linear_pointwise(x[:count], weight.packed, None, "none", [], "")
"""


def count_compiled(how: str, first: int, last: int) -> int:
    """Kernels that oneDNN compiles for products of `first` to `last - 1` rows."""
    environ = {**os.environ, "ONEDNN_VERBOSE": "profile_create", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", _MULTIPLY, how, str(first), str(last)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if "no oneDNN" in done.stderr:
        pytest.skip("this machine's torch has no oneDNN, which alone keeps kernels")
    assert done.returncode == 0, done.stderr
    return len(re.findall("create:cache_miss,cpu,inner_product", done.stdout))


def test_every_row_is_in_one_piece_and_little_is_filled_up() -> None:
    for num_rows in range(1, 3000):
        counts = cut_rows(num_rows)
        filled_up = sum(counts) - num_rows
        assert sum(counts[:-1]) < num_rows <= sum(counts)
        assert filled_up == 0 or filled_up / num_rows <= 0.2, num_rows
    assert cut_rows(16) == [16]
    assert cut_rows(700) == [256, 256, 128, 48, 12]


def test_prompts_of_every_length_meet_few_kernels_of_onednn() -> None:
    few = count_compiled("cut", 1, 600)
    assert 20 <= few <= 26
    # The control: by itself it compiles and keeps one for each.
    assert count_compiled("whole", 1, 600) == 599
