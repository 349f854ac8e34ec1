"""Makes the layers of a model of torch's own modules faster on the CPU, for trainers that are not this library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from pfl_fast.nn.conv_relu_pool import ConvReluPool

_Module = TypeVar("_Module", bound=nn.Module)
# Measured forward and backward, bench/test_conv_relu_pool.py: others are as fast or faster in torch.
FEW_CHANNELS, WINOGRAD = 4, 5


def accelerate(model: _Module, log: Callable[[str], None] = print) -> _Module:
    """Fuses ``Conv2d - ReLU - MaxPool2d(2)`` in every ``nn.Sequential`` of a model, in place; returns the model.

    The convolution becomes a :class:`ConvReluPool`, ReLU and pooling become ``nn.Identity``. Parameters stay the same
    objects, and the state dict keeps its names, so optimizers, checkpoints and averages do not change. Results differ
    by the rounding of sums. Fused are convolutions of at most 4 input channels with kernels up to 7 x 7, or 5 x 5
    kernels; others are faster in torch. So are linear layers: their products are limited by the speed of memory.

    Args:
        model: model; subclasses of the three layers, and layers with hooks, are not touched.
        log: receives a line for each convolution: replaced, or why not.

    >>> layers = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4608, 10)]
    >>> model = accelerate(nn.Sequential(*layers))
    0: Conv2d(1, 32, 5), ReLU and MaxPool2d are one operator
    >>> list(model.state_dict())
    ['0.weight', '0.bias', '4.weight', '4.bias']
    """
    in_sequence: set[nn.Module] = set()
    for prefix, parent in list(model.named_modules()):
        if not isinstance(parent, nn.Sequential):
            continue
        layers = list(parent.named_children())
        for (name, conv), (relu_name, relu), (pool_name, pool) in zip(layers, layers[1:], layers[2:], strict=False):
            if type(conv) is not nn.Conv2d or not _is_relu_and_pool(relu, pool):
                continue
            in_sequence.add(conv)
            if not (problem := _problem(conv) or _hooks(conv, relu, pool)):
                fuse(conv)
                parent.register_module(relu_name, nn.Identity())
                parent.register_module(pool_name, nn.Identity())
            log(f"{f'{prefix}.{name}'.lstrip('.')}: {_described(conv)}{_outcome(problem)}")
    for name, layer in model.named_modules():
        if type(layer) is nn.Conv2d and layer not in in_sequence:
            log(f"{name}: {_described(layer)} is left: ReLU and MaxPool2d(2) do not follow it in an nn.Sequential")
    return model


def fuse(conv: nn.Conv2d) -> None:
    """Turns a convolution into a :class:`ConvReluPool` with the same parameters, in place."""
    conv.__class__ = ConvReluPool
    assert isinstance(conv, ConvReluPool)
    conv._padding = int(conv.padding[0])


def _is_relu_and_pool(relu: nn.Module, pool: nn.Module) -> bool:
    if type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d:
        return False
    numbers = [_pair(value) for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]
    return numbers == [(2, 2), (2, 2), (0, 0), (1, 1)] and not pool.ceil_mode and not pool.return_indices


def _problem(conv: nn.Conv2d) -> str:
    """Returns why a convolution is not fused, or an empty text."""
    k, padding = conv.kernel_size[0], conv.padding
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    if conv.bias is None or not plain or isinstance(padding, str) or len({*padding}) > 1 or padding[0] >= k:
        return "it needs a bias, stride 1, one group, and zeros on each side, fewer than the kernel is wide"
    if conv.kernel_size[1] != k or k > 7:
        return "its kernel must be square, at most 7 x 7"
    fast = conv.in_channels <= FEW_CHANNELS or k == WINOGRAD
    return "" if fast else f"torch is faster for {k} x {k} kernels over {conv.in_channels} channels"


def _hooks(*layers: nn.Module) -> str:
    found = any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in layers)
    return "one of the three layers has hooks" if found else ""


def _outcome(problem: str) -> str:
    return f" is left: {problem}" if problem else ", ReLU and MaxPool2d are one operator"


def _described(conv: nn.Conv2d) -> str:
    return f"Conv2d({conv.in_channels}, {conv.out_channels}, {conv.kernel_size[0]})"


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
