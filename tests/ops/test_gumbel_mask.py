"""Tests specific to ``gumbel_mask``: exact splits, straight-through gradient, thresholds, extreme noise, stacks."""

import math

import pytest
import torch

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float


def make(shape, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    z, logits = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return z.to(dtype), (scale * logits).to(dtype)


def logistic_noise(seed, shape):
    u = ops.philox_uniform(seed, shape).double()
    return u.log() - (-u).log1p()


@each_float
def test_hard_mask_copies_each_value_to_one_side(dtype):
    z, logits = make((37, 53), dtype)
    selected, rest = ops.gumbel_mask(z, logits, torch.tensor(3))
    taken = selected != 0
    assert 0.3 < taken.float().mean() < 0.7
    assert same_bits(torch.where(taken, selected, rest), z)
    assert not torch.where(taken, rest, selected).any()


@each_float
def test_soft_parts_add_up(dtype):
    z, logits = make((37, 53), dtype)
    selected, rest = ops.gumbel_mask(z, logits, torch.tensor(3), tau=0.5, hard=False)
    assert_close(selected + rest, z, scale=4.0)  # half types round three times
    assert (selected.abs() <= z.abs()).all()


@pytest.mark.parametrize("threshold", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_hard_mask_and_its_gradient_equal_the_formula(threshold, tau):
    z, logits = (t.requires_grad_() for t in make((19, 31), torch.float64))
    seed = torch.tensor(11)
    selected, rest = ops.gumbel_mask(z, logits, seed, tau, threshold)
    g_selected, g_rest = make((19, 31), torch.float64, 3.0)
    grad_z, grad_logits = torch.autograd.grad((selected, rest), (z, logits), (g_selected, g_rest))

    soft = torch.sigmoid((logits + logistic_noise(seed, [19, 31])) / tau).detach()
    mask = (soft >= threshold).double()
    assert same_bits(selected.detach(), torch.where(mask > 0, z, 0.0).detach())
    assert torch.equal(grad_z, mask * g_selected + (1 - mask) * g_rest)
    expected = soft * (1 - soft) / tau * z.detach() * (g_selected - g_rest)
    assert_close(grad_logits, expected, scale=1 / tau)


def test_hard_second_derivative_is_straight_through_too():
    def second(implementation):
        with ops.use(implementation):
            z, logits = (t.requires_grad_() for t in make((4, 5), torch.float64))
            selected, rest = ops.gumbel_mask(z, logits, torch.tensor(2), tau=0.7)
            first = torch.autograd.grad((selected**3).sum() + (rest**2).sum(), (z, logits), create_graph=True)
            return torch.autograd.grad(sum((g**2).sum() for g in first), (z, logits))

    for native, plain in zip(second("native"), second("reference"), strict=True):
        assert_close(native, plain)


@both_implementations
@each_float
def test_evaluation_selects_nonnegative_logits_for_every_tau(dtype, implementation):
    tiny = torch.finfo(dtype).smallest_normal
    logits = torch.tensor([-80.0, -1.0, -1e-3, -tiny, -0.0, 0.0, tiny, 1e-3, 80.0], dtype=dtype)
    z = torch.arange(1.0, 10.0).to(dtype)
    with ops.use(implementation):
        for tau in (1e-3, 1.0, 50.0):
            selected, rest = ops.gumbel_mask(z, logits, None, tau, noise=False)
            assert torch.equal(selected, torch.where(logits >= 0, z, 0))
            assert torch.equal(rest, torch.where(logits >= 0, 0, z))


@both_implementations
@each_float
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("noise", [True, False])
def test_extreme_logits_and_temperatures_stay_finite(dtype, implementation, hard, noise):
    logits = torch.tensor([-80.0, 80.0, 0.0, -1e-4, 1e-4, 20.0]).repeat(500).to(dtype).requires_grad_()
    z = torch.linspace(-3, 3, 3000).to(dtype).requires_grad_()
    with ops.use(implementation):
        for tau in (1e-3, 1.0, 1e3):
            results = ops.gumbel_mask(z, logits, torch.tensor(5), tau, 0.4, hard, noise)
            gradients = torch.autograd.grad(results, (z, logits), [torch.ones_like(z), -torch.ones_like(z)])
            assert all(t.isfinite().all() for t in (*results, *gradients))
            if tau < 1e3:
                assert float(results[0][::6].detach().abs().max()) < 1e-20  # logits of -80
                assert torch.equal(results[0][1::6], z[1::6])  # logits of 80


def find_seed(condition, count=1 << 24):
    """Returns a seed and an element whose uniform number satisfies the condition."""
    for start in range(64):
        u = ops.philox_uniform(torch.tensor(start), [count])
        found = condition(u).nonzero()
        if len(found):
            return torch.tensor(start), int(found[0])
    raise AssertionError("no such number drawn")


@pytest.mark.parametrize("end", [-1, 1])
def test_extreme_noise(end):
    """The smallest and largest u give noise of about -16.6 and 16.6, in the kernel and in the formula."""
    seed, element = find_seed((lambda u: u < 2e-7) if end < 0 else (lambda u: u > 1 - 2e-7))
    size = element + 1
    border = float(logistic_noise(seed, [size])[element])
    assert end * border > 15
    z = torch.ones(size)
    for dtype in (torch.float64, torch.float32):
        for shift, taken in ((-0.01, False), (0.01, True)):
            logits = torch.full((size,), -border + shift, dtype=dtype)
            selected, _ = ops.gumbel_mask(z.to(dtype), logits, seed)
            assert bool(selected[element]) is taken
            soft, _ = ops.gumbel_mask(z.to(dtype), logits, seed, hard=False)
            assert abs(float(soft[element]) - 1 / (1 + math.exp(-shift))) < 2e-6


def test_noise_is_the_same_for_every_dtype():
    z, logits = torch.ones(5000), torch.zeros(5000)
    masks = [
        ops.gumbel_mask(z.to(d), logits.to(d), torch.tensor(9))[0].bool()
        for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    ]
    assert all(torch.equal(masks[0], m) for m in masks[1:])


def test_distribution_of_the_mask():
    """P(m = 1) = sigmoid(logit) at threshold 1/2, as for a comparison of two Gumbel draws."""
    for logit in (-2.0, 0.0, 1.0):
        size = 1 << 18
        selected, _ = ops.gumbel_mask(torch.ones(size), torch.full((size,), logit), torch.tensor(4), tau=0.3)
        p = 1 / (1 + math.exp(-logit))
        assert abs(float(selected.mean()) - p) < 4 * (p * (1 - p) / size) ** 0.5


@each_float
@pytest.mark.parametrize("hard", [True, False])
def test_stacked_clients_equal_single_clients(dtype, hard):
    seeds = torch.tensor([5, -7, 5, 2**61])
    z, logits = make((4, 10, 51), dtype)
    together = ops.gumbel_mask(z, logits, seeds, hard=hard)
    mapped = torch.vmap(lambda *t: ops.gumbel_mask(*t, hard=hard))(z, logits, seeds)
    for c in range(4):
        alone = ops.gumbel_mask(z[c], logits[c], seeds[c], hard=hard)
        for t, m, a in zip(together, mapped, alone, strict=True):
            assert same_bits(t[c], a)
            assert same_bits(m[c], a)


def test_shared_features_are_read_in_place_for_every_seed():
    seeds, (z, logits) = torch.arange(6), make((10, 51))
    mapped = torch.vmap(lambda seed: ops.gumbel_mask(z, logits, seed))(seeds)
    for c in range(6):
        for m, a in zip(mapped, ops.gumbel_mask(z, logits, seeds[c]), strict=True):
            assert same_bits(m[c], a)


@pytest.mark.parametrize("hard", [True, False])
def test_compiles_as_one_graph(hard):
    z, logits = (t.requires_grad_() for t in make((4, 9)))

    def function(z, logits):
        return ops.gumbel_mask(z, logits, torch.tensor(3), hard=hard)

    actual = torch.compile(function, fullgraph=True, backend="aot_eager")(z, logits)
    assert all(same_bits(a.detach(), e.detach()) for a, e in zip(actual, function(z, logits), strict=True))


def test_z_and_the_noisy_logits_are_saved():
    z, logits = (t.requires_grad_() for t in make((64, 64)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.gumbel_mask(z, logits, torch.tensor(1))
    shapes = {t.data_ptr(): t.shape for t in kept if t.numel() > 1}
    assert z.data_ptr() in shapes
    assert logits.data_ptr() not in shapes
    assert list(shapes.values()) == [z.shape, z.shape]
