"""Tests specific to ``sgd_``: equality with torch.optim.SGD, in-place updates of views."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations

SETTINGS = [
    {},
    {"weight_decay": 5e-4},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 1e-2},
    {"momentum": 0.9, "weight_decay": 1e-2, "nesterov": True},
    {"momentum": 0.5, "dampening": 0.25},
]


def torch_fuses():
    """Returns whether torch's add with alpha is a fused multiply-add on this processor (AVX2 or later)."""
    a = torch.full((64,), 1 + 2.0**-12)
    return torch.add(torch.full((64,), -1.0), a, alpha=1 + 2.0**-12)[0].item() == 2.0**-11 + 2.0**-24


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_torch_optim(settings, foreach, dtype):
    shapes = [(32, 1, 5, 5), (32,), (5003, 3), ()]
    mine = [torch.randn(s, dtype=dtype) for s in shapes]
    theirs = [p.clone().requires_grad_() for p in mine]
    buffers = [torch.zeros_like(p) for p in mine]
    optimizer = torch.optim.SGD(theirs, lr=0.05, foreach=foreach, **settings)
    for step in range(4):
        grads = [torch.randn_like(p) for p in mine]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        ops.sgd_(mine, grads, buffers, lr=0.05, first_step=step == 0, **settings)
    for p, q in zip(mine, theirs, strict=True):
        assert_close(p, q.detach())
        assert same_bits(p, q.detach()) or not torch_fuses()


def test_proximal_term_equals_the_explicit_gradient_to_the_bit():
    p, g, center, buffer = (torch.randn(5000) for _ in range(4))
    q, explicit = p.clone(), g.add(p - center, alpha=0.1)
    mine, theirs = buffer.clone(), buffer.clone()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    ops.sgd_([p], [g], [mine], [center], proximal=0.1, **settings)
    ops.sgd_([q], [explicit], [theirs], **settings)
    assert_close(p, q)
    assert (same_bits(p, q) and same_bits(mine, theirs)) or not torch_fuses()


