"""Tests specific to ``orthogonal_project``: algebra of projections, constant bases, vmap over bases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations

native = pytest.mark.skipif(not ops.NATIVE.available, reason="no native library")


def blocks(width, *ranks, dtype=torch.float32):
    q = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q.to(dtype)
    return [b.contiguous() for b in q[:, : sum(ranks)].split(ranks, 1)]


def projectors(width, basis_g, basis_p):
    """Returns both d x d projection matrices, computed by the operator from unit vectors."""
    unit = torch.eye(width, dtype=basis_g.dtype)
    return ops.orthogonal_project(unit, unit, basis_g, basis_p, 0.5)[:2]


@both_implementations
def test_projectors_are_symmetric_idempotent_of_rank_r_and_orthogonal(implementation):
    basis_g, basis_p = blocks(50, 7, 11, dtype=torch.float64)
    with ops.use(implementation):
        p_g, p_p = projectors(50, basis_g, basis_p)
    for p, rank in ((p_g, 7), (p_p, 11)):
        assert_close(p, p.mT, "symmetric")
        assert_close(p @ p, p, "idempotent")
        assert_close(p.trace(), torch.tensor(float(rank)).double(), "trace")
    assert (p_g @ p_p).abs().max() < 1e-13


@both_implementations
@pytest.mark.parametrize("relu", [False, True])
def test_equals_the_dense_form(implementation, relu):
    basis_g, basis_p = blocks(512, 24, 24)
    f_g, f_p = torch.randn(3, 10, 512), torch.randn(3, 10, 512)
    with ops.use(implementation):
        g, p, fused, inner = ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.7, relu)
    dense_g, dense_p = f_g @ (basis_g @ basis_g.mT), f_p @ (basis_p @ basis_p.mT)
    if relu:
        dense_g, dense_p = dense_g.relu(), dense_p.relu()
    assert_close(g, dense_g, "g")
    assert_close(p, dense_p, "p")
    assert_close(fused, 0.7 * dense_g + 0.3 * dense_p, "fused")
    assert_close(inner, (dense_g * dense_p).sum(-1), "inner", scale=5.0)


@both_implementations
def test_inner_products_vanish_unless_relu_follows(implementation):
    basis_g, basis_p = blocks(512, 24, 24)
    f_g, f_p = torch.randn(64, 512), torch.randn(64, 512)
    with ops.use(implementation):
        assert ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.5)[3].abs().max() < 1e-5
        assert ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.5, relu=True)[3].min() > 0.5


@both_implementations
def test_full_rank_is_the_identity_and_rank_zero_is_zero(implementation):
    (full,) = blocks(40, 40)
    f = torch.randn(6, 40, requires_grad=True)
    with ops.use(implementation):
        g, p, fused, inner = ops.orthogonal_project(f, f, full, full[:, :0], 0.25)
    assert_close(g, f, "identity", scale=5.0)
    assert not p.any()
    assert not inner.any()
    (gradient,) = torch.autograd.grad(fused.sum(), f)
    assert_close(gradient, torch.full_like(f, 0.25), "gradient")


@both_implementations
def test_bases_are_constants(implementation):
    basis_g, basis_p = (b.requires_grad_() for b in blocks(12, 3, 4))
    f_g, f_p = torch.randn(5, 12, requires_grad=True), torch.randn(5, 12)
    with ops.use(implementation):
        results = ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.5)
    sum(r.sum() for r in results).backward()
    assert f_g.grad is not None
    assert basis_g.grad is None
    assert basis_p.grad is None


@native
def test_only_the_needed_gradient_is_computed():
    f_g, f_p, (basis_g, basis_p) = torch.randn(5, 12), torch.randn(5, 12), blocks(12, 3, 4)
    leaves = f_g.clone().requires_grad_(), f_p.clone().requires_grad_()
    both = torch.autograd.grad(sum(r.sum() for r in ops.orthogonal_project(*leaves, basis_g, basis_p, 0.3)), leaves)
    for i in range(2):
        features = [f_g, f_p]
        features[i] = features[i].clone().requires_grad_()
        results = ops.orthogonal_project(*features, basis_g, basis_p, 0.3)
        assert same_bits(torch.autograd.grad(sum(r.sum() for r in results), features[i])[0], both[i])


@native
@pytest.mark.parametrize("used", range(4))
@pytest.mark.parametrize("relu", [False, True])
def test_gradient_through_one_result_only(used, relu):
    f, (basis_g, basis_p) = torch.randn(2, 5, 12), blocks(12, 5, 4)
    mine, theirs = f.clone().requires_grad_(), f.clone().requires_grad_()
    actual = ops.orthogonal_project(mine[0], mine[1], basis_g, basis_p, 0.3, relu)[used]
    expected = reference.orthogonal_project(theirs[0], theirs[1], basis_g, basis_p, 0.3, relu)[used]
    actual.square().sum().backward()
    expected.square().sum().backward()
    assert_close(mine.grad, theirs.grad, scale=5.0)


@native
@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (None, None, 0, None), (0, None, None, 2), (1, 0, 1, 0)])
def test_vmap_over_bases(dims):
    tensors = torch.randn(4, 9), torch.randn(4, 9), torch.randn(9, 2), torch.randn(9, 3)
    batch = [t if d is None else torch.stack([t, 2 * t, t - 1], d) for t, d in zip(tensors, dims, strict=True)]
    actual = torch.vmap(lambda *t: ops.orthogonal_project(*t, 0.4), dims)(*batch)
    for i in range(3):
        entry = [t if d is None else t.select(d, i) for t, d in zip(batch, dims, strict=True)]
        for a, e in zip(actual, reference.orthogonal_project(*entry, 0.4, False), strict=True):
            assert_close(a[i], e, scale=float(e.abs().max()))


@native
def test_nested_vmap_over_clients_and_bases_under_autograd():
    f = torch.randn(2, 3, 4, 9, requires_grad=True)
    basis_g, basis_p = torch.randn(3, 9, 2), torch.randn(2, 9, 3)

    def one(features, a, b):
        return ops.orthogonal_project(features, features, a, b, 0.4, True)

    results = torch.vmap(torch.vmap(one, (0, 0, None)), (0, None, 0))(f, basis_g, basis_p)
    (gradient,) = torch.autograd.grad(sum(r.sum() for r in results), f)
    for i in range(2):
        for j in range(3):
            twin = f.detach()[i, j].requires_grad_()
            expected = reference.orthogonal_project(twin, twin, basis_g[j], basis_p[i], 0.4, True)
            (theirs,) = torch.autograd.grad(sum(e.sum() for e in expected), twin)
            assert_close(gradient[i, j], theirs, scale=float(theirs.abs().max()))


@native
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_result_does_not_depend_on_the_memory_layout_of_the_bases(dtype):
    f, (basis_g, basis_p) = torch.randn(5, 20).to(dtype), blocks(20, 9, 8, dtype=dtype)
    plain = ops.orthogonal_project(f, f, basis_g, basis_p, 0.5)
    strange = ops.orthogonal_project(f, f, basis_g.mT.contiguous().mT, torch.cat([basis_p] * 2, 1)[:, 8:], 0.5)
    assert all(same_bits(a, b) for a, b in zip(plain, strange, strict=True))


@native
def test_stacked_clients_equal_single_clients_to_the_bit():
    f_g, f_p, basis_g, basis_p = (torch.randn(s) for s in ((3, 5, 70), (3, 5, 70), (70, 9), (3, 70, 11)))
    stacked = ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.5)
    for i in range(3):
        single = ops.orthogonal_project(f_g[i], f_p[i], basis_g, basis_p[i], 0.5)
        assert all(same_bits(a[i], b) for a, b in zip(stacked, single, strict=True))


@native
@settings(max_examples=40, deadline=None)
@given(samples=st.integers(0, 40), features=st.integers(1, 300), ranks=st.tuples(*[st.integers(0, 150)] * 2), relu=...)
def test_any_size_equals_the_reference(samples: int, features: int, ranks: tuple[int, int], relu: bool):
    f_g, f_p = torch.randn(samples, features), torch.randn(samples, features)
    basis_g, basis_p = (torch.randn(features, r) / max(1, features) ** 0.5 for r in ranks)
    mine = ops.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.6, relu)
    theirs = reference.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.6, relu)
    for a, e in zip(mine, theirs, strict=True):
        assert_close(a, e, scale=10.0 * features**0.5)


@native
def test_half_features_are_summed_in_float():
    f = torch.full((1, 4096), 60.0, dtype=torch.float16)
    basis = torch.full((4096, 1), 1 / 64, dtype=torch.float16)
    g, _, _, _ = ops.orthogonal_project(f, f, basis, basis[:, :0], 0.5)  # the coordinate is 3840, its terms 0.94 each
    assert same_bits(g, f)


@native
def test_second_derivatives_raise():
    f, (basis_g, basis_p) = torch.randn(3, 8, requires_grad=True), blocks(8, 2, 2)
    inner = ops.orthogonal_project(f, f, basis_g, basis_p, 0.5, relu=True)[3]
    (gradient,) = torch.autograd.grad(inner.sum(), f, create_graph=True)
    with pytest.raises(RuntimeError, match="orthogonal_project: second derivatives are not implemented"):
        gradient.sum().backward()
