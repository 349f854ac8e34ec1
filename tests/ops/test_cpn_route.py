"""Tests specific to ``cpn_route``: rows without variance, extreme logits, noise and affine parameters per client."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float
from tests.ops.route_entry import check_shares

with_and_without_noise = pytest.mark.parametrize("noisy", [False, True], ids=["softmax", "gumbel"])


def make(dtype, *shape):
    *batch, rows, features = shape
    shapes = [shape, (*batch, rows, 2 * features), (*batch, 2 * features), (*batch, 2 * features)]
    return [torch.randn(s).to(dtype) for s in shapes]


def outputs_and_grads(tensors, seed=None, tau=1.0, ones=False):
    tracked = [t.clone().requires_grad_() for t in tensors]
    parts = ops.cpn_route(*tracked, seed=seed, tau=tau)
    cotangents = [torch.ones_like(parts[0]), torch.zeros_like(parts[0]) if ones else 2 * tensors[0]]
    return [*parts, *torch.autograd.grad(parts, tracked, cotangents)]


@both_implementations
@each_float
@with_and_without_noise
def test_shares_are_between_0_and_1_and_add_up(implementation, dtype, noisy):
    seed = torch.tensor(5) if noisy else None
    h, a, gamma, beta = make(dtype, 9, 67)
    with ops.use(implementation):
        r, s = ops.cpn_route(torch.ones_like(h), a, gamma, beta, seed=seed)
        global_part, personal_part = ops.cpn_route(h, a, gamma, beta, seed=seed)
    check_shares(r, s)
    assert_close(global_part + personal_part, h)


@both_implementations
@each_float
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1000.0])
def test_a_row_without_variance_is_finite(implementation, dtype, value):
    h, _, gamma, beta = make(dtype, 3, 67)
    with ops.use(implementation):
        results = outputs_and_grads([h, torch.full((3, 134), value, dtype=dtype), gamma, beta])
    for tensor in results:
        assert tensor.isfinite().all()


@each_float
def test_a_row_without_variance_is_routed_by_beta(dtype):
    h, _, gamma, beta = make(dtype, 3, 67)
    flat = torch.full((3, 134), 60000.0 if dtype == torch.float16 else 1234.567, dtype=dtype)
    by_beta = ops.route(h, beta.relu().expand(3, 134))
    for mine, theirs in zip(ops.cpn_route(h, flat, gamma, beta), by_beta, strict=True):
        assert same_bits(mine, theirs)


@both_implementations
@each_float
@with_and_without_noise
def test_extreme_logits_stay_finite(implementation, dtype, noisy):
    largest = 60000.0 if dtype == torch.float16 else 80.0
    h, a, gamma, beta = make(dtype, 4, 33)
    with ops.use(implementation):
        results = outputs_and_grads([h, a.sign() * largest, gamma, beta], torch.tensor(1) if noisy else None, tau=1e-3)
    for tensor in results:
        assert tensor.isfinite().all()


@each_float
def test_large_logits_equal_the_reference(dtype):
    h, a, gamma, beta = make(dtype, 4, 33)
    a = (a.sign() * (60000.0 if dtype == torch.float16 else 80.0)).to(dtype)
    for mine, theirs in zip(ops.cpn_route(h, a, gamma, beta), reference.cpn_route(h, a, gamma, beta), strict=True):
        assert_close(mine, theirs)


def test_a_large_mean_keeps_the_variance():
    h, a, gamma, beta = make(torch.float32, 40, 33)
    tensors = h, a + 1000, gamma, beta
    exact = reference.cpn_route(*(t.double() for t in tensors))
    for mine, theirs in zip(ops.cpn_route(*tensors), exact, strict=True):
        assert_close(mine, theirs.float(), scale=50)  # the mean itself has an error of 3e-5


def test_nan_affects_its_own_row_only():
    h, a, gamma, beta = make(torch.float32, 2, 3)
    a[0, 1] = float("nan")
    for part in ops.cpn_route(h, a, gamma, beta):
        assert part.isnan().tolist() == [[True] * 3, [False] * 3]


@each_float
@with_and_without_noise
@pytest.mark.parametrize("rows", [3, 37])
def test_stacked_clients_equal_single_clients_to_the_bit(dtype, noisy, rows):
    tensors = make(dtype, 4, rows, 37)
    seeds = torch.tensor([5, -6, 5, 2**40]) if noisy else None
    stacked = outputs_and_grads(tensors, seeds)
    for n in range(4):
        for mine, one in zip(
            stacked, outputs_and_grads([t[n] for t in tensors], seeds[n] if noisy else None), strict=True
        ):
            assert same_bits(mine[n], one)


def test_equals_route_after_torch_layers():
    h, a, gamma, beta = make(torch.float64, 5, 11)
    y = torch.nn.functional.layer_norm(a, [22], gamma, beta).relu()
    seed = torch.tensor(3)
    for mine, theirs in zip(ops.cpn_route(h, a, gamma, beta, seed=seed), ops.route(h, y, seed), strict=True):
        assert_close(mine, theirs)


def test_shared_gamma_and_beta_are_not_copied():
    h, a, _, _ = make(torch.float64, 4, 3, 5)
    gamma, beta = torch.randn(10).double(), torch.randn(10).double()
    shared = ops.cpn_route(h, a, gamma.expand(4, 10), beta.expand(4, 10))
    copied = ops.cpn_route(h, a, gamma.repeat(4, 1), beta.repeat(4, 1))
    batched = torch.vmap(ops.cpn_route, (0, 0, None, None))(h, a, gamma, beta)
    for s, c, b in zip(shared, copied, batched, strict=True):
        assert same_bits(s, c)
        assert same_bits(s, b)


def test_gradients_through_one_part_only():
    tensors = [t.requires_grad_() for t in make(torch.float64, 3, 4)]
    for part in (0, 1):
        mine = torch.autograd.grad(ops.cpn_route(*tensors)[part].sum(), tensors)
        theirs = torch.autograd.grad(reference.cpn_route(*tensors)[part].sum(), tensors)
        for m, t in zip(mine, theirs, strict=True):
            assert_close(m, t)


def test_second_derivatives_raise():
    tensors = [t.requires_grad_() for t in make(torch.float64, 3, 4)]
    (first,) = torch.autograd.grad(ops.cpn_route(*tensors)[0].sum(), tensors[1], create_graph=True)
    with pytest.raises(RuntimeError, match="pfl_fast::cpn_route: second derivatives are not implemented"):
        first.sum().backward()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 2, 3)])
@with_and_without_noise
def test_empty(shape, noisy):
    tensors = make(torch.float32, *shape)
    seed = torch.zeros(shape[:-2], dtype=torch.int64) if noisy else None
    for result, like in zip(
        outputs_and_grads(tensors, seed, ones=True), [tensors[0], *tensors[:1], *tensors], strict=True
    ):
        assert result.shape == like.shape
        assert not result.any()
