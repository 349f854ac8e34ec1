"""Tests specific to ``philox_uniform``: published test vectors, distribution, independence of neighbours."""

import torch

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import same_bits


def test_known_answers():
    """Random123's test vector: an all-zero key and counter give 6627e8d5 e169c58d bc57ac4c 9b00dbd8."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    expected = [((w >> 9) + 0.5) * 2.0**-23 for w in words]
    assert ops.philox_uniform(torch.tensor(0), [4]).tolist() == expected
    assert reference.philox_uniform(torch.tensor(0), [4]).tolist() == expected


def test_stacked_clients_draw_the_numbers_of_single_clients():
    seeds = torch.randint(-(2**62), 2**62, (11,))
    stacked = ops.philox_uniform(seeds, [13, 7])
    assert all(same_bits(stacked[c], ops.philox_uniform(seeds[c], [13, 7])) for c in range(11))


def test_a_prefix_does_not_depend_on_the_length():
    assert same_bits(ops.philox_uniform(torch.tensor(5), [10]), ops.philox_uniform(torch.tensor(5), [1000])[:10])


def test_uniform_on_the_open_interval():
    u = ops.philox_uniform(torch.tensor(3), [1 << 20]).double()
    assert 0 < u.min() < 1e-5
    assert 1 > u.max() > 1 - 1e-5
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / len(u)) ** 0.5
    assert abs(u.var() - 1 / 12) < 4 * (1 / 180 / len(u)) ** 0.5
    assert kolmogorov_smirnov(u) < 1.95  # 0.1 % significance


def test_distribution_of_logistic_noise():
    u = ops.philox_uniform(torch.tensor(4), [1 << 20]).double()
    noise = u.log() - (-u).log1p()
    assert kolmogorov_smirnov(torch.sigmoid(noise)) < 1.95
    assert abs(noise.mean()) < 4 * (torch.pi**2 / 3 / len(u)) ** 0.5
    assert abs(noise.var() / (torch.pi**2 / 3) - 1) < 0.01


def test_neighbouring_seeds_and_elements_are_uncorrelated():
    u = ops.philox_uniform(torch.arange(64), [1 << 14]).double() - 0.5
    between = torch.corrcoef(u)[~torch.eye(64, dtype=torch.bool)]
    assert between.abs().max() < 6 / (1 << 14) ** 0.5
    for lag in (1, 2, 3, 4, 64):
        along = (u[:, lag:] * u[:, :-lag]).mean() * 12
        assert abs(along) < 5 / u.numel() ** 0.5


def kolmogorov_smirnov(u):
    """Returns the scaled Kolmogorov-Smirnov distance from the uniform distribution."""
    ordered = u.sort().values
    steps = torch.arange(len(u) + 1, dtype=torch.float64) / len(u)
    distance = torch.maximum((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    return float(distance * len(u) ** 0.5)
