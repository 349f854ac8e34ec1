"""Dropout whose noise is a pure function of a seed, so every executor drops the same values.

In training mode ``y = keep * x / (1 - p)`` with ``keep = philox_uniform(seed ^ hash(salt)) >= p``, otherwise ``y = x``.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from pfl_fast import ops


class SeededDropout(nn.Module):
    """Dropout like ``nn.Dropout``, with noise determined by the buffer ``seed``.

    The buffer is an int64 scalar, initially 0, and not part of the state dict. Set it before each training step with
    :func:`seed_dropout`, or pass one seed per client through ``torch.func.functional_call`` under ``torch.vmap``. A
    layer called twice in one forward pass drops the same positions twice.

    Args:
        p: probability of an element to be dropped, from 0 to 1.
        salt: number that makes layers with the same seed draw different noise.
        noise_dims: number of leading dimensions with independent noise: all (None), samples (1, stochastic depth),
            samples and channels (2, ``nn.Dropout2d``), or none, which keeps or drops the whole input (0).

    >>> layer = SeededDropout(0.5)
    >>> x = torch.ones(2, 3)
    >>> torch.equal(layer(x), layer(x)), torch.equal(layer.eval()(x), x)
    (True, True)
    """

    seed: Tensor

    def __init__(self, p: float = 0.5, salt: int = 0, noise_dims: int | None = None) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"SeededDropout: p must be from 0 to 1, got {p!r}")
        if noise_dims is not None and noise_dims < 0:
            raise ValueError(f"SeededDropout: noise_dims must be None or at least 0, got {noise_dims!r}")
        self.p = p
        self.salt = salt
        self.noise_dims = noise_dims
        # Hashed, since seeds and salts may be small numbers and 1 ^ 2 == 2 ^ 1.
        self._salt_bits = int.from_bytes(hashlib.blake2b(str(salt).encode(), digest_size=8).digest(), "little") >> 1
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drops elements of ``x``, of any shape, and scales the others by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        noise_dims = x.dim() if self.noise_dims is None else self.noise_dims
        shape = [size if dim < noise_dims else 1 for dim, size in enumerate(x.shape)]
        keep = ops.philox_uniform(self.seed ^ self._salt_bits, shape) >= self.p
        return torch.where(keep, x / (1 - self.p) if self.p < 1 else x, 0.0)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return f"p={self.p}, salt={self.salt}" + ("" if self.noise_dims is None else f", noise_dims={self.noise_dims}")


def replace_dropout(module: nn.Module) -> nn.Module:
    """Replaces every dropout layer by a :class:`SeededDropout` with a unique salt.

    Supports ``nn.Dropout``, ``nn.Dropout1d`` to ``3d`` and torchvision's ``StochasticDepth``. Modifies the module in
    place and returns it, or returns its replacement if the module itself is a dropout layer.

    Raises:
        TypeError: for ``nn.AlphaDropout`` and ``nn.FeatureAlphaDropout``.

    >>> replace_dropout(nn.Sequential(nn.Dropout(0.1), nn.Dropout2d(0.2)))
    Sequential(
      (0): SeededDropout(p=0.1, salt=1)
      (1): SeededDropout(p=0.2, salt=2, noise_dims=2)
    )
    """
    salt = max((layer.salt for layer in module.modules() if isinstance(layer, SeededDropout)), default=0)
    replacements: dict[nn.Module, nn.Module] = {}
    for layer in module.modules():
        arguments = _seeded_arguments(layer)
        if arguments is not None:
            salt += 1
            replacements[layer] = SeededDropout(salt=salt, **arguments).train(layer.training)
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return replacements.get(module, module)


def seed_names(module: nn.Module) -> list[str]:
    """Returns the names of all dropout seeds in ``module.named_buffers()``.

    >>> seed_names(nn.Sequential(nn.Linear(2, 2), SeededDropout()))
    ['1.seed']
    """
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, SeededDropout)]
    return [f"{name}.seed" if name else "seed" for name, _ in layers]


def seed_dropout(module: nn.Module, seed: int | Tensor) -> None:
    """Sets the seed of every dropout layer in ``module``."""
    for layer in module.modules():
        if isinstance(layer, SeededDropout):
            layer.seed.fill_(seed)


def _seeded_arguments(layer: nn.Module) -> dict[str, Any] | None:
    """Returns the arguments of the SeededDropout that replaces ``layer``, or None if it is not a dropout layer."""
    if isinstance(layer, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
        raise TypeError(f"replace_dropout: no seeded form of {type(layer).__name__}; use nn.Dropout instead")
    if isinstance(layer, _DropoutNd):
        return {"p": layer.p, "noise_dims": None if isinstance(layer, nn.Dropout) else 2}
    # Only an imported torchvision can have created the layer.
    stochastic_depth = getattr(sys.modules.get("torchvision.ops"), "StochasticDepth", None)
    if stochastic_depth is not None and isinstance(layer, stochastic_depth):
        return {"p": layer.p, "noise_dims": {"row": 1, "batch": 0}[str(layer.mode)]}
    return None
