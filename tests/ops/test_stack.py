import pytest
import torch

from pfl_fast.ops.stack import StackFunction, stack_of

X, W = torch.arange(12.0).view(2, 3, 2), torch.arange(4.0).view(2, 2)


class Scaled(StackFunction):
    """``x [C, b, k]`` times ``w [C, k]``."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w[:, None]

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w[:, None], (grad * x).sum(1)


def scaled(x, w):
    stack = stack_of(x, w)
    return None if stack is None else stack.call(Scaled.apply, *stack.tensors)


def test_the_function_gets_the_whole_stack_and_is_differentiable():
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    found = torch.vmap(scaled)(x, w)
    expected = torch.vmap(torch.mul)(x, w)
    assert torch.equal(found, expected)
    mine, theirs = (torch.autograd.grad(y.square().sum(), [x, w]) for y in (found, expected))
    assert all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0), (0, 1)])
def test_tensors_of_one_client_and_other_dimensions_are_stacked_first(dims):
    x = X[0] if dims[0] is None else X.movedim(0, dims[0])
    w = W[0] if dims[1] is None else W.movedim(0, dims[1])
    assert torch.equal(torch.vmap(scaled, dims)(x, w), torch.vmap(torch.mul, dims)(x, w))


def test_missing_tensors_stay_missing():
    def count(x):
        stack = stack_of(None, x)
        assert stack.tensors[0] is None
        return stack.call(torch.sum, stack.tensors[1], 1)

    assert torch.equal(torch.vmap(count)(W), W.sum(1))


def test_no_stack_outside_of_vmap_and_inside_other_transforms():
    found = []

    def ask(x):
        found.append(stack_of(x))
        return x.sum()

    ask(X)
    torch.vmap(torch.vmap(ask))(X)
    torch.func.grad(ask)(W[0])
    torch.vmap(torch.func.grad(ask))(W)
    torch.vmap(lambda x: stack_of(W) is None and x)(X)
    assert found == [None] * 4
