"""Tests specific to ``linear``: products left to torch, strides, skipped zeros, saved tensors, needed gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops.linear import MIN_PRODUCTS, ROWS
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import FLOATS, each_float

pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")
MIN_OUTPUTS = MIN_PRODUCTS // ROWS.start // 64  # fewest outputs that run natively for ROWS.start rows of 64 values


def native(x, weight, bias=None):
    return torch.ops.pfl_fast.linear.default(x, weight, bias)


def native_backward(grad, x, weight, *needs):
    return torch.ops.pfl_fast.linear_backward.default(grad, x, weight, *(needs or (True, True, True)))


def tensors(rows, inputs, outputs, *clients, dtype=torch.float32):
    shapes = (*clients, rows, inputs), (*clients, outputs, inputs), (*clients, outputs)
    return [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]


def operators_called(function):
    with torch.profiler.profile() as profile:
        function()
    return [event.name for event in profile.events()]


@each_float
def test_integers_are_exact(dtype):
    """Products and sums of small integers are exact, so every path gives torch's bits."""
    generator = torch.Generator().manual_seed(3)
    for b, k, n in [(1, 3, 2), (6, 16, 4), (7, 33, 18), (13, 130, 49), (64, 70, 5)]:
        shapes = (b, k), (n, k), (n,)
        mine = [torch.randint(-1, 2, s, generator=generator).to(dtype).requires_grad_() for s in shapes]
        grad = torch.randint(-1, 2, (b, n), generator=generator).to(dtype)
        expected = functional.linear(*(t.double() for t in mine))
        theirs = torch.autograd.grad(expected, mine, grad.double())
        out = native(*mine)
        assert torch.equal(out, expected.to(dtype))
        pairs = zip(torch.autograd.grad(out, mine, grad), theirs, strict=True)
        assert all(torch.equal(m, t.to(dtype)) for m, t in pairs)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(b=st.integers(1, 70), k=st.integers(1, 1200), n=st.integers(1, 150), dtype=st.sampled_from(FLOATS[:2]))
def test_any_size_against_torch(b, k, n, dtype):
    given = [t.requires_grad_() for t in tensors(b, k, n, dtype=dtype)]
    exact = [t.double() for t in given]
    out, expected = native(*given), functional.linear(*exact)
    grad = torch.randn(b, n, dtype=dtype)
    assert_close(out, expected.to(dtype), "out", scale=10.0 * k**0.5)
    mine = torch.autograd.grad(out, given, grad)
    theirs = torch.autograd.grad(expected, exact, grad.double())
    for m, t, terms in zip(mine, theirs, (n, b, b), strict=True):
        assert_close(m, t.to(dtype), "gradient", scale=10.0 * terms**0.5)


def test_nan_and_infinity_stay_in_their_rows_and_outputs():
    x, weight, bias = tensors(9, 40, 20)
    x[3, 5], weight[7, 39], bias[11] = torch.nan, torch.inf, torch.nan
    assert_close(native(x, weight, bias), functional.linear(x, weight, bias), scale=10.0)
    grad = torch.randn(9, 20)
    grad[2, 19] = torch.nan
    grad_x, grad_weight, grad_bias = native_backward(grad, x, weight)
    assert_close(grad_x, grad @ weight, scale=10.0)
    assert_close(grad_weight, grad.T @ x, scale=10.0)
    assert_close(grad_bias, grad.sum(0), scale=10.0)


@pytest.mark.parametrize("rows", [ROWS.start - 1, ROWS.start, ROWS.stop - 1, ROWS.stop])
def test_torch_computes_one_row_and_many_rows(rows):
    x, weight, bias = tensors(rows, 64, MIN_OUTPUTS)
    names = operators_called(lambda: ops.linear(x, weight, bias))
    assert ("pfl_fast::linear" in names) == (rows in ROWS)
    assert ("aten::linear" in names) == (rows not in ROWS)
    assert_close(ops.linear(x, weight, bias), functional.linear(x, weight, bias), scale=10.0)


