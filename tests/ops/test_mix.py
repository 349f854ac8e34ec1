"""Tests specific to ``mix``: exact selection, straight-through choices, the papers' gradients, stacked clients."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.testing import assert_close, same_bits
from tests.ops.operators import both_implementations, each_float


def model(*batch, dtype=torch.float64, requires_grad=False):
    shapes = [(3, 5), (2048,), (2, 1031)]
    return [torch.randn(*batch, *s, dtype=dtype, requires_grad=requires_grad) for s in shapes]


@both_implementations
@each_float
@pytest.mark.parametrize("elementwise", [False, True])
def test_the_value_not_chosen_does_not_affect_the_result(implementation, dtype, elementwise):
    good = torch.randn(2000).to(dtype)
    bad = torch.full((2000,), float("nan"), dtype=dtype)
    bad[::2] = float("inf")
    for value, local, global_ in ((0.0, good, bad), (1.0, bad, good)):
        choice = torch.full((2000,), value, dtype=dtype) if elementwise else torch.tensor(value, dtype=dtype)
        for hard, chosen in ((False, choice), (True, choice * 0.4 + 0.3)):
            with ops.use(implementation):
                result = ops.mix(local, global_, chosen, hard=hard)
            assert torch.equal(result, good)
            assert implementation == "reference" or same_bits(result, good)


@both_implementations
def test_gradient_of_the_tensor_not_chosen_is_zero(implementation):
    for value, hard in ((0.0, False), (1.0, False), (0.2, True), (0.5, True), (0.8, True)):
        local, global_ = torch.randn(3000, requires_grad=True), torch.randn(3000, requires_grad=True)
        choice = torch.tensor(value, requires_grad=True)
        with ops.use(implementation):
            result = ops.mix(local, global_, choice, hard=hard)
        cotangent = torch.randn(3000)
        result.backward(cotangent)
        chosen, other = (global_, local) if value >= 0.5 else (local, global_)
        assert torch.equal(chosen.grad, cotangent)
        assert torch.equal(other.grad, torch.zeros(3000))
        assert_close(choice.grad, torch.dot(cotangent, (global_ - local).detach()), scale=100)


def test_infinite_gradients_do_not_affect_the_tensor_not_chosen():
    local, global_ = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    ops.mix(local, global_, torch.tensor(1.0)).backward(torch.full((4,), float("inf")))
    assert torch.equal(local.grad, torch.zeros(4))
    assert torch.equal(global_.grad, torch.full((4,), float("inf")))


@both_implementations
def test_partialfed_gradient_of_the_logits(implementation):
    """PartialFed-Adaptive: dl/da[g, 1] = (u0 u1 / tau) <grad, global - local> = -dl/da[g, 0], summed over the group."""
    tau, segments = 0.7, [0, 0, 1]
    local, global_ = model(), model()
    a = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    u = torch.softmax(a / tau, dim=1)
    with ops.use(implementation):
        mixed = ops.mix(local, global_, u[:, 1], segments, hard=True)
    cotangents = model()
    torch.autograd.backward(mixed, cotangents)
    dots = [(g * (y - x)).sum() for g, x, y in zip(cotangents, local, global_, strict=True)]
    per_group = torch.stack([dots[0] + dots[1], dots[2]])
    expected = (u[:, 0] * u[:, 1] / tau).detach() * per_group
    assert_close(a.grad, torch.stack([-expected, expected], 1), scale=100)
    for m, x, y, s in zip(mixed, local, global_, segments, strict=True):
        assert same_bits(m.detach(), y if u[s, 1] >= 0.5 else x)


@both_implementations
def test_apfl_step(implementation):
    """APFL: v - eta alpha g, alpha - eta <v - w, g> with g the gradient at alpha v + (1 - alpha) w."""
    v, w = model(requires_grad=True), model()
    alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with ops.use(implementation):
        mixed = ops.mix(w, v, alpha)
    for m, x, y in zip(mixed, w, v, strict=True):
        assert_close(m.detach(), (0.3 * y + 0.7 * x).detach())
    gradients = [2 * m.detach() for m in mixed]
    sum((m**2).sum() for m in mixed).backward()
    for y, g in zip(v, gradients, strict=True):
        assert_close(y.grad, 0.3 * g)
    expected = sum(((y - x) * g).sum() for x, y, g in zip(w, v, gradients, strict=True))
    assert_close(alpha.grad, expected.detach(), scale=1000)


@both_implementations
def test_fedala_gradient(implementation):
    local, global_ = model(), model()
    weights = [torch.rand_like(x).requires_grad_() for x in local]
    with ops.use(implementation):
        mixed = ops.mix(local, global_, weights)
    sum(m.sum() for m in mixed).backward()
    for w, x, y in zip(weights, local, global_, strict=True):
        assert_close(w.grad, y - x)


@both_implementations
@pytest.mark.parametrize("per_segment", [False, True])
def test_stacked_clients_are_one_call(implementation, per_segment):
    """Each client has a local model and a choice; the global model is shared and not copied."""
    clients, segments = 4, [1, 0, 1] if per_segment else None
    local, global_ = model(clients, requires_grad=True), model(requires_grad=True)
    shape = (clients, 2) if per_segment else (clients,)
    choice = torch.rand(shape, dtype=torch.float64, requires_grad=True)

    def one(local, choice):
        return ops.mix(local, global_, choice, segments)

    with ops.use(implementation), torch.profiler.profile() as profile:
        mixed = torch.vmap(one)(local, choice)
        sum((m**2).sum() for m in mixed).backward()
    calls = [event.name for event in profile.events() if event.name.startswith("pfl_fast::mix")]
    # The profiler sees the forward before and after its vmap rule; the backward is already batched.
    expected = ["pfl_fast::mix", "pfl_fast::mix", "pfl_fast::mix_backward"]
    assert calls == (expected if implementation == "native" else [])
    twins = [[x.detach().clone().requires_grad_() for x in tensors] for tensors in (local, global_, [choice])]
    total = 0
    for n in range(clients):
        alone = ops.mix([x[n] for x in twins[0]], twins[1], twins[2][0][n], segments)
        total = total + sum((m**2).sum() for m in alone)
        for m, a in zip(mixed, alone, strict=True):
            assert_close(m[n].detach(), a.detach())
    total.backward()
    for mine, theirs in zip((*local, *global_, choice), (t for tensors in twins for t in tensors), strict=True):
        assert_close(mine.grad, theirs.grad, scale=1000)


@both_implementations
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_choice_for_half_types_may_be_float(implementation, dtype):
    local, global_ = torch.zeros(70000, dtype=dtype), torch.ones(70000, dtype=dtype)
    choice = torch.tensor(0.1, requires_grad=True)
    with ops.use(implementation):
        mixed = ops.mix(local, global_, choice)
    mixed.backward(torch.ones_like(mixed))
    assert torch.equal(mixed.detach(), torch.full_like(local, 0.1))
    assert choice.grad.item() == 70000  # more than float16 can hold


@both_implementations
def test_no_tensors(implementation):
    with ops.use(implementation):
        assert ops.mix([], [], torch.tensor(0.5)) == []


def test_strided_stacks_are_read_in_place():
    wide, choice = torch.randn(6, 2, 40, dtype=torch.float64), torch.rand(3, 1, dtype=torch.float64)
    local, global_ = wide[::2, 0, :30], wide[1::2, 1, 3:33]
    actual = torch.ops.pfl_fast.mix([local], [global_], [choice], [0], False)[0]
    assert same_bits(actual, local + choice * (global_ - local))
