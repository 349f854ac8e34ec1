"""The optimizer has the interface and the results of torch's."""

import copy

import pytest
import torch
from torch import nn

from pfl_fast.optim import SGD

OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.5, "maximize": True},
]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def groups(net, options):
    return [{"params": net[0].parameters(), **options}, {"params": net[2].parameters(), "lr": 0.02}]


def train(optimizer, net, steps=4, first=0):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(first, first + steps):
        x = torch.randn(6, 7, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_steps_equal_those_of_torch(options):
    own, other = model(), model()
    mine, theirs = (
        optimizer(groups(net, options), lr=0.1) for optimizer, net in ((SGD, own), (torch.optim.SGD, other))
    )
    train(mine, own)
    train(theirs, other)
    for one, two in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    assert str(mine.state_dict()["param_groups"]) == str(theirs.state_dict()["param_groups"])
    assert mine.state_dict()["state"].keys() == theirs.state_dict()["state"].keys()


def test_state_dicts_are_exchanged_with_torch():
    nets, options = [model(), model()], {"momentum": 0.9}
    mine, theirs = SGD(groups(nets[0], options), lr=0.1), torch.optim.SGD(groups(nets[1], options), lr=0.1)
    train(mine, nets[0])
    nets[1].load_state_dict(nets[0].state_dict())
    theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    back = SGD(groups(nets[0], options), lr=0.1)
    back.load_state_dict(copy.deepcopy(theirs.state_dict()))
    train(back, nets[0], first=4)
    train(theirs, nets[1], first=4)
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_parameters_without_gradient_and_later_ones():
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, dtype=torch.float64))]
    optimizer = SGD(weights, lr=0.5, momentum=0.5, dampening=0.5)
    weights[0].grad = torch.ones(3)
    optimizer.step()
    assert weights[1].tolist() == [1, 1]
    weights[1].grad = torch.ones(2, dtype=torch.float64)  # its first step: the buffer is the gradient, not damped
    optimizer.step()
    assert weights[0].tolist() == [0, 0, 0]
    assert weights[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("maximize", [False, True])
def test_a_closure_is_called_and_hooks_run_once(maximize):
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)  # torch adds hooks to a class at its first optimizer
    weight, steps = nn.Parameter(torch.tensor([2.0])), []
    optimizer = SGD([weight], lr=0.25, maximize=maximize)
    optimizer.register_step_post_hook(lambda *_: steps.append(1))

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    assert weight.item() == (3 if maximize else 1)
    assert steps == [1]
