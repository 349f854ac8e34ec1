"""Tests specific to ``linear_step_``: equality with ``sgd_``, tensors not written to, strides, autograd."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits

pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")


def tensors(rows=10, inputs=70, outputs=55, *clients, dtype=torch.float32):
    shapes = (*clients, outputs, inputs), (*clients, rows, outputs), (*clients, rows, inputs)
    return [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]


def stepped(weight, grad, x, **options):
    result = weight.clone()
    ops.linear_step_(result, grad, x, **{"lr": 0.1, **options})
    return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_equals_gradient_and_sgd_to_the_bit(dtype, weight_decay):
    for rows, inputs, outputs in [(1, 3, 2), (10, 130, 60), (64, 512, 100)]:
        weight, grad, x = tensors(rows, inputs, outputs, dtype=dtype)
        grad[:, ::3] = 0
        grad[: rows // 2, 1::3] = 0
        gradient = torch.ops.pfl_fast.linear_backward(grad, x, weight, False, True, False)[1]
        expected = weight.clone()
        ops.sgd_([expected], [gradient], lr=0.1, weight_decay=weight_decay)
        assert same_bits(stepped(weight, grad, x, weight_decay=weight_decay), expected)
        elsewhere = torch.full_like(weight, 7.0)
        ops.linear_step_(elsewhere, grad, x, lr=0.1, weight_decay=weight_decay, start=weight)
        assert same_bits(elsewhere, expected)


def test_start_is_not_modified():
    weight, grad, x = tensors()
    start, before = weight.clone(), weight.clone()
    ops.linear_step_(weight, grad, x, lr=0.1, start=start)
    assert same_bits(start, before)
    assert not same_bits(weight, before)


def test_rows_without_a_gradient_are_not_written():
    weight, grad, x = tensors()
    grad[:, 3] = 0
    weight[3, 0] = torch.nan
    result = stepped(weight, grad, x)
    assert same_bits(result[3], weight[3])
    assert bool(torch.isfinite(result[[i for i in range(55) if i != 3]]).all())


def test_stacked_clients_equal_single_clients_to_the_bit():
    weight, grad, x = tensors(5, 70, 55, 3)
    grad[1, :, ::2] = 0
    x[2, :, ::2] = 0
    whole = stepped(weight, grad, x)
    assert all(same_bits(whole[i], stepped(weight[i], grad[i], x[i])) for i in range(3))


def test_slices_are_updated_in_place_and_other_strides_through_a_copy():
    weight, grad, x = tensors()
    expected = stepped(weight, grad, x)
    wide = torch.full((55, 99), 5.0)
    for part in (wide[:, 3:73], torch.full((70, 55), 5.0).T):
        part.copy_(weight)
        ops.linear_step_(part, grad, x, lr=0.1)
        assert same_bits(part, expected)
    assert bool((wide[:, :3] == 5).all() and (wide[:, 73:] == 5).all())
    assert same_bits(stepped(weight, grad.T.contiguous().T, x.T.contiguous().T), expected)


def test_expanded_weights_raise():
    _, grad, x = tensors()
    with pytest.raises(RuntimeError, match=r"linear_step_: weight must not be expanded.*stride 0 in dimension 0"):
        ops.linear_step_(torch.zeros(1, 70).expand(55, 70), grad, x, lr=0.1)


def test_backward_raises_if_a_saved_weight_changed():
    weight, grad, x = tensors()
    weight.requires_grad_()
    loss = (x.requires_grad_() @ weight.T).square().sum()
    ops.linear_step_(weight, grad, x.detach(), lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_rows_only_weight_decay_is_applied():
    weight, grad, x = tensors(rows=0)
    assert_close(stepped(weight, grad, x, weight_decay=0.5), weight * (1 - 0.1 * 0.5))
