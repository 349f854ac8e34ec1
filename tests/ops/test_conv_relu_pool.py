"""Tests specific to ``conv_relu_pool``: positions of maxima, memory formats, saved tensors, needed gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.nonfinite import gradients_not_finite
from tests.ops.operators import each_float

pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")


def layers(x, weight, bias, padding=0):
    return functional.max_pool2d(torch.relu(functional.conv2d(x, weight, bias, padding=padding)), 2)


def leaves(*shapes):
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


def windows(*pixels):
    """Returns one sample of one channel made of 2x2 windows side by side, each given row by row."""
    return torch.tensor(pixels).view(-1, 2, 2).permute(1, 0, 2).reshape(1, 1, 2, -1)


def index_of(x):
    """Returns pooled values and positions of the maxima with an identity convolution."""
    one = torch.ones(1, 1, 1, 1, dtype=x.dtype)
    out, index = torch.ops.pfl_fast.conv_relu_pool(x, one, torch.zeros(1, dtype=x.dtype), 0)
    return out.flatten().tolist(), index.flatten().tolist()


@each_float
def test_the_first_of_equal_pixels_is_the_maximum_and_none_if_relu_is_zero(dtype):
    x = windows([1.0, 1, 1, 1], [0, 2, 2, 1], [-1, 0, 3, 3], [-4, -3, -2, -1], [0, 0, 0, 0], [1, 2, 3, 4.0]).to(dtype)
    assert index_of(x) == ([1, 2, 3, 0, 0, 4], [0, 1, 2, 4, 4, 3])


@each_float
def test_gradients_of_ties_equal_torchs(dtype):
    """Uses small integers: sums are exact in every dtype, and many are equal."""
    generator = torch.Generator().manual_seed(3)
    shapes = (3, 2, 9, 10), (17, 2, 3, 3), (17,)
    given = [torch.randint(-1, 2, s, generator=generator).to(dtype) for s in shapes]
    mine, theirs = ([t.clone().requires_grad_() for t in given] for _ in range(2))
    out, expected = ops.conv_relu_pool(*mine), layers(*theirs)
    grad = torch.randint(-2, 3, out.shape, generator=generator).to(dtype)
    assert torch.equal(out, expected)
    pairs = zip(torch.autograd.grad(out, mine, grad), torch.autograd.grad(expected, theirs, grad), strict=True)
    assert all(torch.equal(a, e) for a, e in pairs)


@each_float
def test_nan_and_infinity_are_pooled_as_in_torch(dtype):
    nan, inf = torch.nan, torch.inf
    x = windows([nan, 5.0, 1, 1], [1, nan, nan, 2], [-inf, -inf, -inf, nan], [1, inf, 2, inf], [-inf] * 4).to(dtype)
    values, index = index_of(x)
    _, theirs = functional.max_pool2d(torch.relu(x), 2, return_indices=True)
    assert index == [0, 2, 3, 1, 4]
    assert torch.tensor(values[:4]).isnan().tolist() == [True, True, True, False]
    assert values[3:] == [inf, 0]
    rows, columns = theirs.flatten() // x.shape[-1], theirs.flatten() % x.shape[-1]
    assert (2 * rows + columns % 2).tolist()[:4] == index[:4]


def test_one_nan_affects_the_results_that_read_it():
    x = torch.randn(2, 1, 12, 12)
    x[1, 0, 5, 6] = torch.nan
    weight, bias = torch.randn(20, 1, 3, 3), torch.randn(20)
    assert_close(ops.conv_relu_pool(x, weight, bias), layers(x, weight, bias))


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 7),
    extra=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    channels=st.integers(1, 5),
    outputs=st.integers(1, 70),
    data=st.data(),
)
def test_any_size_against_the_layers(kernel, extra, channels, outputs, data):
    padding = data.draw(st.integers(0, kernel - 1))
    size = [max(1, kernel + n - 2 * padding) for n in extra]
    inputs = leaves((2, channels, *size), (outputs, channels, kernel, kernel), (outputs,))
    out, expected = ops.conv_relu_pool(*inputs, padding), layers(*inputs, padding)
    grad = torch.randn(out.shape, dtype=torch.float64)
    assert_close(out, expected, "out", scale=100.0)
    for a, e in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        assert_close(a, e, "gradient", scale=1000.0)


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 6),
    size=st.tuples(st.integers(6, 24), st.integers(6, 24)),
    channels=st.integers(8, 40),
    outputs=st.integers(1, 70),
    padding=st.integers(0, 4),
)
def test_tiles_of_any_size_against_the_layers(samples, size, channels, outputs, padding):
    """Tests the Winograd algorithm, used for 5 x 5 kernels over many channels."""
    inputs = leaves((samples, channels, *size), (outputs, channels, 5, 5), (outputs,))
    out, expected = ops.conv_relu_pool(*inputs, padding), layers(*inputs, padding)
    grad = torch.randn(out.shape, dtype=torch.float64)
    assert_close(out, expected, "out", scale=1e4)
    for a, e in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        assert_close(a, e, "gradient", scale=1e5)


def test_winograd_is_accurate():
    """Compares float32 with float64 for the second layer of the CNN."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(10, 32, 12, 12, generator=generator).relu()
    weight, bias = 0.03 * torch.randn(64, 32, 5, 5, generator=generator), torch.zeros(64)
    forward, backward = torch.ops.pfl_fast.conv_relu_pool, torch.ops.pfl_fast.conv_relu_pool_backward
    exact, index = forward(x.double(), weight.double(), bias.double(), 0)
    grad = torch.randn(exact.shape, generator=generator)
    # Uses the same positions: of two pixels that differ by rounding only, either may be the maximum.
    gradients = backward(grad, x, weight, index, 0, True, True)
    exact_gradients = backward(grad.double(), x.double(), weight.double(), index, 0, True, True)
    results = forward(x, weight, bias, 0)[0], *gradients
    for a, e in zip(results, (exact, *exact_gradients), strict=True):
        assert (a.double() - e).square().mean().sqrt() / e.std() < 1e-5


