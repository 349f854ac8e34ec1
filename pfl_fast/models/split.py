"""Splits user modules into extractor and head by the name of the head, and checks the split by running it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.base import Backbone, cut_head


def split(model: nn.Module, head: str, *, example_input: Tensor) -> Backbone:
    """Splits a copy of a classifier into extractor and head.

    Args:
        model: classifier that maps ``[b, *input_shape]`` to logits ``[b, C]`` and ends with its head; not modified.
            Dropout becomes :class:`~pfl_fast.nn.SeededDropout` in the copy.
        head: name of the head in ``model.named_modules()``, for example ``"fc"`` or ``"classifier.1"``.
        example_input: ``[b, *input_shape]``, b at least 1; random rather than zero, to reveal a wrong split.

    Raises:
        ConfigError: if there is no such submodule, if the head is not the last layer, if features are not ``[b, K]``,
            if head and extractor share a parameter, or if the model uses torch's global random generator.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> backbone = split(model, "3", example_input=torch.randn(4, 2, 3))
    >>> backbone.feature_width, backbone.head
    (5, Linear(in_features=5, out_features=3, bias=True))
    """
    name = type(model).__name__
    _check_head(model, head)
    model = copy.deepcopy(model)
    training = model.training
    expected = run(model.eval(), example_input, f"model {name} cannot take an input of shape")
    is_last = _is_last(model, head, example_input, expected)
    try:
        backbone = cut_head(model, head, feature_width=0).eval()
    except TypeError as error:
        raise ConfigError(f"model {name}: {error}") from error
    features = run(backbone.extractor, example_input, f"model {name} without its head {head!r} cannot take")
    if features.dim() != 2 or len(features) != len(example_input):
        got = list(features.shape)
        raise ConfigError(f"model {name}: the input of the head {head!r} must be [b, K], got {got}; flatten before it")
    backbone.feature_width = features.shape[1]
    logits = run(backbone.head, features, f"model {name}: {head!r} is not the last layer, as it cannot take features")
    same = logits.shape == expected.shape and (
        logits.is_meta or torch.allclose(logits, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
    )
    if not (same and is_last):
        raise ConfigError(
            f"model {name}: {head!r} is not the last layer of the model; name the last layer, and return its logits"
            f" unchanged, without softmax"
        )
    tied = set(backbone.extractor.parameters()) & set(backbone.head.parameters())
    if tied:
        raise ConfigError(f"model {name}: head {head!r} and extractor share {len(tied)} parameters; untie them")
    check_randomness(backbone, example_input, name)
    return backbone.train(training)


def check_randomness(backbone: Backbone, example_input: Tensor, name: str) -> None:
    """Raises ConfigError if training uses torch's global random generator: its order depends on the executor."""
    if example_input.is_meta:
        return
    probe = copy.deepcopy(backbone).cpu().train()
    pair = example_input.cpu().repeat(2, *[1] * (example_input.dim() - 1))  # BatchNorm needs at least two samples
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        run(probe, pair, f"model {name} in training mode cannot take an input of shape")
        if not torch.equal(before, torch.get_rng_state()):
            raise ConfigError(
                f"model {name} uses torch's random generator in training, so that no run could be repeated; use"
                f" nn.Dropout modules or pfl_fast.nn.SeededDropout, not F.dropout or the dropout of nn.LSTM, attention"
                f" or nn.RReLU"
            )


def _is_last(model: nn.Module, head: str, example_input: Tensor, expected: Tensor) -> bool:
    """Returns whether the model returns its head's output unchanged, tested with made-up outputs.

    Comparing real outputs is not enough: a ReLU after the head, for example, may leave them unchanged.
    """
    if expected.is_meta:
        return True
    numbers = torch.arange(1, expected.numel() + 1, device=expected.device)
    made_up = torch.cos(numbers).to(expected.dtype).reshape(expected.shape)
    hook = model.get_submodule(head).register_forward_hook(lambda *_: made_up)
    try:
        return torch.equal(run(model, example_input, "probe"), made_up)
    except ConfigError:  # a layer after the head rejects the output
        return False
    finally:
        hook.remove()


def _check_head(model: nn.Module, head: str) -> None:
    names = [name for name, _ in model.named_modules() if name]
    if head not in names:
        linear = [name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]
        hint = did_you_mean(str(head), names) or (f"; its last linear layer is {linear[-1]!r}" if linear else "")
        raise ConfigError(f"model {type(model).__name__} has no submodule {head!r} to be its head{hint}")


def run(module: nn.Module, x: Tensor, problem: str) -> Tensor:
    """Returns ``module(x)`` without gradients; raises ConfigError that starts with ``problem`` if the call fails."""
    try:
        with torch.no_grad():
            result = module(x)
    except Exception as error:  # users' code may raise anything
        raise ConfigError(f"{problem} {list(x.shape)}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Tensor):
        raise ConfigError(f"{problem} {list(x.shape)} and return a tensor, got {type(result).__name__}")
    return result
