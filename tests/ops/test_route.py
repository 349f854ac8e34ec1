"""Tests specific to ``route``: shares that add up, extreme logits, noise per client."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float
from tests.ops.route_entry import check_shares


def make(dtype, *shape, scale=3.0):
    return torch.randn(shape).to(dtype), (scale * torch.randn(*shape[:-1], 2 * shape[-1])).to(dtype)


@both_implementations
@each_float
@pytest.mark.parametrize("seed", [None, 5])
def test_shares_are_between_0_and_1_and_add_up(implementation, dtype, seed):
    seed = None if seed is None else torch.tensor(seed)
    h, a = make(dtype, 9, 67, scale=1.0)
    with ops.use(implementation):
        r, s = ops.route(torch.ones_like(h), a, seed)
        global_part, personal_part = ops.route(h, a, seed)
    check_shares(r, s)
    assert_close(global_part + personal_part, h)


@each_float
def test_equal_logits_split_features_in_half(dtype):
    h, _ = make(dtype, 3, 7)
    for part in ops.route(h, torch.full((3, 14), 2.5, dtype=dtype)):
        assert same_bits(part, h / 2)


@both_implementations
@each_float
@pytest.mark.parametrize("seed", [None, 5])
def test_extreme_logits_stay_finite(implementation, dtype, seed):
    largest = 60000.0 if dtype == torch.float16 else 80.0
    h = torch.ones(1, 4, dtype=dtype, requires_grad=True)
    a = torch.tensor([[1, -1, 1, -1, -1, 1, 1, -1]], dtype=dtype).mul(largest).requires_grad_()
    with ops.use(implementation):
        parts = ops.route(h, a, None if seed is None else torch.tensor(seed), tau=1e-3)
        gradients = torch.autograd.grad(parts, [h, a], [torch.ones_like(h), -torch.ones_like(h)])
    for tensor in (*parts, *gradients):
        assert tensor.isfinite().all()
    assert_close(parts[0][0, :2], torch.tensor([1, 0], dtype=dtype))
    assert_close(parts[1][0, :2], torch.tensor([0, 1], dtype=dtype))


def test_a_small_share_keeps_its_precision():
    a = torch.tensor([[-40.0, 0.0]])
    for parts in (ops.route(torch.ones(1, 1), a), ops.route(torch.ones(1, 1), a.flip(1))[::-1]):
        assert torch.allclose(parts[0].double(), torch.tensor([[-40.0]]).double().exp(), rtol=1e-6, atol=0)


def test_small_temperature_equals_double_precision():
    h, a = make(torch.float32, 5, 31, scale=1e-3)
    exact = reference.route(h.double(), a.double(), tau=1e-3)
    for mine, theirs in zip(ops.route(h, a, tau=1e-3), exact, strict=True):
        assert_close(mine, theirs.float())


def test_nan_propagates():
    h, a = make(torch.float32, 2, 3)
    a[0, 1] = float("nan")
    for part in ops.route(h, a):
        assert part.isnan().tolist() == [[False, True, False], [False] * 3]


@each_float
@pytest.mark.parametrize("noisy", [False, True])
def test_stacked_clients_equal_single_clients_to_the_bit(dtype, noisy):
    h, a = make(dtype, 4, 3, 37)
    seeds = torch.tensor([5, -6, 5, 2**40]) if noisy else None

    def outputs_and_grads(h, a, seed):
        h, a = h.clone().requires_grad_(), a.clone().requires_grad_()
        parts = ops.route(h, a, seed)
        return [*parts, *torch.autograd.grad(parts, [h, a], [torch.ones_like(h), 2 * h.detach()])]

    stacked = outputs_and_grads(h, a, seeds)
    for n in range(4):
        for mine, one in zip(stacked, outputs_and_grads(h[n], a[n], seeds[n] if noisy else None), strict=True):
            assert same_bits(mine[n], one)


def test_noise_depends_on_the_seed_only_and_is_logistic():
    h, a = torch.ones(100, 500), torch.zeros(100, 1000)
    r, _ = ops.route(h, a, torch.tensor(3))
    assert same_bits(r, ops.route(h, a, torch.tensor(3))[0])
    assert not torch.equal(r, ops.route(h, a, torch.tensor(4))[0])
    # sigmoid of logistic noise is uniform: the share is the uniform number itself.
    assert_close(r, ops.philox_uniform(torch.tensor(3), [100, 500]))


def test_vmap_without_noise():
    h, a = make(torch.float64, 3, 4, 5)
    actual = torch.vmap(ops.route)(h, a)
    for mine, theirs in zip(actual, ops.route(h, a), strict=True):
        assert same_bits(mine, theirs)


def test_gradients_through_one_part_only():
    h, a = (t.requires_grad_() for t in make(torch.float64, 3, 4))
    for part in (0, 1):
        mine = torch.autograd.grad(ops.route(h, a)[part].sum(), [h, a])
        theirs = torch.autograd.grad(reference.route(h, a)[part].sum(), [h, a])
        for m, t in zip(mine, theirs, strict=True):
            assert_close(m, t)


def test_second_derivatives_raise():
    h, a = (t.requires_grad_() for t in make(torch.float64, 3, 4))
    (first,) = torch.autograd.grad(ops.route(h, a)[0].sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="pfl_fast::route: second derivatives are not implemented"):
        first.sum().backward()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 2, 3)])
def test_empty_with_noise(shape):
    h, a = make(torch.float32, *shape)
    for part in ops.route(h, a, torch.zeros(shape[:-2], dtype=torch.int64)):
        assert part.shape == h.shape
