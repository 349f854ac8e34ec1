from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_fast.nn import BatchCounts, counting, fold_batch_norm
from pfl_fast.testing import assert_close

CLIENTS, SAMPLES, CHANNELS = 3, 5, 4
LAYERS = {
    "1d": (nn.BatchNorm1d, ()),
    "1d of sequences": (nn.BatchNorm1d, (6,)),
    "2d": (nn.BatchNorm2d, (3, 2)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
}
OPTIONS = {"default": {}, "no affine": {"affine": False}, "no statistics": {"track_running_stats": False}}


def stack(layer):
    """Different tensors for every client."""
    torch.manual_seed(1)
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    return {
        name: torch.rand(CLIENTS, *t.shape, dtype=torch.float64) + 0.5 if t.is_floating_point() else t.repeat(CLIENTS)
        for name, t in tensors.items()
    }


def outcome(layer, tensors, x):
    """Result, gradients and buffers of a stack: the layer, then a ReLU in place."""
    tensors = {
        name: t.clone().requires_grad_(t.is_floating_point() and "running" not in name) for name, t in tensors.items()
    }
    x = x.clone().requires_grad_()
    y = torch.vmap(lambda own, x: functional_call(nn.Sequential(layer, nn.ReLU(inplace=True)), own, (x,)))(
        {f"0.{name}": t for name, t in tensors.items()}, x
    )
    inputs = [x, *(t for t in tensors.values() if t.requires_grad)]
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    buffers = [t for t in tensors.values() if not t.requires_grad]
    return [y, *torch.autograd.grad((y * weights).sum(), inputs), *buffers]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_folded_stacks_have_the_results_of_torch(kind, options, training):
    layer_class, size = LAYERS[kind]
    plain = layer_class(CHANNELS, momentum=0.3, **OPTIONS[options]).double().train(training)
    folded = fold_batch_norm(deepcopy(plain))
    assert type(folded) is not layer_class
    x = torch.randn(CLIENTS, SAMPLES, CHANNELS, *size, dtype=torch.float64)
    tensors = stack(plain)
    for mine, theirs in zip(outcome(folded, tensors, x), outcome(plain, tensors, x), strict=True):
        assert_close(mine, theirs, scale=10.0)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_single_client_runs_torchs_layer(kind):
    layer_class, size = LAYERS[kind]
    plain = layer_class(CHANNELS)
    folded, x = fold_batch_norm(deepcopy(plain)), torch.randn(SAMPLES, CHANNELS, *size)
    assert torch.equal(folded(x), plain(x))
    assert torch.equal(folded.running_var, plain.running_var)
    with pytest.raises(ValueError, match="expected"):
        folded(torch.randn(3))


def test_a_shared_input_and_shared_parameters_are_expanded():
    layer, x = fold_batch_norm(nn.BatchNorm1d(CHANNELS, track_running_stats=False)), torch.randn(SAMPLES, CHANNELS)
    y = torch.vmap(lambda w: functional_call(layer, {"weight": w}, (x,)))(torch.ones(2, CHANNELS))
    assert_close(y, layer(x).expand(2, -1, -1))


def test_shared_statistics_are_refused():
    layer = fold_batch_norm(nn.BatchNorm1d(CHANNELS))
    with pytest.raises(RuntimeError, match="running statistics of BatchNorm must be stacked"):
        torch.vmap(layer)(torch.randn(2, SAMPLES, CHANNELS))


class Count(TorchDispatchMode):
    """Counts operators that compute."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.calls += not (operator.is_view or operator._schema.name in {"aten::_unsafe_view", "aten::detach"})
        return operator(*args, **(kwargs or {}))


def test_folding_saves_operators():
    plain = nn.BatchNorm2d(CHANNELS).double()
    x, calls = torch.randn(CLIENTS, SAMPLES, CHANNELS, 3, 3, dtype=torch.float64), []
    for layer in (plain, fold_batch_norm(deepcopy(plain))):
        with Count() as count:
            outcome(layer, stack(plain), x)
        calls.append(count.calls)
    assert calls[1] < calls[0] - 5


def test_counts_of_a_layer_called_twice_are_added_at_once():
    counts = BatchCounts()
    plain = nn.BatchNorm1d(CHANNELS)
    layer = fold_batch_norm(deepcopy(plain), counts)
    tensors, x = stack(plain), torch.randn(CLIENTS, SAMPLES, CHANNELS, dtype=torch.float64)
    tensors["num_batches_tracked"] = torch.tensor([4, 0, 7])

    def call(own, x):
        return functional_call(layer, own, (functional_call(layer, own, (x,)),))

    counting(torch.vmap(call), counts)(tensors, x)
    assert tensors["num_batches_tracked"].tolist() == [6, 2, 9]
    counting(torch.vmap(call), counts)(tensors, x)
    assert tensors["num_batches_tracked"].tolist() == [8, 4, 11]
