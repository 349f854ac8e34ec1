"""Users' own modules as extractor and head: the head is named, and that the cut is right is checked by running it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.base import Backbone, cut_head


def split(model: nn.Module, head: str, *, example_input: Tensor) -> Backbone:
    """Cuts a copy of any classifier in two, by the name of the submodule that makes logits of features.

    Args:
        model: ``[b, *input_shape] -> [b, C]``, its head being the last thing it does; it is not changed. Its dropout
            becomes :class:`~pfl_fast.nn.SeededDropout`.
        head: as in ``model.named_modules()``, for example ``"fc"`` or ``"classifier.1"``.
        example_input: ``[b, *input_shape]``, b at least 1; random rather than zero, as it shows whether the cut is
            right.

    Raises:
        ConfigError: if there is no such submodule, if the head is not the last layer, if features are not ``[b, K]``,
            if head and extractor share a parameter, or if the model draws from torch's own random numbers.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> backbone = split(model, "3", example_input=torch.randn(4, 2, 3))
    >>> backbone.feature_width, backbone.head
    (5, Linear(in_features=5, out_features=3, bias=True))
    """
    name = type(model).__name__
    _check_head(model, head)
    model = copy.deepcopy(model)
    training = model.training
    expected = _run(model.eval(), example_input, f"model {name} cannot take an input of shape")
    try:
        backbone = cut_head(model, head, feature_width=0).eval()
    except TypeError as error:
        raise ConfigError(f"model {name}: {error}") from error
    features = _run(backbone.extractor, example_input, f"model {name} without its head {head!r} cannot take")
    if features.dim() != 2 or len(features) != len(example_input):
        got = list(features.shape)
        raise ConfigError(
            f"model {name}: what goes into the head {head!r} must be [b, K], got {got}; flatten before it"
        )
    backbone.feature_width = features.shape[1]
    logits = _run(backbone.head, features, f"model {name}: {head!r} is not the last layer, as it cannot take features")
    if logits.shape != expected.shape or not (logits.is_meta or torch.allclose(logits, expected, equal_nan=True)):
        raise ConfigError(
            f"model {name}: {head!r} is not the last thing the model does, as without it in its place the result is"
            f" another; name the last layer, and return logits without softmax"
        )
    tied = set(backbone.extractor.parameters()) & set(backbone.head.parameters())
    if tied:
        raise ConfigError(f"model {name}: head {head!r} and extractor share {len(tied)} parameters; untie them")
    check_randomness(backbone, example_input, name)
    return backbone.train(training)


def check_randomness(backbone: Backbone, example_input: Tensor, name: str) -> None:
    """Raises ConfigError if training draws from torch's generator, whose order the executors could not keep."""
    if example_input.is_meta:
        return
    probe = copy.deepcopy(backbone).cpu().train()
    pair = example_input.cpu().repeat(2, *[1] * (example_input.dim() - 1))  # BatchNorm needs two samples at least
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        _run(probe, pair, f"model {name} in training mode cannot take an input of shape")
        if not torch.equal(before, torch.get_rng_state()):
            raise ConfigError(
                f"model {name} draws random numbers of torch's own in training, so that no run could be repeated; use"
                f" nn.Dropout modules or pfl_fast.nn.SeededDropout, not F.dropout or the dropout of nn.LSTM, attention"
                f" or nn.RReLU"
            )


def _check_head(model: nn.Module, head: str) -> None:
    names = [name for name, _ in model.named_modules() if name]
    if head not in names:
        linear = [name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]
        hint = did_you_mean(head, names) or (f"; its last linear layer is {linear[-1]!r}" if linear else "")
        raise ConfigError(f"model {type(model).__name__} has no submodule {head!r} to be its head{hint}")


def _run(module: nn.Module, x: Tensor, problem: str) -> Tensor:
    try:
        with torch.no_grad():
            result = module(x)
    except Exception as error:  # users' code may raise anything
        raise ConfigError(f"{problem} {list(x.shape)}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Tensor):
        raise ConfigError(f"{problem} {list(x.shape)} and return a tensor: it returned {type(result).__name__}")
    return result