def test_torch_computes_small_products():
    x, weight, bias = tensors(ROWS.start, 64, MIN_OUTPUTS)
    assert "pfl_fast::linear" in operators_called(lambda: ops.linear(x, weight, bias))
    assert "pfl_fast::linear" not in operators_called(lambda: ops.linear(x, weight[1:], bias[1:]))


@pytest.mark.parametrize("outputs", [MIN_OUTPUTS, MIN_OUTPUTS - 1])
@pytest.mark.parametrize("bias", [True, False])
def test_stacked_clients_take_the_path_of_single_clients(outputs, bias):
    given = tensors(ROWS.start, 64, outputs, 3)[: 3 if bias else 2]
    for stacked in (lambda: ops.linear(*given), lambda: torch.vmap(ops.linear)(*given)):
        assert ("pfl_fast::linear" in operators_called(stacked)) == (outputs == MIN_OUTPUTS)
        singles = torch.stack([ops.linear(*(t[i] for t in given)) for i in range(3)])
        assert_close(stacked(), singles, scale=10.0)


def test_products_left_to_torch_keep_their_dtype_under_autocast():
    small = tensors(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.linear(*small).dtype == torch.bfloat16
        inside = ops.linear(*small)
    assert same_bits(inside, functional.linear(*small))


@each_float
def test_stacked_clients_equal_single_clients_to_the_bit(dtype):
    stacked = [t.requires_grad_() for t in tensors(10, 100, 70, 4, dtype=dtype)]
    out = native(*stacked)
    gradients = torch.autograd.grad(out.square().sum(), stacked)
    for i in range(4):
        single = [t[i].detach().requires_grad_() for t in stacked]
        alone = native(*single)
        assert same_bits(alone.detach(), out[i].detach())
        expected = torch.autograd.grad(alone.square().sum(), single)
        assert all(same_bits(g[i], e) for g, e in zip(gradients, expected, strict=True))


def sums_rows_in_lanes(rows):
    """Returns whether the forward vectorises over rows, as csrc/linear_kernel.h decides; sums then have one order."""
    return rows > 16 and 5 * rows >= 4 * (rows + 15 >> 4 << 4)


def test_bits_of_a_row_do_not_depend_on_other_rows():
    """Tiling depends on the number of rows. The forward has two orders of summation, the backward one."""
    x, weight, bias = tensors(70, 600, 33)
    for across in (False, True):
        numbers = [b for b in range(1, 71) if sums_rows_in_lanes(b) == across]
        most = native(x[: numbers[-1]], weight, bias)
        assert all(same_bits(native(x[:b], weight, bias), most[:b]) for b in numbers)
    grad = torch.randn(70, 33)
    grads = native_backward(grad, x, weight)[0]
    assert all(same_bits(native_backward(grad[:b], x[:b], weight)[0], grads[:b]) for b in range(1, 70))


def some_zeros(x):
    """Returns x with zeros of either sign in whole columns, in parts of columns and in single values."""
    x = x.clone()
    x[:, ::3] = 0
    x[: len(x) // 2, 1::3] = 0
    x[:, 2::3] *= torch.rand(x[:, 2::3].shape) < 0.5
    x[:, ::6] *= -1
    return x


@pytest.mark.parametrize("rows", [1, 5, 6, 10, 26, 32, 40, 64, 70, 100])
@pytest.mark.parametrize("inputs", [7, 64, 96, 97, 200])
def test_skipping_zeros_does_not_change_the_bits(rows, inputs):
    """Uses integers, whose sums are exact, with zeros in all rows, in some rows, or nowhere."""
    torch.manual_seed(1)
    x, weight, bias = (torch.randint(-3, 4, s).float() for s in ((rows, inputs), (70, inputs), (70,)))
    grad = torch.randint(-3, 4, (rows, 70)).float()
    cases = (some_zeros(x), some_zeros(grad)), (x * 0, grad * 0), (x, some_zeros(grad)), (some_zeros(x), grad)
    for values, grads in cases:
        assert torch.equal(native(values, weight, bias), functional.linear(values, weight, bias))
        expected = grads @ weight, grads.T @ values, grads.sum(0)
        found = native_backward(grads, values, weight)
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def with_zeros(tensor, share):
    return tensor * (torch.rand(tensor.shape) < share)


def sequential_matmul(left, right):
    """Returns ``left @ right`` with products added one after the other."""
    total = torch.zeros(left.shape[0], right.shape[1])
    for i in range(left.shape[1]):
        total += left[:, i : i + 1] * right[i]
    return total


@pytest.mark.parametrize("inputs", [65, 300])
@pytest.mark.parametrize("grad_density", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("x_density", [0.0, 0.2, 0.6, 1.0])
def test_order_of_sums_does_not_depend_on_zeros(x_density, grad_density, inputs):
    """The algorithm depends on the share of zeros; the bits do not."""
    torch.manual_seed(2)
    x, weight, _ = tensors(40, inputs, 110)
    x, grad = with_zeros(x, x_density), with_zeros(torch.randn(40, 110), grad_density)
    grad_x, grad_weight, _ = native_backward(grad, x, weight)
    assert sums_rows_in_lanes(40)
    assert torch.equal(native(x, weight), sequential_matmul(x, weight.T))
    assert torch.equal(grad_x, sequential_matmul(grad, weight))
    assert torch.equal(grad_weight, sequential_matmul(grad.T, x))


def test_a_nonzero_value_in_a_single_row_is_used():
    """The value may be in the last row of a chunk only, or NaN."""
    x, weight, bias = tensors(64, 100, 50)
    x[:31, 5], x[32:, 5], x[:, 7] = 0, 0, 0
    x[63, 7] = torch.nan
    assert_close(native(x, weight, bias), functional.linear(x, weight, bias), scale=20.0)


def test_rows_with_gaps_are_not_copied():
    x, weight, bias = tensors(10, 64, 40)
    wide_x, wide_weight = torch.randn(10, 100), torch.randn(40, 99)
    wide_x[:, 3:67], wide_weight[:, 1:65] = x, weight
    apart = wide_x[:, 3:67], wide_weight[:, 1:65]
    shared = x.expand(3, 10, 64), weight.expand(3, 40, 64)
    grad = torch.randn(10, 40)

    def run():
        out = native(*apart, bias), *native_backward(grad, *apart)
        stacked = native(*shared, bias.expand(3, 40)), *native_backward(grad.expand(3, 10, 40), *shared)
        return out, stacked

    names = operators_called(run)
    assert "aten::copy_" not in names
    assert "aten::contiguous" not in names
    plain = native(x, weight, bias), *native_backward(grad, x, weight)
    out, stacked = run()
    assert all(same_bits(a, p) for a, p in zip(out, plain, strict=True))
    assert all(same_bits(a, p.expand(a.shape)) for a, p in zip(stacked, plain, strict=True))


@pytest.mark.parametrize("clients", [(), (2,), (2, 3)])
def test_gradients_do_not_depend_on_strides(clients):
    x, weight, _ = tensors(6, 20, 9, *clients)
    grad = torch.randn(*clients, 6, 9)
    plain = native_backward(grad, x, weight)
    turned = native_backward(*(t.mT.contiguous().mT for t in (grad, x, weight)))
    assert all(same_bits(p, t) for p, t in zip(plain, turned, strict=True))


def test_expanded_gradient():
    given = [t.requires_grad_() for t in tensors(4, 20, 9, dtype=torch.float64)]
    mine = torch.autograd.grad(native(*given).sum(), given)
    theirs = torch.autograd.grad(functional.linear(*given).sum(), given)
    for m, t in zip(mine, theirs, strict=True):
        assert_close(m, t, scale=10.0)


def test_only_needed_gradients_are_computed():
    x, weight, bias = tensors(3, 20, 9)
    grad = torch.randn(3, 9)
    full = native_backward(grad, x, weight)
    for i in range(8):
        needs = [bool(i >> j & 1) for j in range(3)]
        found = native_backward(grad, x, weight, *needs)
        assert all(
            same_bits(g, f) if needed else g.shape == (0,) for g, f, needed in zip(found, full, needs, strict=True)
        )
        given = [t.clone().requires_grad_(needed) for t, needed in zip((x, weight, bias), needs, strict=True)]
        if any(needs):
            native(*given).backward(grad)
            assert [t.grad is not None for t in given] == needs


def test_backward_saves_only_inputs():
    x, weight, bias = tensors(3, 20, 9)
    weight.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        native(x, weight, bias)
    assert {t.data_ptr() for t in kept} == {x.data_ptr(), weight.data_ptr()}


def test_direct_autograd_function_equals_the_registered_backward():
    """``backend.call`` bypasses torch's wrapper of registered backwards where possible."""
    given = [t.requires_grad_() for t in tensors(ROWS.start, 64, MIN_OUTPUTS)]
    grad = torch.randn(ROWS.start, MIN_OUTPUTS)
    out, registered = ops.linear(*given), native(*given)
    assert type(out.grad_fn) is not type(registered.grad_fn)
    assert same_bits(out.detach(), registered.detach())
    gradients = torch.autograd.grad(out, given, grad, retain_graph=True)
    theirs = torch.autograd.grad(registered, given, grad)
    assert all(same_bits(g, t) for g, t in zip(gradients, theirs, strict=True))
    (only,) = torch.autograd.grad(ops.linear(given[0].detach(), given[1], None), given[1], grad)
    assert same_bits(only, gradients[1])
    batch = torch.stack([grad, 2 * grad])
    batched = torch.vmap(lambda g: torch.autograd.grad(out, given, g, retain_graph=True))(batch)
    at_once = torch.autograd.grad(out, given, batch, is_grads_batched=True)
    for found in (batched, at_once):
        assert all(same_bits(b[0], g) for b, g in zip(found, gradients, strict=True))


def square_sum(*tensors):
    return ops.linear(*tensors).square().sum()


def test_functorch_derivatives_equal_autograd():
    given = tensors(ROWS.start, 64, MIN_OUTPUTS, dtype=torch.float64)
    tracked = [t.clone().requires_grad_() for t in given]
    expected = torch.autograd.grad(square_sum(*tracked), tracked)
    found = torch.func.grad(square_sum, argnums=(0, 1, 2))(*given)
    mapped = torch.vmap(torch.func.grad(square_sum, argnums=(0, 1, 2)))(*(t[None] for t in given))
    for f, m, e in zip(found, mapped, expected, strict=True):
        assert_close(f, e, scale=1e3)
        assert_close(m[0], e, scale=1e3)


def test_compiled_functions_run_the_operator():
    tracked = [t.requires_grad_() for t in tensors(ROWS.start, 64, MIN_OUTPUTS)]
    given = [t.detach().clone().requires_grad_() for t in tracked]
    compiled = torch.compile(square_sum, fullgraph=True, backend="aot_eager")
    assert "pfl_fast::linear" in operators_called(lambda: compiled(*tracked).backward())
    for t, e in zip(tracked, torch.autograd.grad(square_sum(*given), given), strict=True):
        assert same_bits(t.grad, e)


def test_second_derivatives_raise():
    x, weight, bias = (t.requires_grad_() for t in tensors(ROWS.start, 64, MIN_OUTPUTS))
    (gradient,) = torch.autograd.grad(ops.linear(x, weight, bias).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="linear: second derivatives are not implemented"):
        gradient.sum().backward()


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, True)])
def test_invalid_gradients_raise_a_clear_error(needs):
    x, weight, _ = tensors(3, 20, 9)
    with pytest.raises(RuntimeError, match=r"linear_backward: grad must have the shape of the result.*got \[3, 8\]"):
        native_backward(torch.randn(3, 8), x, weight, *needs)
    with pytest.raises(RuntimeError, match=r"linear_backward: grad must have the dtype of x"):
        native_backward(torch.randn(3, 9).double(), x, weight, *needs)
