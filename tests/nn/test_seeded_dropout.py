import copy

import pytest
import torch
from torch import nn

from pfl_fast import ops
from pfl_fast.nn import SeededDropout, replace_dropout, seed_dropout, seed_names


@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 13), (2, 3, 5, 5)])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_values_are_dropped_or_scaled(shape, p):
    layer = SeededDropout(p)
    x = torch.rand(shape) + 1
    y = layer(x)
    assert y.shape == x.shape
    scaled = x / (1 - p) if p < 1 else x
    assert torch.all((y == 0) | (y == scaled))
    if p == 0:
        assert torch.equal(y, x)
    if p == 1:
        assert torch.equal(y, torch.zeros(shape))


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_dropped_fraction(p):
    y = SeededDropout(p)(torch.ones(100_003))
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.05)


def test_noise_depends_on_seed_and_salt_only():
    x = torch.ones(101)
    layer = SeededDropout(0.5)
    first = layer(x)
    torch.manual_seed(123)
    assert torch.equal(layer(x), first)
    seed_dropout(layer, 1)
    assert not torch.equal(layer(x), first)
    assert not torch.equal(SeededDropout(0.5, salt=1)(x), first)
    seed_dropout(layer, 0)
    with ops.use("reference"):
        assert torch.equal(layer(x), first)


def test_small_seeds_and_salts_do_not_cancel():
    x = torch.ones(64)
    seen = set()
    for seed in range(4):
        for salt in range(4):
            layer = SeededDropout(0.5, salt)
            seed_dropout(layer, seed)
            seen.add(tuple(layer(x).tolist()))
    assert len(seen) == 16


def test_torch_generator_is_not_used():
    before = torch.get_rng_state()
    SeededDropout(0.5)(torch.ones(10))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("dims", "expected"), [(None, (4, 5, 3, 3)), (2, (4, 5, 1, 1)), (1, (4, 1, 1, 1)), (0, (1,) * 4)]
)
def test_noise_is_shared_by_the_other_dimensions(dims, expected):
    y = SeededDropout(0.5, noise_dims=dims)(torch.ones(4, 5, 3, 3))
    noise = y[tuple(slice(size) for size in expected)]
    assert torch.equal(y, noise.expand_as(y))
    if dims != 0:
        assert set(noise.flatten().tolist()) == {0.0, 2.0}


def test_gradient_is_zero_where_dropped():
    layer = SeededDropout(0.5)
    x = torch.rand(31, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, 2.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype):
    assert SeededDropout(0.5)(torch.ones(5, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_stacked_clients_equal_the_loop(implementation):
    if implementation == "native" and not ops.NATIVE.available:
        pytest.skip("the native library is not available")
    with ops.use(implementation):
        check_stacked_clients()


def check_stacked_clients():
    torch.manual_seed(0)
    model = replace_dropout(nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.3), nn.Linear(7, 3), nn.Dropout(0.6)))
    seeds = torch.tensor([3, 2**62 + 1, 0])
    x = torch.randn(3, 11, 5)

    def run(seed, x):
        return torch.func.functional_call(model, dict.fromkeys(seed_names(model), seed), (x,))

    stacked = torch.vmap(run)(seeds, x)
    for client, seed in enumerate(seeds):
        seed_dropout(model, int(seed))
        torch.testing.assert_close(stacked[client], model(x[client]))
        assert torch.equal(stacked[client] == 0, model(x[client]) == 0)
    assert not torch.equal(stacked[0] == 0, stacked[1] == 0)


def test_unseeded_clients_share_noise_under_vmap():
    layer = SeededDropout(0.5)
    y = torch.vmap(layer)(torch.ones(3, 4, 5))
    assert torch.equal(y[0], y[2])
    assert torch.equal(y[0], layer(torch.ones(4, 5)))


def test_replace_finds_nested_and_shared_layers_and_keeps_the_rest():
    shared = nn.Dropout(0.1)
    linear = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.Dropout3d(0.2), linear), shared)
    model.eval()
    assert replace_dropout(model) is model
    assert model[0] is model[2]
    assert isinstance(model[0], SeededDropout)
    assert (model[0].p, model[0].noise_dims, model[1][0].p, model[1][0].noise_dims) == (0.1, None, 0.2, 2)
    assert model[0].salt != model[1][0].salt
    assert model[1][1] is linear
    assert not any(layer.training for layer in model.modules())


def test_replace_of_a_single_dropout_and_of_seeded_dropout():
    assert isinstance(replace_dropout(nn.Dropout(0.4)), SeededDropout)
    model = nn.Sequential(SeededDropout(0.5, salt=5), nn.Dropout(0.5))
    mine = model[0]
    replace_dropout(model)
    assert model[0] is mine
    assert model[1].salt == 6


def test_alpha_dropout_is_refused():
    with pytest.raises(TypeError, match=r"AlphaDropout; use nn\.Dropout"):
        replace_dropout(nn.Sequential(nn.AlphaDropout()))


def test_state_dict_and_copies():
    layer = SeededDropout(0.5)
    assert layer.state_dict() == {}
    seed_dropout(layer, 9)
    assert copy.deepcopy(layer).seed.item() == 9


@pytest.mark.parametrize("arguments", [{"p": -0.1}, {"p": 1.1}, {"p": float("nan")}, {"noise_dims": -1}])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        SeededDropout(**arguments)