def test_first_step_equals_zero_buffers_without_dampening():
    p, g = torch.randn(100), torch.randn(100)
    results = []
    for first_step in (False, True):
        q, buffer = p.clone(), torch.zeros(100)
        ops.sgd_([q], [g], [buffer], lr=0.1, momentum=0.9, nesterov=True, first_step=first_step)
        results.append((q, buffer))
    assert same_bits(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def strided(kind):
    """Returns a block of memory and the view of it that serves as parameter."""
    if kind == "rows of a block":
        block = torch.randn(6, 5, 3, 3)
        return block, block[1:4]
    if kind == "every second row":
        block = torch.randn(6, 7)
        return block, block[::2]
    if kind == "columns of a block":
        block = torch.randn(5, 40)
        return block, block[:, 3:30]
    if kind == "whole tiles of a block":
        block = torch.randn(3, 4100)
        return block, block[:, 2:4098]
    if kind == "channels last":
        block = torch.randn(4, 6, 5, 3)
        return block, block.permute(0, 3, 1, 2)
    if kind == "slice of channels last":
        block = torch.randn(4, 6, 5, 3)
        return block, block[1:].permute(0, 3, 1, 2)
    if kind == "transposed":
        block = torch.randn(7, 9)
        return block, block.t()
    block = torch.randn(5, 4, 12)
    return block, block[:, 1:3, ::3]  # no contiguous rows


KINDS = [
    *("rows of a block", "every second row", "columns of a block", "whole tiles of a block", "channels last"),
    *("slice of channels last", "transposed", "every third column"),
]


@both_implementations
@pytest.mark.parametrize("like_params", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_views_are_updated_and_nothing_else(kind, like_params, implementation):
    block, param = strided(kind)
    buffer_block, buffer = strided(kind)
    before, buffer_before = block.clone(), buffer_block.clone()
    plain, plain_buffer = param.clone(memory_format=torch.contiguous_format), buffer.contiguous().clone()
    # Rows are updated in place if all tensors have them; an expanded center has no rows.
    grad = strided(kind)[1] if like_params else torch.randn(param.shape)
    center = strided(kind)[1] if like_params else torch.randn(()).expand(param.shape)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "proximal": 0.3}
    with ops.use(implementation):
        ops.sgd_([param], [grad], [buffer], [center], **settings)
    ops.sgd_([plain], [grad.contiguous()], [plain_buffer], [center.contiguous()], **settings)
    assert_close(param.contiguous(), plain)
    assert_close(buffer.contiguous(), plain_buffer)
    if implementation == "native":
        assert same_bits(param, plain)
    for memory, view, old in ((block, param, before), (buffer_block, buffer, buffer_before)):
        untouched = torch.ones_like(memory, dtype=torch.bool)
        untouched.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
        assert torch.equal(memory[untouched], old[untouched])


def test_stacked_blocks_equal_single_clients():
    block, grads, buffers = torch.randn(5, 33, 7), torch.randn(5, 33, 7), torch.randn(5, 33, 7)
    one_by_one, its_buffers = block.clone(), buffers.clone()
    ops.sgd_([block], [grads], [buffers], lr=0.1, momentum=0.9, weight_decay=0.01)
    for n in range(5):
        ops.sgd_([one_by_one[n]], [grads[n]], [its_buffers[n]], lr=0.1, momentum=0.9, weight_decay=0.01)
    assert same_bits(block, one_by_one)
    assert same_bits(buffers, its_buffers)


def test_half_types_round_once():
    for dtype in (torch.bfloat16, torch.float16):
        p, g, m = (torch.randn(3001).to(dtype) for _ in range(3))
        wide, wide_momentum = p.float(), m.float()
        ops.sgd_([wide], [g.float()], [wide_momentum], lr=0.1, momentum=0.9, weight_decay=0.01)
        ops.sgd_([p], [g], [m], lr=0.1, momentum=0.9, weight_decay=0.01)
        assert same_bits(p, wide.to(dtype))
        assert same_bits(m, wide_momentum.to(dtype))


@both_implementations
def test_parameters_of_a_model_may_require_gradients(implementation):
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    expected = layer.weight.detach() - 0.5
    params = list(layer.parameters())
    with ops.use(implementation):
        ops.sgd_(params, [p.grad for p in params], lr=0.5)
    assert_close(layer.weight.detach(), expected)
    assert layer.weight.requires_grad
    assert layer.weight.grad_fn is None


def test_backward_raises_if_a_saved_tensor_changed():
    weight = torch.ones(3, requires_grad=True)
    loss = (weight**2).sum()
    ops.sgd_([weight], [torch.ones(3)], lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_vmap_updates_the_stacked_tensors_in_place():
    block, grads, shared = torch.randn(4, 3, 2), torch.randn(4, 3, 2), torch.randn(3, 2)
    expected = block - 0.1 * (grads + 0.5 * (block - shared))
    torch.vmap(lambda p, g: ops.sgd_([p], [g], center=[shared], lr=0.1, proximal=0.5) or p)(block, grads)
    assert_close(block, expected)


def test_vmap_refuses_to_write_many_results_into_one_tensor():
    shared = torch.randn(3)
    with pytest.raises(RuntimeError, match=r"sgd_: params\[0\] must be batched by vmap"):
        torch.vmap(lambda g: ops.sgd_([shared], [g], lr=0.1) or g)(torch.randn(2, 3))


def test_expanded_parameters_raise():
    with pytest.raises(RuntimeError, match=r"sgd_: params\[0\] must not be expanded.*dimension 0"):
        ops.sgd_([torch.ones(1).expand(3)], [torch.ones(3)], lr=0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_the_form_of_recorded_programs_is_the_same_step(momentum, proximal):
    p, g, m, c = torch.randn(4, 3, 5, dtype=torch.float64)
    expected, buffer = p.clone(), m.clone()
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01, "proximal": proximal}
    ops.sgd_([expected], [g], [buffer], [c], **settings)
    options = (0.1, momentum, 0.0, 0.01, False, proximal, False)
    step = torch.ops.pfl_fast.sgd_tensor_
    step(p, g, m if momentum else None, c if proximal else None, *options)
    assert torch.equal(p, expected)
    assert torch.equal(m, buffer)


def test_the_form_of_recorded_programs_under_vmap():
    p, g = torch.randn(2, 4, 3)
    stacked = p.clone()
    torch.vmap(lambda p, g: torch.ops.pfl_fast.sgd_tensor_(p, g, None, None, 0.1, 0, 0, 0, False, 0, False) or p)(
        stacked, g
    )
    ops.sgd_([p], [g], lr=0.1)
    assert torch.equal(p, stacked)