@pytest.mark.parametrize(("kernel", "channels"), [(3, 2), (5, 8)], ids=["direct", "Winograd"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["x", "weight", "grad"])
def test_gradients_are_not_finite_where_a_term_is_not(name, value, kernel, channels):
    """The CPU kernels may make more of them NaN; tests/emulation asserts that the CUDA kernels do not."""
    generator = torch.Generator().manual_seed(9)
    shapes = {"x": (2, channels, 12, 10), "weight": (5, channels, kernel, kernel), "bias": (5,)}
    tensors = {part: torch.randn(shape, generator=generator) for part, shape in shapes.items()}
    forward, backward = torch.ops.pfl_fast.conv_relu_pool, torch.ops.pfl_fast.conv_relu_pool_backward
    if name != "grad":
        tensors[name][1, 1, 2, 2] = value
    out, index = forward(*tensors.values(), 1)
    grad = torch.randn(out.shape, generator=generator)
    if name == "grad":
        grad[1, 1, 2, 2] = value
    masks = gradients_not_finite(tensors["x"], tensors["weight"], index, grad, 1)
    gradients = backward(grad, tensors["x"], tensors["weight"], index, 1, True, True)
    for gradient, mask in zip(gradients, masks, strict=True):
        assert not gradient[mask].isfinite().any()
    assert any(mask.any() for mask in masks) or value == -torch.inf


def test_one_nan_affects_only_the_winograd_tiles_that_read_it():
    x, weight, bias = torch.randn(2, 8, 20, 20), torch.randn(16, 8, 5, 5), torch.randn(16)
    clean = ops.conv_relu_pool(x, weight, bias)
    x[1, 3, 9, 9] = torch.nan
    out, expected = ops.conv_relu_pool(x, weight, bias), layers(x, weight, bias)
    assert out[expected.isnan()].isnan().all()
    assert same_bits(out[0], clean[0])
    assert same_bits(out[1, :, :2], clean[1, :, :2])  # the first row of tiles does not read the NaN


@pytest.mark.parametrize("channels", [1, 3, 9])
@pytest.mark.parametrize("clients", [(), (2,), (2, 3)])
def test_results_are_channels_last_for_every_input_format(clients, channels):
    x = torch.randn(*clients, 4, channels, 12, 12)
    last = x.movedim(-3, -1).contiguous().movedim(-1, -3)
    weight, bias = torch.randn(*clients, 32, channels, 5, 5), torch.randn(*clients, 32)
    outs = [ops.conv_relu_pool(images, weight, bias) for images in (x, last)]
    assert same_bits(*outs)
    for out in outs:
        assert out.movedim(-3, -1).is_contiguous()
        assert clients or out.is_contiguous(memory_format=torch.channels_last)


def test_next_layer_keeps_the_memory_format():
    x, weight, bias = torch.randn(4, 1, 16, 16), torch.randn(8, 1, 5, 5), torch.randn(8)
    out = ops.conv_relu_pool(x, weight, bias)
    following = functional.conv2d(out, torch.randn(16, 8, 3, 3))
    assert following.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("channels", "kernel"), [(3, 4), (19, 5)])
@pytest.mark.parametrize("clients", [(), (3,), (2, 3)])
def test_gradients_do_not_depend_on_the_memory_format_of_the_inputs(clients, channels, kernel):
    x, weight = torch.randn(*clients, 3, channels, 9, 11), torch.randn(*clients, 18, channels, kernel, kernel)
    out, index = torch.ops.pfl_fast.conv_relu_pool(x, weight, torch.randn(*clients, 18), 1)
    grad = torch.randn(out.shape)

    def backward(order):
        given = [order(t) for t in (grad, x, weight, index)]
        return torch.ops.pfl_fast.conv_relu_pool_backward(*given, 1, True, True)

    plain = backward(lambda t: t.contiguous())
    last = backward(lambda t: t.movedim(-3, -1).contiguous().movedim(-1, -3))
    assert all(same_bits(p, q) for p, q in zip(plain, last, strict=True))
    if len(clients) < 2:
        assert [t.stride(-3) for t in last[:2]] == [1, 1]  # gradients have the memory format of their tensors


