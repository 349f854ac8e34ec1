import pytest
import torch
from torch import nn

from pfl_fast import ops
from pfl_fast.nn import ConditionalPolicy
from pfl_fast.nn.conditional_policy import ACTIVATIONS, NORMS
from pfl_fast.testing import assert_close, same_bits


def parameters_of(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("features", "depth", "count"),
    [(512, 1, 527_360), (512, 2, 790_016), (512, 3, 1_052_672), (512, 4, 1_315_328), (32, 1, 2_240)],
)
def test_the_papers_sizes(features, depth, count):
    assert parameters_of(ConditionalPolicy(features, depth)) == count


def test_layers_by_hand():
    """The paper's network in plain torch: two linear layers, LayerNorm over both halves, ReLU, softmax of the pair."""
    torch.manual_seed(0)
    policy = ConditionalPolicy(6, depth=2)
    nn.init.normal_(policy.norm.weight)
    nn.init.normal_(policy.norm.bias)
    h, context = torch.randn(5, 6), torch.randn(5, 6)
    first, _, last = policy.linear
    a = torch.relu(policy.norm(last(torch.relu(first(context)))))
    shares = torch.softmax(a.reshape(5, 2, 6), 1)
    global_part, personal_part = policy(h, context)
    assert_close(global_part, shares[:, 0] * h)
    assert_close(personal_part, shares[:, 1] * h)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("policy", ["softmax", "gumbel"])
def test_native_and_reference_agree(norm, activation, policy):
    torch.manual_seed(1)
    module = ConditionalPolicy(7, norm=norm, activation=activation, policy=policy).double()
    h, seed = torch.randn(5, 7).double(), torch.tensor(3) if policy == "gumbel" else None

    def run():
        module.zero_grad()
        features = h.clone().requires_grad_()
        parts = module(features, 2 * features, seed)
        (parts[0] ** 2 - parts[1]).sum().backward()
        return [*parts, features.grad, *[p.grad for p in module.parameters()]]

    native = run()
    with ops.use("reference"):
        for mine, theirs in zip(native, run(), strict=True):
            assert_close(mine, theirs)
    assert_close(native[0] + native[1], h)


def test_axes_of_each_norm():
    """ln normalises both halves together, gn each half separately, bn each column over the batch."""
    a = torch.randn(6, 8) + torch.tensor([5.0] * 4 + [0.0] * 4)
    assert_close(NORMS["ln"](8)(a).mean(1), torch.zeros(6))
    assert_close(NORMS["gn"](8)(a)[:, :4].mean(1), torch.zeros(6))
    assert_close(NORMS["bn"](8)(a).mean(0), torch.zeros(8))


@pytest.mark.parametrize("norm", NORMS)
def test_one_context_for_all_samples(norm):
    policy, h, context = ConditionalPolicy(4, norm=norm), torch.randn(3, 4), torch.randn(4)
    expected = policy(h, context.expand(3, 4))
    for given in (context, context[None]):
        for mine, theirs in zip(policy(h, given), expected, strict=True):
            assert_close(mine, theirs)


def test_noise_depends_on_the_seed_only():
    policy, h = ConditionalPolicy(4, policy="gumbel").eval(), torch.randn(3, 4)
    one, again, other = (policy(h, h, torch.tensor(seed))[0] for seed in (1, 1, 2))
    assert same_bits(one, again)
    assert not torch.equal(one, other)


def test_stacked_clients_equal_a_loop():
    policies = [ConditionalPolicy(4, depth=2, policy="gumbel") for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(policies)
    h, seeds = torch.randn(3, 5, 4), torch.arange(3)

    def run(parameters, buffers, h, seed):
        return torch.func.functional_call(policies[0], (parameters, buffers), (h, h, seed))

    stacked = torch.vmap(run)(parameters, buffers, h, seeds)
    for n, policy in enumerate(policies):
        for mine, one in zip(stacked, policy(h[n], h[n], seeds[n]), strict=True):
            assert_close(mine[n], one)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_keeps_the_dtype_of_the_features(norm, dtype):
    policy, h = ConditionalPolicy(4, norm=norm), torch.randn(3, 4).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        parts = policy(h, h)
    assert [part.dtype for part in parts] == [dtype, dtype]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "in"}, "norm must be one of ln, bn, gn, got 'in'"),
        ({"activation": "gelu"}, "activation must be one of relu, tanh, sigmoid, got 'gelu'"),
        ({"policy": "hard"}, "policy must be one of softmax, gumbel, got 'hard'"),
        ({"depth": 0}, "depth must be an integer of at least 1, got 0"),
        ({"depth": 1.5}, "depth must be an integer of at least 1, got 1.5"),
        ({"features": 0}, "features must be an integer of at least 1, got 0"),
    ],
)
def test_unknown_choices_are_named(arguments, message):
    with pytest.raises(ValueError, match=f"ConditionalPolicy: {message}"):
        ConditionalPolicy(**{"features": 4, **arguments})


def test_the_seed_must_fit_the_policy():
    h = torch.randn(3, 4)
    with pytest.raises(ValueError, match="seed must be given to train with policy='gumbel', got None"):
        ConditionalPolicy(4, policy="gumbel")(h, h)
    gumbel, softmax = ConditionalPolicy(4, policy="gumbel").eval(), ConditionalPolicy(4).eval()
    softmax.load_state_dict(gumbel.state_dict())
    assert same_bits(gumbel(h, h)[0], softmax(h, h)[0])
    with pytest.raises(ValueError, match="seed must be None for policy='softmax'"):
        ConditionalPolicy(4)(h, h, torch.tensor(1))


def test_state_dict_restores_the_module():
    policy, other, h = ConditionalPolicy(4, depth=3), ConditionalPolicy(4, depth=3), torch.randn(3, 4)
    other.load_state_dict(policy.state_dict())
    for mine, theirs in zip(policy(h, h), other(h, h), strict=True):
        assert same_bits(mine, theirs)
