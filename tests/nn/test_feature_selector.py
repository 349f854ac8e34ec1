import pytest
import torch

from pfl_fast import ops
from pfl_fast.nn import FeatureSelector
from pfl_fast.testing import same_bits


@pytest.mark.parametrize(("features", "expected"), [(8192, 67_121_152), (4096, 16_783_360)])
def test_parameter_counts_of_the_paper(features, expected):
    selector = FeatureSelector(features, device="meta")
    assert sum(p.numel() for p in selector.parameters()) == expected


def test_layers_and_operator_by_hand():
    selector, z, seed = FeatureSelector(6, tau=2.0, threshold=0.4), torch.randn(5, 6), torch.tensor(3)
    first, _, second = selector.logits
    logits = second(torch.relu(first(z)))
    expected = ops.gumbel_mask(z, logits, seed, 2.0, 0.4)
    assert all(same_bits(a.detach(), e.detach()) for a, e in zip(selector(z, seed), expected, strict=True))


def test_evaluation_is_deterministic_and_training_is_not():
    selector, z = FeatureSelector(64), torch.randn(32, 64)
    first, second = torch.tensor(1), torch.tensor(2)
    assert same_bits(selector(z, first)[0], selector(z, first)[0])
    assert not torch.equal(selector(z, first)[0], selector(z, second)[0])
    selector.eval()
    assert same_bits(selector(z, first)[0], selector(z)[0])
    assert torch.equal(selector(z)[0], torch.where(selector.logits(z) >= 0, z, 0))


def test_training_needs_a_seed():
    with pytest.raises(TypeError, match="seed must be a tensor, got NoneType"):
        FeatureSelector(4)(torch.randn(2, 4))


def test_gradients_reach_features_and_parameters():
    selector, z = FeatureSelector(16), torch.randn(8, 16, requires_grad=True)
    selected, rest = selector(z, torch.tensor(1))
    (selected.sum() + (rest**2).sum()).backward()
    assert all(p.grad is not None and p.grad.any() for p in [z, *selector.parameters()])


def test_stacked_clients_equal_single_clients():
    selectors = [FeatureSelector(8) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(selectors)
    z, seeds = torch.randn(3, 5, 8), torch.arange(3)
    stacked = torch.vmap(lambda p, z, s: torch.func.functional_call(selectors[0], p, (z, s)))(parameters, z, seeds)
    for c, selector in enumerate(selectors):
        for together, alone in zip(stacked, selector(z[c], seeds[c]), strict=True):
            torch.testing.assert_close(together[c], alone)


def test_autocast_keeps_the_type_of_the_features():
    selector, z = FeatureSelector(8), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        selected, rest = selector(z, torch.tensor(1))
    assert selected.dtype == rest.dtype == torch.float32
    assert torch.equal(selected + rest, z)


def test_half_of_an_odd_width_is_rounded_down():
    selector, z = FeatureSelector(7), torch.randn(4, 7)
    assert selector.logits[0].weight.shape == (3, 7)
    assert torch.equal(sum(selector(z, torch.tensor(1))), z)


@pytest.mark.parametrize("features", [0, 1])
def test_widths_without_a_half_are_refused(features):
    with pytest.raises(ValueError, match=f"features must be at least 2, got {features}"):
        FeatureSelector(features)


@pytest.mark.parametrize(("tau", "threshold"), [(1.0, 0.5), (10.0, 0.5), (2.0, 0.3), (0.5, 0.9)])
def test_selection_without_noise(tau, threshold):
    selector, z = FeatureSelector(64, tau, threshold).eval(), torch.randn(32, 64).exp()
    selects = selector.selects(3 * selector.logits(z))
    assert torch.equal(selects, selector.split(z, 3 * selector.logits(z))[0] > 0)
    assert 0 < selects.double().mean() < 1
