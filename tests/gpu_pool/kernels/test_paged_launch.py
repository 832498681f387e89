"""Launch settings of tiles: what shared memory has room for, on every generation."""

from typing import Literal

import pytest

from gpu_pool.kernels.gpu_traits import get_traits
from gpu_pool.kernels.paged_launch import choose_paged_attention_launch, choose_tile_rows


@pytest.mark.parametrize("capability", [80, 86, 89, 90])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("num_rows", [16, 64, "most"])
def test_queries_keys_and_values_fit(
    capability: int, head_dim: int, num_rows: int | Literal["most"]
) -> None:
    traits = get_traits(capability, 100)
    if num_rows == "most":
        num_rows = choose_tile_rows(traits, head_dim, 2, is_fp8=False)
    launch = choose_paged_attention_launch(traits, num_rows, head_dim, 2)
    stages = (launch.num_stages - 1) * 2 * launch.keys * head_dim * 2
    assert num_rows * head_dim * 2 + stages < traits.shared_bytes
    assert launch.keys >= 16


def test_large_gpus_keep_more_keys_under_way_than_small_ones() -> None:
    small, large = (
        choose_paged_attention_launch(get_traits(capability, 100), 64, 256, 2)
        for capability in (86, 90)
    )
    assert (small.keys, large.keys) == (32, 64)


def test_only_hopper_with_small_heads_has_large_tiles() -> None:
    hopper, ada = get_traits(90, 132), get_traits(89, 128)
    assert choose_tile_rows(hopper, 128, 2, is_fp8=False) == 128
    assert choose_tile_rows(hopper, 256, 2, is_fp8=False) == 64
    assert choose_tile_rows(hopper, 128, 4, is_fp8=False) == 64
    assert choose_tile_rows(hopper, 128, 2, is_fp8=True) == 64
    assert choose_tile_rows(ada, 128, 2, is_fp8=False) == 64


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match="256 elements of 4 bytes does not fit"):
        choose_paged_attention_launch(get_traits(86, 100), 64, 256, 4)
