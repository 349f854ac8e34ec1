"""Tests specific to ``distill_losses``: torch's own losses, edge cases, stacked clients."""

import math

import pytest
import torch
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float


def make(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]
    return *logits, torch.randint(shape[-1], shape[:-1], generator=generator)


def test_terms_equal_torchs_losses():
    y_g, y_p, y_u, target = make(9, 12, dtype=torch.float64)
    gce, lce, ent, dis = ops.distill_losses(y_g, y_p, y_u, target)
    assert_close(gce, functional.cross_entropy(y_g, target))
    assert_close(lce, functional.cross_entropy(y_p, target))
    assert_close(ent, -torch.distributions.Categorical(logits=y_u).entropy().mean())
    log_g, log_p = y_g.log_softmax(1), y_p.log_softmax(1)
    both = functional.kl_div(log_g, log_p, log_target=True, reduction="batchmean") + functional.kl_div(
        log_p, log_g, log_target=True, reduction="batchmean"
    )
    assert_close(dis, both)


@both_implementations
@each_float
@pytest.mark.parametrize("classes", [1, 2, 10, 300])
def test_entropy_of_uniform_and_one_hot_predictions(dtype, implementation, classes):
    target = torch.zeros(3, dtype=torch.int64)
    uniform = torch.full((3, classes), 2.0, dtype=dtype)
    certain = torch.full((3, classes), -80.0, dtype=dtype)
    certain[:, 0] = 80.0
    with ops.use(implementation):
        gce, lce, ent, dis = ops.distill_losses(uniform, uniform, uniform, target)
        for value, expected in (
            (gce, math.log(classes)),
            (lce, math.log(classes)),
            (ent, -math.log(classes)),
            (dis, 0),
        ):
            assert abs(float(value) - expected) < 2e-6
        gce, lce, ent, dis = ops.distill_losses(certain, certain, certain, target)
        assert max(abs(float(value)) for value in (gce, lce, ent, dis)) < 1e-30


@both_implementations
@each_float
def test_large_logits_that_disagree(dtype, implementation):
    """Uses logits of +-80: each classifier is certain of another class."""
    y_g, y_p = torch.full((2, 4), -80.0), torch.full((2, 4), -80.0)
    y_g[:, 0] = y_p[:, 1] = 80.0
    leaves = [y.to(dtype).requires_grad_() for y in (y_g, y_p, y_p)]
    with ops.use(implementation):
        results = ops.distill_losses(*leaves, torch.tensor([0, 0]))
        gradients = torch.autograd.grad(sum(results), leaves)
    for value, expected in zip(results, (0.0, 160.0, 0.0, 320.0), strict=True):
        assert value.dtype == torch.promote_types(dtype, torch.float32)
        assert abs(float(value.detach()) - expected) < 1e-4
    assert all(g.isfinite().all() for g in gradients)
    # d dis/d y_p = p_p - p_g + p_p (r - sum p_p r) = p_p - p_g for a one-hot p_p; d lce/d y_p is the same.
    assert_close(gradients[1], torch.tensor([[-1.0, 1.0, 0.0, 0.0]] * 2).to(dtype), scale=10.0)


@pytest.mark.parametrize("which", range(4))
def test_nan_propagates(which):
    y_g, y_p, y_u, target = make(5, 7)
    changed = {0: y_g, 1: y_p, 2: y_u, 3: y_g}[which]
    changed[2, (int(target[2]) + 1) % 7] = math.nan
    assert ops.distill_losses(y_g, y_p, y_u, target)[which].isnan()


@both_implementations
def test_losses_of_an_empty_batch_are_zero(implementation):
    leaves = [torch.zeros(2, 0, 5, requires_grad=True) for _ in range(3)]
    with ops.use(implementation):
        results = ops.distill_losses(*leaves, torch.zeros(2, 0, dtype=torch.int64))
    assert all(torch.equal(r.detach(), torch.zeros(2)) for r in results)


@each_float
def test_gradients_equal_the_formulas(dtype):
    *logits, target = make(6, 9, dtype=dtype)
    leaves = [y.requires_grad_() for y in logits]
    weights = torch.tensor([0.5, 2.0, -1.0, 3.0]).to(torch.promote_types(dtype, torch.float32))
    gradients = torch.autograd.grad(ops.distill_losses(*leaves, target), leaves, list(weights))
    p_g, p_p, p_u = (y.detach().double().softmax(1) for y in leaves)
    r, onehot = p_p.log() - p_g.log(), functional.one_hot(target, 9)
    on_g = 0.5 * (p_g - onehot) + 3 * (p_g - p_p - p_g * (r - (p_g * r).sum(1, keepdim=True)))
    on_p = 2 * (p_p - onehot) + 3 * (p_p - p_g + p_p * (r - (p_p * r).sum(1, keepdim=True)))
    on_u = -p_u * (p_u.log() - (p_u * p_u.log()).sum(1, keepdim=True))
    for mine, expected in zip(gradients, (on_g, on_p, on_u), strict=True):
        assert_close(mine, (expected / 6).to(dtype))


@each_float
def test_stacked_clients_equal_single_clients(dtype):
    tensors = make(5, 10, 11, dtype=dtype)
    together, mapped = ops.distill_losses(*tensors), torch.vmap(ops.distill_losses)(*tensors)
    for c in range(5):
        for t, m, a in zip(together, mapped, ops.distill_losses(*[x[c] for x in tensors]), strict=True):
            assert same_bits(t[c], a)
            assert same_bits(m[c], a)


def test_second_derivatives_raise():
    *logits, target = make(2, 3)
    leaves = [y.requires_grad_() for y in logits]
    losses = ops.distill_losses(*leaves, target)
    first = torch.autograd.grad(sum(losses), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=r"distill_losses: second derivatives"):
        torch.autograd.grad(first[0].sum(), leaves)
