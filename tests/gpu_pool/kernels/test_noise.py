"""The noise: its exact bits, its distribution and its independence."""

import math

import torch

from gpu_pool.kernels.noise import draw_log_exponentials, mix_key

CPU = torch.device("cpu")


def hash_in_plain_integers(keys: tuple[int, int], token_id: int) -> float:
    """log E of one token by unsigned Python integers."""
    mask = 0xFFFF_FFFF
    bits = (token_id * 0x9E3779B1 & mask) ^ (keys[0] & mask)
    bits = ((bits ^ bits >> 16) * 0x7FEB352D + keys[1]) & mask
    bits = (bits ^ bits >> 15) * 0x846CA68B & mask
    bits = (bits ^ bits >> 16) & 0x7FFF_FFFF
    return math.log(-math.log1p(-(bits + 0.5) / 2**31))


def test_tensor_arithmetic_gives_the_bits_of_plain_integers() -> None:
    keys = [mix_key(seed, position) for seed, position in [(0, 0), (1, 5), (-3, 2**40)]]
    drawn = draw_log_exponentials(keys, 2000, CPU)
    expected = [[hash_in_plain_integers(key, i) for i in range(2000)] for key in keys]
    assert (drawn - torch.tensor(expected)).abs().max() < 1e-5


def test_keys_are_fixed_for_all_time() -> None:
    """A change here changes the answer to every seeded request."""
    assert mix_key(0, 0) == (-1492722385, 1293516399)
    assert mix_key(42, 7) == (369503596, 322561280)


def test_noise_is_exponential() -> None:
    keys = [mix_key(3, position) for position in range(100)]
    drawn = draw_log_exponentials(keys, 2000, CPU).exp().flatten().double()
    assert abs(drawn.mean().item() - 1) < 0.01
    assert abs(drawn.var().item() - 1) < 0.03
    for bound in (0.01, 0.1, 1.0, 3.0):
        assert abs((drawn < bound).double().mean().item() - (1 - math.exp(-bound))) < 0.005


def test_neighbouring_tokens_positions_and_seeds_are_uncorrelated() -> None:
    by_position = draw_log_exponentials([mix_key(3, p) for p in range(200)], 1000, CPU).double()
    by_seed = draw_log_exponentials([mix_key(s, 3) for s in range(200)], 1000, CPU).double()
    for drawn in (by_position, by_seed):
        for first, second in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1])):
            pairs = torch.stack((first.flatten(), second.flatten()))
            assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.01


def test_noise_is_finite() -> None:
    assert draw_log_exponentials([mix_key(1, 1)], 1_000_000, CPU).isfinite().all()
