"""Contract test of all operators: values, gradients, transforms, memory layouts, edge cases, errors."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import library

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, operators

OPERATORS = operators()
pytestmark = pytest.mark.skipif(not ops.NATIVE.available, reason=f"no native library: {ops.NATIVE.problem}")
each_operator = pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
each_differentiable = pytest.mark.parametrize("op", [o for o in OPERATORS if o.differentiable], ids=lambda op: op.name)
each_dtype = pytest.mark.parametrize(
    ("op", "dtype"), [pytest.param(op, d, id=f"{op.name}-{d}") for op in OPERATORS for d in op.dtypes]
)
each_differentiable_dtype = pytest.mark.parametrize(
    ("op", "dtype"),
    [pytest.param(op, d, id=f"{op.name}-{d}") for op in OPERATORS if op.differentiable for d in op.dtypes],
)
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


def inputs(sample, device="cpu", requires_grad=False):
    tensors = [t.to(device) for t in sample.tensors]
    return [t.clone().requires_grad_() if requires_grad and t.is_floating_point() else t for t in tensors]


def compare(actual, expected, what):
    assert len(actual) == len(expected), what
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, f"{what}[{i}]", scale=max(1.0, float(e.detach().abs().max()) if e.numel() else 1.0))


@each_dtype
@devices
def test_values(op, dtype, device):
    for sample in op.samples(dtype):
        tensors = inputs(sample, device)
        actual = op.call(*tensors, **sample.options)
        compare(actual, op.reference(*tensors, **sample.options), sample.name)
        assert all(a.device.type == device for a in actual)


@each_differentiable_dtype
@devices
def test_gradients_equal_those_of_the_reference(op, dtype, device):
    for sample in op.samples(dtype):
        mine, theirs = inputs(sample, device, True), inputs(sample, device, True)
        actual, expected = op.call(*mine, **sample.options), op.reference(*theirs, **sample.options)
        # Each result has its own cotangents, so that gradients of one result in place of another's are noticed.
        cotangents = [
            torch.linspace(-1, 2 + i, a.numel(), dtype=a.dtype, device=device).view_as(a) for i, a in enumerate(actual)
        ]
        torch.autograd.backward(actual, cotangents)
        torch.autograd.backward(expected, cotangents)
        pairs = [(m.grad, t.grad) for m, t in zip(mine, theirs, strict=True) if m.requires_grad]
        compare([m for m, _ in pairs], [t for _, t in pairs], f"{sample.name}: gradient")


@each_differentiable
def test_gradcheck_in_double(op):
    # A Jacobian has as many elements as the square of the inputs.
    small = [s for s in op.samples(torch.float64) if sum(t.numel() for t in s.tensors) <= 1000]
    for sample in small[:5]:
        tensors = inputs(sample, requires_grad=True)

        def function(*tensors, options=sample.options):
            return op.call(*tensors, **options)

        assert torch.autograd.gradcheck(function, tensors), sample.name
        if op.twice_differentiable:
            assert torch.autograd.gradgradcheck(function, tensors), sample.name


@each_operator
def test_opcheck(op):
    for raw, arguments in op.raw_calls():
        library.opcheck(raw, arguments)


@each_operator
def test_compile_without_graph_breaks(op):
    torch.compiler.reset()  # torch limits recompilations of the code object below, which all operators share
    sample = op.samples(torch.float32)[0]

    def function(*tensors):
        return [2 * r for r in op.call(*tensors, **sample.options)]

    mine, theirs = (inputs(sample, requires_grad=op.differentiable) for _ in range(2))
    actual = torch.compile(function, fullgraph=True, backend="aot_eager")(*mine)
    expected = function(*theirs)
    compare(actual, expected, "compiled")
    if op.differentiable:
        sum(a.sum() for a in actual).backward()
        sum(e.sum() for e in expected).backward()
        tracked = [(m.grad, t.grad) for m, t in zip(mine, theirs, strict=True) if m.requires_grad]
        compare([m for m, _ in tracked], [t for _, t in tracked], "compiled gradient")


@each_operator
def test_torchscript(op):
    sample = op.samples(torch.float32)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated but still used
        scripted = torch.jit.script(op.script)
    tensors = inputs(sample, requires_grad=op.differentiable)
    actual = scripted(*tensors)
    compare(actual, op.call(*tensors, **sample.options), "scripted")
    if op.differentiable:
        actual[0].sum().backward()
    assert all(t.grad is not None for t in tensors[:2] if t.requires_grad)


@each_operator
def test_vmap_equals_a_loop(op):
    sample = op.samples(torch.float64)[0]
    for dims in op.vmap_dims:
        batch = [
            t if d is None else torch.stack([t, 2 * t, t - 1], d) for t, d in zip(sample.tensors, dims, strict=True)
        ]

        def function(*tensors):
            return op.call(*tensors, **sample.options)

        actual = torch.vmap(function, dims)(*batch)
        entries = [[t if d is None else t.select(d, i) for t, d in zip(batch, dims, strict=True)] for i in range(3)]
        expected = [torch.stack(parts) for parts in zip(*[function(*e) for e in entries], strict=True)]
        compare(actual, expected, f"vmap {dims}")


@each_differentiable
def test_vmap_nested_and_under_autograd(op):
    sample = op.samples(torch.float64)[0]
    batch = [torch.stack([torch.stack([t, t + 1]), torch.stack([3 * t, -t])]) for t in sample.tensors]
    tracked = [t.clone().requires_grad_() if t.is_floating_point() else t for t in batch]
    looped = [t.clone().requires_grad_() if t.is_floating_point() else t for t in batch]

    def function(*tensors):
        return op.call(*tensors, **sample.options)

    actual = torch.vmap(torch.vmap(function))(*tracked)
    expected = [[function(*[t[i, j] for t in looped]) for j in range(2)] for i in range(2)]
    for k, a in enumerate(actual):
        compare([a], [torch.stack([torch.stack([e[k] for e in row]) for row in expected])], "nested vmap")
    sum((a**2).sum() for a in actual).backward()
    sum((r**2).sum() for row in expected for e in row for r in e).backward()
    compare(
        [t.grad for t in tracked if t.requires_grad],
        [t.grad for t in looped if t.requires_grad],
        "gradient through vmap",
    )


@each_differentiable
def test_batched_gradients(op):
    """Jacobians use vmap over the backward, which therefore needs a vmap rule too."""
    sample = op.samples(torch.float64)[0]
    tensors = inputs(sample, requires_grad=True)
    results = op.call(*tensors, **sample.options)
    tracked = [t for t in tensors if t.requires_grad]
    batch = [torch.stack([torch.ones_like(r), r.detach()]) for r in results]
    actual = torch.vmap(lambda *c: torch.autograd.grad(results, tracked, c, retain_graph=True))(*batch)
    singles = [torch.autograd.grad(results, tracked, [b[i] for b in batch], retain_graph=True) for i in range(2)]
    compare(actual, [torch.stack(parts) for parts in zip(*singles, strict=True)], "batched gradient")


@each_dtype
def test_result_does_not_depend_on_the_memory_layout(op, dtype):
    for sample in op.samples(dtype)[:4]:
        plain = op.call(*sample.tensors, **sample.options)
        for layout in (with_gaps, reversed_in_memory, sliced_from_a_wider_block):
            actual = op.call(*[layout(t) for t in sample.tensors], **sample.options)
            assert all(same_bits(a, p) for a, p in zip(actual, plain, strict=True)), (sample.name, layout.__name__)


def with_gaps(t):
    return t if t.dim() == 0 else torch.stack([t, t], -1)[..., 0]


def reversed_in_memory(t):
    order = list(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def sliced_from_a_wider_block(t):
    """Returns a slice with gaps between rows and without vector alignment."""
    if t.dim() == 0:
        return t
    wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype)
    wide[..., 1 : 1 + t.shape[-1]] = t
    return wide[..., 1 : 1 + t.shape[-1]]


@each_operator
def test_empty(op):
    for sample in op.empty_samples():
        tensors, reference_tensors = (inputs(sample, requires_grad=op.differentiable) for _ in range(2))
        actual, expected = op.call(*tensors, **sample.options), op.reference(*reference_tensors, **sample.options)
        compare(actual, expected, sample.name)
        if actual and op.differentiable:
            sum(a.sum() for a in actual).backward()
            sum(e.sum() for e in expected).backward()
            for mine, theirs in zip(tensors, reference_tensors, strict=True):
                if not mine.requires_grad:
                    continue
                assert_close(mine.grad, theirs.grad if theirs.grad is not None else torch.zeros_like(mine), sample.name)


@each_dtype
def test_meta_tensors_have_the_right_shapes(op, dtype):
    for sample in [*op.samples(dtype), *op.empty_samples()]:
        actual = op.call(*[t.to("meta") for t in sample.tensors], **sample.options)
        expected = op.call(*sample.tensors, **sample.options)
        for a, e in zip(actual, expected, strict=True):
            assert (a.shape, a.dtype, a.stride(), a.device.type) == (e.shape, e.dtype, e.stride(), "meta"), sample.name


@each_dtype
def test_autocast_does_not_change_the_result(op, dtype):
    for sample in op.samples(dtype)[:2]:
        plain = op.call(*sample.tensors, **sample.options)
        with torch.autocast("cpu", torch.bfloat16):
            cast = op.call(*sample.tensors, **sample.options)
        assert all(same_bits(a, b) for a, b in zip(plain, cast, strict=True)), sample.name


@each_dtype
def test_thread_count_does_not_change_the_bits(op, dtype):
    for sample in op.samples(dtype):
        tensors = inputs(sample, requires_grad=op.differentiable)
        seen = []
        before = torch.get_num_threads()
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results = op.call(*tensors, **sample.options)
            tracked = [t for t in tensors if t.requires_grad]
            gradients = torch.autograd.grad(results, tracked, [torch.ones_like(r) for r in results]) if tracked else []
            seen.append([*results, *gradients])
        torch.set_num_threads(before)
        for other in seen[1:]:
            assert all(same_bits(a, b) for a, b in zip(seen[0], other, strict=True)), sample.name


@each_operator
@both_implementations
def test_invalid_input_raises_a_clear_error(op, implementation):
    for bad in op.bad_inputs():
        with ops.use(implementation), pytest.raises((RuntimeError, ValueError, TypeError), match=bad.message):
            bad.call()


@each_operator
def test_kernels_are_registered_for_every_device(op):
    keys = ["CPU", "Meta", "FuncTorchBatched"] + (["CUDA"] if ops.NATIVE.info.architectures else [])
    for name in op.registered:
        for key in keys:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"pfl_fast::{name}", key), (name, key)


def test_every_public_operator_has_an_entry():
    functions = {name for name in ops.__all__ if callable(getattr(ops, name))} - {"use", "uses_native"}
    variants = {"aggregate_checked", "aggregate_state_dicts"}  # tested with aggregate
    assert functions - variants == {op.name for op in OPERATORS}
