"""``OrthogonalProjector``: ranks, algebra of the projections, construction of bases, stacked clients."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.nn import OrthogonalProjector
from pfl_fast.testing import assert_close, same_bits

each_basis = pytest.mark.parametrize("basis", ["gaussian", "uniform", "identity"])


def dense(basis):
    return basis.double() @ basis.double().mT


def test_ranks_of_twenty_clients_with_512_features():
    projector = OrthogonalProjector(features=512, clients=20)
    assert projector.rank == 24
    assert projector.generic.shape == (512, 24)
    assert projector.personal.shape == (20, 512, 24)
    used = torch.cat([projector.generic, *projector.personal], 1)
    assert 512 - used.shape[1] == 8
    assert torch.linalg.matrix_rank(used) == 504


@each_basis
def test_projections_are_orthogonal_projections(basis):
    projector = OrthogonalProjector(features=60, clients=5, basis=basis)
    matrices = [dense(projector.generic), *[dense(a) for a in projector.personal]]
    for i, p in enumerate(matrices):
        assert_close(p.float(), p.mT.float(), "symmetric")
        assert (p @ p - p).abs().max() < 1e-6
        assert abs(p.trace() - 10) < 1e-5
        for q in matrices[i + 1 :]:
            assert (p @ q).abs().max() < 1e-6


@each_basis
@pytest.mark.parametrize("relu", [False, True])
def test_forward_equals_the_dense_form(basis, relu):
    projector = OrthogonalProjector(features=60, clients=5, basis=basis, alpha=0.7, relu=relu)
    f_g, f_p = torch.randn(10, 60), torch.randn(10, 60)
    g, p, fused, inner = projector(f_g, f_p, 3)
    expected_g, expected_p = f_g.double() @ dense(projector.generic), f_p.double() @ dense(projector.personal[3])
    if relu:
        expected_g, expected_p = expected_g.relu(), expected_p.relu()
    assert_close(g, expected_g.float(), "g")
    assert_close(p, expected_p.float(), "p")
    assert_close(fused, (0.7 * expected_g + 0.3 * expected_p).float(), "fused")
    assert_close(inner, (expected_g * expected_p).sum(-1).float(), "inner", scale=3.0)


def test_inner_products_vanish_unless_relu_follows():
    f_g, f_p = torch.randn(64, 512), torch.randn(64, 512)
    assert OrthogonalProjector(512, 20)(f_g, f_p, 0)[3].abs().max() < 1e-5
    assert OrthogonalProjector(512, 20, relu=True)(f_g, f_p, 0)[3].min() > 0.5
    assert not OrthogonalProjector(512, 20, basis="identity", relu=True)(f_g, f_p, 0)[3].any()


def test_uniform_bases_put_the_norm_into_the_generic_subspace():
    """Share of the norm of non-negative features: about 87 % with uniform, 18 % with gaussian (specification, 4.2)."""
    f = torch.rand(64, 512)
    share = {}
    for basis in ("gaussian", "uniform"):
        g = OrthogonalProjector(512, 20, basis=basis)(f, f, 0)[0]
        share[basis] = float((g.norm(dim=1) / f.norm(dim=1)).mean())
    assert 0.1 < share["gaussian"] < 0.35
    assert share["uniform"] > 0.8


def test_stacked_clients_equal_single_ones_and_are_differentiable():
    projector = OrthogonalProjector(features=40, clients=6)
    f_g, f_p = torch.randn(3, 5, 40, requires_grad=True), torch.randn(3, 5, 40)
    stacked = projector(f_g, f_p, torch.tensor([4, 0, 4]))
    for row, client in enumerate([4, 0, 4]):
        for a, b in zip(stacked, projector(f_g[row], f_p[row], client), strict=True):
            assert_close(a[row], b)
    (gradient,) = torch.autograd.grad(stacked[0].sum(), f_g)
    assert_close(gradient, (torch.ones(3, 5, 40).double() @ dense(projector.generic)).float(), scale=3.0)


def test_vmap_over_clients():
    projector = OrthogonalProjector(features=40, clients=3)
    f_g, f_p = torch.randn(3, 5, 40), torch.randn(3, 5, 40)

    def one(a, b, basis):
        return ops.orthogonal_project(a, b, projector.generic, basis, projector.alpha, projector.relu)

    for a, b in zip(torch.vmap(one)(f_g, f_p, projector.personal), projector(f_g, f_p, torch.arange(3)), strict=True):
        assert_close(a, b)


@each_basis
def test_remainder_goes_to_the_generic_subspace_if_asked(basis):
    projector = OrthogonalProjector(512, 20, basis=basis, remainder="generic")
    plain = OrthogonalProjector(512, 20, basis=basis)
    assert projector.generic.shape == (512, 32)
    assert same_bits(projector.generic[:, :24].contiguous(), plain.generic)
    assert same_bits(projector.personal, plain.personal)
    assert (projector.generic.mT @ projector.personal).abs().max() < 1e-6
    everything = torch.cat([projector.generic, *projector.personal], 1)
    assert_close((everything @ everything.mT), torch.eye(512))


@pytest.mark.parametrize("overflow", ["error", "cycle", "random"])
def test_overflow_has_no_effect_if_all_subspaces_fit(overflow):
    assert same_bits(OrthogonalProjector(30, 4, overflow=overflow).personal, OrthogonalProjector(30, 4).personal)


@each_basis
def test_cycle_shares_personal_blocks_but_never_the_generic_one(basis):
    projector = OrthogonalProjector(20, clients=7, rank=5, basis=basis, overflow="cycle")
    assert projector.personal.shape == (7, 20, 5)
    for i in range(7):
        assert same_bits(projector.personal[i], projector.personal[i % 3])
        assert (projector.generic.mT @ projector.personal[i]).abs().max() < 1e-6
    assert (projector.personal[0].mT @ projector.personal[1]).abs().max() < 1e-6


@each_basis
def test_random_subspaces_are_orthonormal_each_and_differ(basis):
    projector = OrthogonalProjector(64, clients=40, rank=4, basis=basis, overflow="random")
    for a in [projector.generic, *projector.personal]:
        assert_close(a.mT @ a, torch.eye(4))
    overlaps = (projector.generic.mT @ projector.personal).abs()
    assert overlaps.max() > 0.01
    assert not same_bits(projector.personal[0], projector.personal[1])


@each_basis
def test_bases_depend_on_the_seed_only(basis):
    torch.manual_seed(1)
    first = OrthogonalProjector(30, 4, basis=basis, seed=3)
    torch.manual_seed(2)
    again = OrthogonalProjector(30, 4, basis=basis, seed=3)
    assert same_bits(first.generic, again.generic)
    assert same_bits(first.personal, again.personal)
    if basis != "identity":
        assert not same_bits(first.generic, OrthogonalProjector(30, 4, basis=basis, seed=4).generic)


def test_bases_are_buffers():
    projector = OrthogonalProjector(30, 4)
    assert not list(projector.parameters())
    assert set(projector.state_dict()) == {"generic", "personal"}
    copy = OrthogonalProjector(30, 4, seed=9)
    copy.load_state_dict(projector.state_dict())
    assert same_bits(copy.personal, projector.personal)
    half = projector.to(torch.bfloat16)(torch.randn(2, 30).bfloat16(), torch.randn(2, 30).bfloat16(), 1)
    assert all(r.dtype == torch.bfloat16 for r in half)
    assert "rank=6" in repr(projector)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"features": 512, "clients": 20, "rank": 25},
            r"rank must be at most 24.*got 25; lower rank.*'cycle'.*'random'",
        ),
        ({"features": 5, "clients": 9}, r"rank must be from 1 to features, 5, got 0.*9 clients.*overflow"),
        ({"features": 5, "clients": 2, "rank": 6}, r"rank must be from 1 to features, 5, got 6"),
        (
            {"features": 9, "clients": 2, "rank": 5, "overflow": "cycle"},
            r"rank must be at most 4 with overflow='cycle'",
        ),
        ({"features": 0, "clients": 2}, r"features must be an integer of at least 1, got 0"),
        ({"features": 5, "clients": 0}, r"clients must be an integer of at least 1, got 0"),
        ({"features": 5, "clients": 2, "basis": "fourier"}, r"basis must be one of gaussian, .*got 'fourier'"),
        ({"features": 5, "clients": 2, "remainder": "x"}, r"remainder must be one of unused, generic, got 'x'"),
        ({"features": 5, "clients": 2, "overflow": "x"}, r"overflow must be one of error, cycle, random, got 'x'"),
    ],
)
def test_bad_arguments_say_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        OrthogonalProjector(**arguments)


@pytest.mark.parametrize("client", [-1, 4])
def test_bad_client_says_what_is_wrong(client):
    with pytest.raises(IndexError, match=f"client must be from 0 to 3, got {client}"):
        OrthogonalProjector(30, 4)(torch.randn(2, 30), torch.randn(2, 30), client)
