"""One subspace for all clients and one for each, orthogonal to one another: the frozen projections of FediOS.

Q = an orthonormal d x d basis                r = floor(d / (N + 1))
A_0 = Q[:, :r]  (generic)                     A_i = Q[:, i r : (i + 1) r],  i = 1 .. N  (personal)
P_i = A_i A_i^T: symmetric, P_i^2 = P_i, P_i P_j = 0, trace r
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl_fast import ops

BASES = ("gaussian", "uniform", "identity")
REMAINDERS = ("unused", "generic")
OVERFLOWS = ("error", "cycle", "random")


class OrthogonalProjector(nn.Module):
    """Projects generic and personal features onto their subspaces with :func:`pfl_fast.ops.orthogonal_project`.

    Args:
        features: d, the width of the features.
        clients: N.
        rank: r, the dimensions of each subspace; ``floor(d / (N + 1))`` if not given.
        basis: where Q comes from: ``"gaussian"`` (QR of standard normal numbers), ``"uniform"`` (QR of numbers in
            [0, 1), whose first direction is nearly constant: most of the norm of features that are not negative lies
            in the generic subspace then), ``"identity"`` (subspaces are runs of coordinates).
        remainder: columns of Q beyond (N + 1) r stay ``"unused"`` or make the ``"generic"`` subspace larger.
        overflow: what to do if (N + 1) r > d: ``"error"``; ``"cycle"``: personal blocks are handed out in turn, so
            that some clients share one, and none gets the generic one; ``"random"``: every subspace is drawn on its
            own, so that they are orthogonal only approximately.
        alpha: share of the generic part in the blend.
        relu: whether negative values are cut off after the projections.
        seed: the same seed gives the same bases.

    Buffers:
        generic: ``[d, r]`` (``[d, r + remainder]`` with ``remainder="generic"``), float32 as made.
        personal: ``[N, d, r]``.

    >>> projector = OrthogonalProjector(features=512, clients=20)
    >>> projector.rank, projector.generic.shape, projector.personal.shape
    (24, torch.Size([512, 24]), torch.Size([20, 512, 24]))
    >>> g, p, fused, inner = projector(torch.randn(10, 512), torch.randn(10, 512), client=3)
    >>> bool(inner.abs().max() < 1e-5)
    True
    """

    generic: Tensor
    personal: Tensor

    def __init__(
        self,
        features: int,
        clients: int,
        rank: int | None = None,
        basis: str = "gaussian",
        remainder: str = "unused",
        overflow: str = "error",
        alpha: float = 0.5,
        relu: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _expect_at_least("features", features, 1)
        _expect_at_least("clients", clients, 1)
        _expect_one_of("basis", basis, BASES)
        _expect_one_of("remainder", remainder, REMAINDERS)
        _expect_one_of("overflow", overflow, OVERFLOWS)
        self.features, self.clients, self.basis, self.seed = features, clients, basis, seed
        self.remainder, self.overflow = remainder, overflow
        self.alpha, self.relu = alpha, relu
        self.rank = features // (clients + 1) if rank is None else rank
        self._check_rank()
        generic, personal = self._make_bases()
        self.register_buffer("generic", generic.contiguous())
        self.register_buffer("personal", personal.contiguous())

    def forward(self, f_g: Tensor, f_p: Tensor, client: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projects the features of one client, or of several at once.

        Args:
            f_g: generic features, ``[b, d]`` (any batch dimensions before them) for one client; ``[C, b, d]`` for C.
            f_p: personal features, same shape.
            client: an int, or an int64 tensor ``[C]`` with the client of each entry of the stack.

        Returns:
            ``g``, ``p``, ``fused`` and ``inner`` as :func:`pfl_fast.ops.orthogonal_project` gives them.
        """
        if isinstance(client, int) and not 0 <= client < self.clients:
            raise IndexError(f"OrthogonalProjector: client must be from 0 to {self.clients - 1}, got {client}")
        return ops.orthogonal_project(f_g, f_p, self.generic, self.personal[client], self.alpha, self.relu)

    def extra_repr(self) -> str:
        """What the module prints of itself."""
        return (
            f"features={self.features}, clients={self.clients}, rank={self.rank}, basis={self.basis!r}, "
            f"remainder={self.remainder!r}, overflow={self.overflow!r}, alpha={self.alpha}, relu={self.relu}, "
            f"seed={self.seed}"
        )

    @property
    def _overflows(self) -> bool:
        return (self.clients + 1) * self.rank > self.features

    def _check_rank(self) -> None:
        d, n, r = self.features, self.clients, self.rank
        if not 1 <= r <= d:
            raise ValueError(
                f"OrthogonalProjector: rank must be from 1 to features, {d}, got {r}"
                + (f", which is what {n} clients leave; give rank and overflow='cycle' or 'random'" if r == 0 else "")
            )
        if self._overflows and self.overflow == "error":
            raise ValueError(
                f"OrthogonalProjector: rank must be at most {d // (n + 1)}, as {n} clients and the generic subspace "
                f"need (clients + 1) * rank <= features, {d}, got {r}; lower rank, or give overflow='cycle' or 'random'"
            )
        if self._overflows and self.overflow == "cycle" and 2 * r > d:
            raise ValueError(
                f"OrthogonalProjector: rank must be at most {d // 2} with overflow='cycle', as the generic subspace "
                f"shares with nobody, got {r}; lower rank, or give overflow='random'"
            )

    def _make_bases(self) -> tuple[Tensor, Tensor]:
        d, n, r = self.features, self.clients, self.rank
        generator = torch.Generator().manual_seed(self.seed)
        if self._overflows and self.overflow == "random":
            subspaces = torch.stack([self._orthonormal(generator, r) for _ in range(n + 1)])
            return subspaces[0], subspaces[1:]
        q = self._orthonormal(generator, d)
        # All blocks there are; without overflow exactly those of the generic subspace and of n clients.
        blocks = min(n + 1, d // r)
        personal = [1 + i % (blocks - 1) for i in range(n)]
        generic = q[:, :r]
        if self.remainder == "generic":
            generic = torch.cat([generic, q[:, blocks * r :]], 1)
        return generic, torch.stack([q[:, i * r : (i + 1) * r] for i in personal])

    def _orthonormal(self, generator: torch.Generator, columns: int) -> Tensor:
        """``[d, columns]``: made in double and rounded once, so that float32 bases are as orthonormal as can be."""
        if self.basis == "identity":
            if columns == self.features:
                return torch.eye(self.features)
            chosen = torch.randperm(self.features, generator=generator)[:columns]
            return torch.eye(self.features)[:, chosen]
        draw = torch.randn if self.basis == "gaussian" else torch.rand
        numbers = draw(self.features, columns, generator=generator, dtype=torch.float64)
        q: Tensor
        q, r = torch.linalg.qr(numbers)
        # QR fixes columns up to their signs; those that make R's diagonal positive do not depend on the library.
        return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).float()


def _expect_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"OrthogonalProjector: {name} must be at least {least}, got {value}")


def _expect_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"OrthogonalProjector: {name} must be one of {', '.join(choices)}, got {value!r}")
