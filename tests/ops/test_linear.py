"""What is special to ``linear``: which products torch does, strides, what is kept and what is computed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops.linear import MIN_PRODUCTS, ROWS
from pfl_fast.testing import assert_close, same_bits

pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ENOUGH = MIN_PRODUCTS // ROWS.start // 64  # outputs for the fewest rows of 64 values


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


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_are_exact(dtype):
    """Products and sums of small integers have no rounding: every path gives torch's bits."""
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
def test_torch_does_what_has_one_row_or_many(rows):
    x, weight, bias = tensors(rows, 64, ENOUGH)
    names = operators_called(lambda: ops.linear(x, weight, bias))
    assert ("pfl_fast::linear" in names) == (rows in ROWS)
    assert ("aten::linear" in names) == (rows not in ROWS)
    assert_close(ops.linear(x, weight, bias), functional.linear(x, weight, bias), scale=10.0)


def test_torch_does_what_is_little_work():
    x, weight, bias = tensors(ROWS.start, 64, ENOUGH)
    assert "pfl_fast::linear" in operators_called(lambda: ops.linear(x, weight, bias))
    assert "pfl_fast::linear" not in operators_called(lambda: ops.linear(x, weight[1:], bias[1:]))


@pytest.mark.parametrize("outputs", [ENOUGH, ENOUGH - 1])
@pytest.mark.parametrize("bias", [True, False])
def test_stacked_and_mapped_clients_are_decided_like_single_ones(outputs, bias):
    given = tensors(ROWS.start, 64, outputs, 3)[: 3 if bias else 2]
    for stacked in (lambda: ops.linear(*given), lambda: torch.vmap(ops.linear)(*given)):
        assert ("pfl_fast::linear" in operators_called(stacked)) == (outputs == ENOUGH)
        singles = torch.stack([ops.linear(*(t[i] for t in given)) for i in range(3)])
        assert_close(stacked(), singles, scale=10.0)


