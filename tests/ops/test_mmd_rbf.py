"""Tests specific to ``mmd_rbf``: exact zeros, large coordinates, needed gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float

FEDCP = (10.0, 15.0, 20.0, 50.0)
native = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")


@native
@each_float
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_equal_sets_have_distance_zero_and_zero_gradients(dtype, size):
    x = (size * torch.randn(2, 13, 530)).to(dtype).requires_grad_()
    y = x.detach().clone().requires_grad_()
    value = ops.mmd_rbf(x, y)
    assert value.tolist() == [0, 0]
    for gradient in torch.autograd.grad(value.sum(), [x, y]):
        assert not gradient.any()


@native
@pytest.mark.parametrize(("points", "size"), [(9, 1e3), (40, 1e3), (40, 0.1)])
def test_equal_points_among_others_have_distance_zero(points, size):
    x = size * torch.randn(points, 600)
    x[7] = x[2]
    _, weights = torch.ops.pfl_fast.mmd_rbf(x, x.clone(), FEDCP)
    at_zero = torch.tensor(sum(1 / a for a in FEDCP))
    for matrix in weights:
        assert torch.allclose(matrix.diagonal(), at_zero)
        assert matrix[2, 7] == matrix[7, 2] == matrix[0, 0]


@native
@each_float
def test_large_coordinates_give_no_nan(dtype):
    x = (1e4 + torch.randn(8, 4096)).to(dtype).requires_grad_()
    y = (-1e4 + torch.randn(8, 4096)).to(dtype)
    value = ops.mmd_rbf(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert 0 < value <= 8
    assert gradient.isfinite().all()


@native
def test_infinite_distances_give_no_nan():
    x = torch.tensor([[3e38, 1.0], [-3e38, 2.0]], requires_grad=True)
    value = ops.mmd_rbf(x, torch.zeros(2, 2))
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite()
    assert not gradient.isnan().any()


@both_implementations
def test_one_point(implementation):
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])
    with ops.use(implementation):
        value = ops.mmd_rbf(x, y, [4.0, 9.0])
    assert_close(value, torch.tensor(sum(2 - 2 * math.exp(-13 / (2 * a)) for a in (4.0, 9.0))))


@native
@settings(max_examples=40, deadline=None)
@given(points=st.integers(1, 40), features=st.integers(0, 600), scale=st.sampled_from([0.01, 0.3, 3.0]))
def test_not_negative_symmetric_and_equal_to_the_reference_in_double(points, features, scale):
    x, y = scale * torch.randn(points, features), scale * torch.randn(points, features)
    value = ops.mmd_rbf(x, y)
    assert value >= -1e-5
    assert_close(value, ops.mmd_rbf(y, x), "swapped")
    assert_close(value, reference.mmd_rbf(x.double(), y.double(), FEDCP).float(), "reference", scale=8.0)


@native
@pytest.mark.parametrize("points", [12, 40])
def test_close_points_are_more_precise_than_with_gram_matrices(points):
    """Features share a large offset, as after a ReLU without normalisation."""
    offset = 1e3 * torch.rand(256)
    x, y = (offset + 0.2 * torch.randn(points, 256) for _ in range(2))
    exact = reference.mmd_rbf(x.double(), y.double(), FEDCP)
    assert (ops.mmd_rbf(x, y) - exact).abs() < 1e-6
    assert (reference.mmd_rbf(x, y, FEDCP) - exact).abs() > 1e-5


def clusters(spread):
    """Returns sets of 20 points around two centres, so that R^2 sum_a 1/a, as in tuning.h, is ``spread``."""
    centre = torch.randn(2, 1000, dtype=torch.float64)
    centre = (centre[0] - centre[1]) / (centre[0] - centre[1]).norm()
    radius = (spread / sum(1 / a for a in FEDCP)) ** 0.5
    side = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(10).unsqueeze(1)
    x, y = (side * centre * radius + 3e-3 * torch.randn(20, 1000, dtype=torch.float64) for _ in range(2))
    return x.float(), y.float()


@native
@pytest.mark.parametrize(("spread", "error"), [(60.0, 4 * 64 * 2**-24), (70.0, 1e-6)])
def test_matrix_products_only_where_they_are_accurate(spread, error):
    """Distances inside a cluster are small differences of large products; csrc/ops/mmd_rbf/tuning.h has the limit."""
    x, y = clusters(spread)
    exact = [t.double().requires_grad_() for t in (x, y)]
    mine = [t.clone().requires_grad_() for t in (x, y)]
    expected, value = reference.mmd_rbf(*exact, FEDCP), ops.mmd_rbf(*mine)
    assert (value - expected).abs() < error * len(FEDCP)
    for found, wanted in zip(torch.autograd.grad(value, mine), torch.autograd.grad(expected, exact), strict=True):
        assert (found - wanted).abs().max() < error
    _, weights = torch.ops.pfl_fast.mmd_rbf(x, y, FEDCP)
    distances = (x.double().unsqueeze(1) - x.double()).square().sum(-1)
    wrong = (weights[0] - sum(torch.exp(-distances / (2 * a)) / a for a in FEDCP)).abs().max()
    assert wrong < error
    assert (wrong > 1e-7) == (spread < 64)  # the products were, or were not, in use


@native
@pytest.mark.parametrize("points", [6, 80])
def test_only_the_needed_gradient_is_computed(points):
    x, y = 0.5 * torch.randn(2, points, 5), 0.5 * torch.randn(2, points, 5)
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    both = torch.autograd.grad(ops.mmd_rbf(*leaves).sum(), leaves)
    alone = leaves[0].detach().requires_grad_()
    assert same_bits(torch.autograd.grad(ops.mmd_rbf(alone, y).sum(), alone)[0], both[0])
    alone = leaves[1].detach().requires_grad_()
    assert same_bits(torch.autograd.grad(ops.mmd_rbf(x, alone).sum(), alone)[0], both[1])
    value, weights = torch.ops.pfl_fast.mmd_rbf(x, y, FEDCP)
    only_x = torch.ops.pfl_fast.mmd_rbf_backward(value, x, y, weights, True, False)
    assert [g.numel() for g in only_x] == [x.numel(), 0]


@native
@pytest.mark.parametrize("points", [10, 40])
def test_stacked_clients_equal_single_clients_to_the_bit(points):
    """Clients of different sizes: some by matrix products, some not."""
    sizes = torch.tensor([0.1, 0.3, 10, 100.0]).view(4, 1, 1)
    x, y = sizes * torch.randn(4, points, 70), sizes * torch.randn(4, points, 70)
    assert same_bits(ops.mmd_rbf(x, y), torch.stack([ops.mmd_rbf(x[i], y[i]) for i in range(4)]))


@native
def test_second_derivatives_raise():
    x = torch.randn(3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.mmd_rbf(x, torch.randn(3, 2)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="mmd_rbf: second derivatives are not implemented"):
        gradient.sum().backward()