def test_expanded_gradient():
    inputs = leaves((2, 1, 8, 8), (5, 1, 3, 3), (5,))
    mine = torch.autograd.grad(ops.conv_relu_pool(*inputs).sum(), inputs)
    theirs = torch.autograd.grad(layers(*inputs).sum(), inputs)
    for a, e in zip(mine, theirs, strict=True):
        assert_close(a, e)


def test_shared_images_and_other_memory_formats_are_not_copied():
    x = torch.randn(4, 3, 9, 9).contiguous(memory_format=torch.channels_last).expand(3, 4, 3, 9, 9)
    weight, bias = torch.randn(3, 6, 3, 5, 5), torch.randn(3, 6)
    with torch.profiler.profile() as profile:
        out, index = torch.ops.pfl_fast.conv_relu_pool(x, weight, bias, 0)
        torch.ops.pfl_fast.conv_relu_pool_backward(out.contiguous(), x, weight, index, 0, True, True)
    names = [event.name for event in profile.events()]
    assert names.count("pfl_fast::conv_relu_pool") == 1
    assert names.count("aten::copy_") == 1  # the gradient
    assert same_bits(out, torch.stack([ops.conv_relu_pool(x[i], weight[i], bias[i]) for i in range(3)]))


@pytest.mark.parametrize("channels", [3, 32])
def test_stacked_clients_equal_single_clients_to_the_bit(channels):
    x, weight, bias = torch.randn(4, 10, channels, 12, 12), torch.randn(4, 32, channels, 5, 5), torch.randn(4, 32)
    stacked = [t.requires_grad_() for t in (x, weight, bias)]
    gradients = torch.autograd.grad(ops.conv_relu_pool(*stacked).square().sum(), stacked)
    for i in range(4):
        single = [t[i].detach().requires_grad_() for t in stacked]
        out = ops.conv_relu_pool(*single)
        assert same_bits(out.detach(), ops.conv_relu_pool(*stacked)[i].detach())
        expected = torch.autograd.grad(out.square().sum(), single)
        assert all(same_bits(g[i], e) for g, e in zip(gradients, expected, strict=True))


def test_only_needed_gradients_are_computed():
    x, weight, bias = torch.randn(2, 1, 8, 8), torch.randn(5, 1, 3, 3), torch.randn(5)
    out, index = torch.ops.pfl_fast.conv_relu_pool(x, weight, bias, 0)
    backward = torch.ops.pfl_fast.conv_relu_pool_backward
    assert [g.numel() for g in backward(out, x, weight, index, 0, False, True)] == [0, 45, 5]
    assert [g.numel() for g in backward(out, x, weight, index, 0, True, False)] == [128, 0, 0]
    for wanted in ([0], [1], [2], [1, 2]):
        tensors = [t.clone().requires_grad_(i in wanted) for i, t in enumerate((x, weight, bias))]
        chosen = [tensors[i] for i in wanted]
        mine = torch.autograd.grad(ops.conv_relu_pool(*tensors).sum(), chosen)
        theirs = torch.autograd.grad(reference.conv_relu_pool(*tensors).sum(), chosen)
        for a, e in zip(mine, theirs, strict=True):
            assert_close(a, e, f"{wanted}", scale=10.0)


def test_backward_saves_the_inputs_and_one_byte_per_result():
    x, weight, bias = torch.randn(2, 1, 8, 8), torch.randn(5, 1, 3, 3).requires_grad_(), torch.randn(5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = ops.conv_relu_pool(x, weight, bias)
    new = [t for t in kept if t.data_ptr() not in (x.data_ptr(), weight.data_ptr())]
    assert [(t.dtype, t.shape) for t in new] == [(torch.uint8, out.shape)]


def test_second_derivatives_raise():
    x, weight, bias = leaves((1, 1, 6, 6), (2, 1, 3, 3), (2,))
    (gradient,) = torch.autograd.grad(ops.conv_relu_pool(x, weight, bias).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="conv_relu_pool: second derivatives are not implemented"):
        gradient.sum().backward()


def test_invalid_gradients_raise_a_clear_error():
    x, weight, bias = torch.randn(2, 1, 8, 8), torch.randn(5, 1, 3, 3), torch.randn(5)
    out, index = torch.ops.pfl_fast.conv_relu_pool(x, weight, bias, 0)
    backward = torch.ops.pfl_fast.conv_relu_pool_backward
    with pytest.raises(RuntimeError, match=r"grad must have the shape of the result.* 5, 3, 3\].*got \[2, 5, 3, 2\]"):
        backward(out[..., :2], x, weight, index, 0, False, True)
    with pytest.raises(RuntimeError, match=r"index must be uint8"):
        backward(out, x, weight, index.long(), 0, False, True)
