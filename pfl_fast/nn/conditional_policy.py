"""FedCP's conditional policy network (CPN): for each sample, which features are global and which personal.

    a = activation(norm(Linear(K, 2K)(...)))       after depth - 1 times Linear(K, K) and ReLU
    [r; s] = softmax over the two halves of a
    global_part = r * h,  personal_part = s * h

Zhang et al., "FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy",
KDD 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from pfl_fast import ops

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "ln": nn.LayerNorm,
    "bn": nn.BatchNorm1d,
    "gn": lambda width: nn.GroupNorm(2, width),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
POLICIES = ("softmax", "gumbel")


class ConditionalPolicy(nn.Module):
    """Splits features by what a small network says about each sample.

    Args:
        features: K, the width of the features.
        depth: linear layers in all; the paper tries 1 to 4.
        norm: ``"ln"`` over both halves together, ``"bn"`` over the batch, ``"gn"`` for each half on its own.
        activation: ``"relu"``, ``"tanh"`` or ``"sigmoid"``.
        policy: ``"softmax"``, or ``"gumbel"`` for the soft Gumbel-softmax of the authors' code.

    One client per module: ``torch.vmap`` with ``torch.func.functional_call`` runs stacked clients.

    >>> policy = ConditionalPolicy(features=4)
    >>> h = torch.randn(3, 4)
    >>> global_part, personal_part = policy(h, context=h)
    >>> torch.allclose(global_part + personal_part, h)
    True
    """

    def __init__(
        self, features: int, depth: int = 1, norm: str = "ln", activation: str = "relu", policy: str = "softmax"
    ) -> None:
        super().__init__()
        _expect_at_least_one("features", features)
        _expect_at_least_one("depth", depth)
        _expect_one_of("norm", norm, NORMS)
        _expect_one_of("activation", activation, ACTIVATIONS)
        _expect_one_of("policy", policy, POLICIES)
        layers: list[nn.Module] = []
        for _ in range(depth - 1):
            layers += [nn.Linear(features, features), nn.ReLU()]
        self.linear = nn.Sequential(*layers, nn.Linear(features, 2 * features))
        self.norm = NORMS[norm](2 * features)
        self.activation = activation
        self.policy = policy

    def forward(self, h: Tensor, context: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(global_part, personal_part)`` of the features.

        Args:
            h: ``[b, K]`` features.
            context: the network's input, of h's shape or broadcastable to it, such as ``[K]`` for one policy for all
                samples.
            seed: int64 scalar tensor, the noise of ``policy="gumbel"``; None in evaluation mode: no noise. There is
                none for ``"softmax"``.
        """
        return self.route(h, self.scores(h, context), seed)

    def scores(self, h: Tensor, context: Tensor) -> Tensor:
        """``[b, 2K]``, what the network says about each sample, for :meth:`route`; arguments as in ``forward``.

        LayerNorm with ReLU is left to ``route``, which does all in one pass. BatchNorm is in here, so that its running
        statistics see each sample once however often it is routed.
        """
        # Of h's dtype, as autocast may have given these another one.
        a: Tensor = self.linear(context).to(h.dtype).expand(*h.shape[:-1], -1)
        return a if self._routes_norm else ACTIVATIONS[self.activation](self.norm(a)).to(h.dtype)

    def route(self, h: Tensor, scores: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(r * h, s * h)``: softmax of the halves of what :meth:`scores` gave, and both products."""
        self._check_seed(seed)
        if isinstance(self.norm, nn.LayerNorm) and self._routes_norm:
            gamma, beta = self.norm.weight.to(h.dtype), self.norm.bias.to(h.dtype)
            return ops.cpn_route(h, scores, gamma, beta, self.norm.eps, seed)
        return ops.route(h, scores, seed)

    @property
    def _routes_norm(self) -> bool:
        """Whether one operator does norm, activation and routing."""
        return isinstance(self.norm, nn.LayerNorm) and self.activation == "relu"

    def extra_repr(self) -> str:
        """What the printed module cannot show by its children."""
        return f"activation={self.activation!r}, policy={self.policy!r}"

    def _check_seed(self, seed: Tensor | None) -> None:
        if self.policy == "gumbel" and seed is None and self.training:
            raise ValueError("ConditionalPolicy: seed must be given to train with policy='gumbel', got None")
        if self.policy == "softmax" and seed is not None:
            raise ValueError("ConditionalPolicy: seed must be None for policy='softmax', which has no noise, got one")


def _expect_at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"ConditionalPolicy: {name} must be an integer of at least 1, got {value!r}")


def _expect_one_of(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"ConditionalPolicy: {name} must be one of {', '.join(choices)}, got {value!r}")
