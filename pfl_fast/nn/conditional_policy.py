"""FedCP's conditional policy network (CPN), which splits each sample's features into a global and a personal part.

    a = activation(norm(Linear(K, 2K)(...)))       after depth - 1 layers of Linear(K, K) and ReLU
    [r; s] = softmax over the two halves of a
    global_part = r * h,  personal_part = s * h

Zhang et al., "FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy",
KDD 2023.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.nn.checks import expect_one_of, expect_positive

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "ln": nn.LayerNorm,
    "bn": nn.BatchNorm1d,
    "gn": lambda width: nn.GroupNorm(2, width),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
POLICIES = ("softmax", "gumbel")


class ConditionalPolicy(nn.Module):
    """Splits features with a small network that scores each sample's features.

    Args:
        features: number of features K.
        depth: number of linear layers; the paper tries 1 to 4.
        norm: ``"ln"`` (LayerNorm over both halves), ``"bn"`` (BatchNorm) or ``"gn"`` (GroupNorm, one group per half).
        activation: ``"relu"``, ``"tanh"`` or ``"sigmoid"``.
        policy: ``"softmax"``, or ``"gumbel"`` for the soft Gumbel-softmax of the authors' code.

    A module holds one client's parameters; run stacked clients with ``torch.vmap`` and ``torch.func.functional_call``.

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
        expect_positive("ConditionalPolicy", "features", features)
        expect_positive("ConditionalPolicy", "depth", depth)
        expect_one_of("ConditionalPolicy", "norm", norm, NORMS)
        expect_one_of("ConditionalPolicy", "activation", activation, ACTIVATIONS)
        expect_one_of("ConditionalPolicy", "policy", policy, POLICIES)
        layers: list[nn.Module] = []
        for _ in range(depth - 1):
            layers += [nn.Linear(features, features), nn.ReLU()]
        self.linear = nn.Sequential(*layers, nn.Linear(features, 2 * features))
        self.norm = NORMS[norm](2 * features)
        self.activation = activation
        self.policy = policy

    def forward(self, h: Tensor, context: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns ``(global_part, personal_part)``.

        Args:
            h: ``[b, K]`` features.
            context: input of the network, of the shape of ``h`` or broadcastable to it, such as ``[K]`` for one policy
                shared by all samples.
            seed: int64 scalar tensor that seeds the noise of ``policy="gumbel"``. None for no noise: in evaluation
                mode, and always with ``policy="softmax"``.
        """
        return self.route(h, self.scores(h, context), seed)

    def scores(self, h: Tensor, context: Tensor) -> Tensor:
        """Returns the network's output ``[b, 2K]`` for :meth:`route`; arguments as in ``forward``.

        LayerNorm with ReLU is applied by ``route``, fused with the split. BatchNorm is applied here, so that its
        running statistics count each sample once, however often it is routed.
        """
        # Autocast may have changed the dtype.
        a: Tensor = self.linear(context).to(h.dtype).expand(*h.shape[:-1], -1)
        return a if self._fuses_norm else ACTIVATIONS[self.activation](self.norm(a)).to(h.dtype)

    def route(self, h: Tensor, scores: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns ``(r * h, s * h)``, where [r; s] is the softmax over the two halves of ``scores``."""
        self._check_seed(seed)
        if isinstance(self.norm, nn.LayerNorm) and self._fuses_norm:
            gamma, beta = self.norm.weight.to(h.dtype), self.norm.bias.to(h.dtype)
            return ops.cpn_route(h, scores, gamma, beta, self.norm.eps, seed)
        return ops.route(h, scores, seed)

    @property
    def _fuses_norm(self) -> bool:
        """True if normalisation and activation are fused with the split."""
        return isinstance(self.norm, nn.LayerNorm) and self.activation == "relu"

    def extra_repr(self) -> str:
        """Returns the arguments that submodules do not show."""
        return f"activation={self.activation!r}, policy={self.policy!r}"

    def _check_seed(self, seed: Tensor | None) -> None:
        if self.policy == "gumbel" and seed is None and self.training:
            raise ValueError("ConditionalPolicy: seed must be given to train with policy='gumbel', got None")
        if self.policy == "softmax" and seed is not None:
            raise ValueError("ConditionalPolicy: seed must be None for policy='softmax', which has no noise, got one")