def test_what_torch_does_keeps_its_type_under_autocast():
    small = tensors(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.linear(*small).dtype == torch.bfloat16
        inside = ops.linear(*small)
    assert same_bits(inside, functional.linear(*small))


@pytest.mark.parametrize("dtype", FLOATS)
def test_stacked_clients_have_the_bits_of_single_ones(dtype):
    stacked = [t.requires_grad_() for t in tensors(10, 100, 70, 4, dtype=dtype)]
    out = native(*stacked)
    gradients = torch.autograd.grad(out.square().sum(), stacked)
    for i in range(4):
        single = [t[i].detach().requires_grad_() for t in stacked]
        alone = native(*single)
        assert same_bits(alone.detach(), out[i].detach())
        expected = torch.autograd.grad(alone.square().sum(), single)
        assert all(same_bits(g[i], e) for g, e in zip(gradients, expected, strict=True))


def lanes_lie_across(rows):
    """As csrc/linear_kernel.h decides it: whether a forward's sums lie side by side, and so have one order."""
    return rows > 16 and 5 * rows >= 4 * (rows + 15 >> 4 << 4)


def test_a_row_has_the_same_bits_among_any_others():
    """Tiles of rows differ with their number. Sums have one of two orders in the forward, and one in the backward."""
    x, weight, bias = tensors(70, 600, 33)
    for across in (False, True):
        numbers = [b for b in range(1, 71) if lanes_lie_across(b) == across]
        most = native(x[: numbers[-1]], weight, bias)
        assert all(same_bits(native(x[:b], weight, bias), most[:b]) for b in numbers)
    grad = torch.randn(70, 33)
    grads = native_backward(grad, x, weight)[0]
    assert all(same_bits(native_backward(grad[:b], x[:b], weight)[0], grads[:b]) for b in range(1, 70))


def some_zeros(x):
    """Whole columns, columns in some rows, and single values are zero, of either sign."""
    x = x.clone()
    x[:, ::3] = 0
    x[: len(x) // 2, 1::3] = 0
    x[:, 2::3] *= torch.rand(x[:, 2::3].shape) < 0.5
    x[:, ::6] *= -1
    return x


@pytest.mark.parametrize("rows", [1, 5, 6, 10, 26, 32, 40, 64, 70, 100])
@pytest.mark.parametrize("inputs", [7, 64, 96, 97, 200])
def test_zeros_that_are_left_out_change_no_bit(rows, inputs):
    """Integers have no rounding; what is left out is zero in all rows, in some, or nowhere."""
    torch.manual_seed(1)
    x, weight, bias = (torch.randint(-3, 4, s).float() for s in ((rows, inputs), (70, inputs), (70,)))
    grad = torch.randint(-3, 4, (rows, 70)).float()
    cases = (some_zeros(x), some_zeros(grad)), (x * 0, grad * 0), (x, some_zeros(grad)), (some_zeros(x), grad)
    for values, grads in cases:
        assert torch.equal(native(values, weight, bias), functional.linear(values, weight, bias))
        expected = grads @ weight, grads.T @ values, grads.sum(0)
        found = native_backward(grads, values, weight)
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def thinned(tensor, share):
    return tensor * (torch.rand(tensor.shape) < share)


def in_order(left, right):
    """``left @ right``, products and sums rounded one after the other."""
    total = torch.zeros(left.shape[0], right.shape[1])
    for i in range(left.shape[1]):
        total += left[:, i : i + 1] * right[i]
    return total


@pytest.mark.parametrize("inputs", [65, 300])
@pytest.mark.parametrize("of_grad", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("of_x", [0.0, 0.2, 0.6, 1.0])
def test_whatever_is_left_out_sums_have_one_order(of_x, of_grad, inputs):
    """Which way a product goes depends on how much of its factors is zero; its bits do not."""
    torch.manual_seed(2)
    x, weight, _ = tensors(40, inputs, 110)
    x, grad = thinned(x, of_x), thinned(torch.randn(40, 110), of_grad)
    grad_x, grad_weight, _ = native_backward(grad, x, weight)
    assert lanes_lie_across(40)
    assert torch.equal(native(x, weight), in_order(x, weight.T))
    assert torch.equal(grad_x, in_order(grad, weight))
    assert torch.equal(grad_weight, in_order(grad.T, x))


def test_a_single_row_is_not_left_out_with_the_others():
    """A value in the last row of a chunk alone is used, and NaN is not zero."""
    x, weight, bias = tensors(64, 100, 50)
    x[:31, 5], x[32:, 5], x[:, 7] = 0, 0, 0
    x[63, 7] = torch.nan
    assert_close(native(x, weight, bias), functional.linear(x, weight, bias), scale=20.0)


def test_rows_apart_are_not_copied():
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


def test_one_value_expanded_is_a_gradient_too():
    given = [t.requires_grad_() for t in tensors(4, 20, 9, dtype=torch.float64)]
    mine = torch.autograd.grad(native(*given).sum(), given)
    theirs = torch.autograd.grad(functional.linear(*given).sum(), given)
    for m, t in zip(mine, theirs, strict=True):
        assert_close(m, t, scale=10.0)


def test_only_the_gradients_that_are_needed_are_computed():
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


def test_the_inputs_are_all_that_is_kept():
    x, weight, bias = tensors(3, 20, 9)
    weight.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        native(x, weight, bias)
    assert {t.data_ptr() for t in kept} == {x.data_ptr(), weight.data_ptr()}


def test_the_short_way_to_gradients_is_the_registered_one():
    """The function does without what torch wraps around registered gradients, where it can."""
    given = [t.requires_grad_() for t in tensors(ROWS.start, 64, ENOUGH)]
    grad = torch.randn(ROWS.start, ENOUGH)
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


def test_derivatives_of_functions_are_torchs():
    given = tensors(ROWS.start, 64, ENOUGH, dtype=torch.float64)
    tracked = [t.clone().requires_grad_() for t in given]
    expected = torch.autograd.grad(square_sum(*tracked), tracked)
    found = torch.func.grad(square_sum, argnums=(0, 1, 2))(*given)
    mapped = torch.vmap(torch.func.grad(square_sum, argnums=(0, 1, 2)))(*(t[None] for t in given))
    for f, m, e in zip(found, mapped, expected, strict=True):
        assert_close(f, e, scale=1e3)
        assert_close(m[0], e, scale=1e3)


def test_compiled_functions_run_the_operator():
    tracked = [t.requires_grad_() for t in tensors(ROWS.start, 64, ENOUGH)]
    given = [t.detach().clone().requires_grad_() for t in tracked]
    compiled = torch.compile(square_sum, fullgraph=True, backend="aot_eager")
    assert "pfl_fast::linear" in operators_called(lambda: compiled(*tracked).backward())
    for t, e in zip(tracked, torch.autograd.grad(square_sum(*given), given), strict=True):
        assert same_bits(t.grad, e)


def test_second_derivatives_are_refused_by_name():
    x, weight, bias = (t.requires_grad_() for t in tensors(ROWS.start, 64, ENOUGH))
    (gradient,) = torch.autograd.grad(ops.linear(x, weight, bias).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="linear: second derivatives are not implemented"):
        gradient.sum().backward()


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, True)])
def test_wrong_gradients_are_named(needs):
    x, weight, _ = tensors(3, 20, 9)
    with pytest.raises(RuntimeError, match=r"linear_backward: grad must have the shape of the result.*got \[3, 8\]"):
        native_backward(torch.randn(3, 8), x, weight, *needs)
    with pytest.raises(RuntimeError, match=r"linear_backward: grad must have the dtype of x"):
        native_backward(torch.randn(3, 9).double(), x, weight, *needs)
