"""The fixed projections of FediOS: one subspace shared by all clients and one per client, mutually orthogonal.

Q = an orthonormal d x d basis                r = floor(d / (N + 1))
A_0 = Q[:, :r]  (generic)                     A_i = Q[:, i r : (i + 1) r],  i = 1 .. N  (personal)
P_i = A_i A_i^T: symmetric, P_i^2 = P_i, P_i P_j = 0, trace r
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.nn.checks import expect_one_of, expect_positive

BASES = ("gaussian", "uniform", "identity")
REMAINDERS = ("unused", "generic")
OVERFLOWS = ("error", "cycle", "random")


class OrthogonalProjector(nn.Module):
    """Projects generic and personal features onto their subspaces with :func:`pfl_fast.ops.orthogonal_project`.

    Args:
        features: number of features d.
        clients: number of clients N.
        rank: dimension r of each subspace; by default ``floor(d / (N + 1))``.
        basis: source of Q: ``"gaussian"`` (QR of standard normal numbers), ``"uniform"`` (QR of numbers in [0, 1); its
            first direction is nearly constant, so the generic subspace holds most of the norm of non-negative
            features), ``"identity"`` (each subspace is a range of coordinates).
        remainder: ``"unused"`` ignores the columns of Q beyond (N + 1) r, ``"generic"`` adds them to the generic
            subspace.
        overflow: behaviour if (N + 1) r > d: ``"error"`` raises; ``"cycle"`` assigns personal blocks in turn, so that
            some clients share one, but never the generic one; ``"random"`` draws every subspace independently, so that
            they are only approximately orthogonal.
        alpha: weight of the generic part in the weighted sum.
        relu: whether to apply ReLU after the projections.
        seed: random seed of the bases.

    Buffers:
        generic: ``[d, r]`` (``[d, r + remainder]`` with ``remainder="generic"``), float32.
        personal: ``[N, d, r]``, float32.

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
        expect_positive("OrthogonalProjector", "features", features)
        expect_positive("OrthogonalProjector", "clients", clients)
        expect_one_of("OrthogonalProjector", "basis", basis, BASES)
        expect_one_of("OrthogonalProjector", "remainder", remainder, REMAINDERS)
        expect_one_of("OrthogonalProjector", "overflow", overflow, OVERFLOWS)
        self.features, self.clients, self.basis, self.seed = features, clients, basis, seed
        self.remainder, self.overflow = remainder, overflow
        self.alpha, self.relu = alpha, relu
        self.rank = features // (clients + 1) if rank is None else rank
        self._check_rank()
        generic, personal = self._make_bases()
        self.register_buffer("generic", generic.contiguous())
        self.register_buffer("personal", personal.contiguous())

    def forward(self, f_g: Tensor, f_p: Tensor, client: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projects the features of one client or of C stacked clients.

        Args:
            f_g: generic features, ``[*batch, b, d]`` for one client, ``[C, b, d]`` for C clients.
            f_p: personal features, of the same shape.
            client: index of the client, or an int64 tensor ``[C]`` of indices.

        Returns:
            ``g``, ``p``, ``fused`` and ``inner``; see :func:`pfl_fast.ops.orthogonal_project`.
        """
        if isinstance(client, int) and not 0 <= client < self.clients:
            raise IndexError(f"OrthogonalProjector: client must be from 0 to {self.clients - 1}, got {client}")
        return ops.orthogonal_project(f_g, f_p, self.generic, self.personal[client], self.alpha, self.relu)

    def extra_repr(self) -> str:
        """Returns the arguments."""
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
                + (f", the default for {n} clients; give rank and overflow='cycle' or 'random'" if r == 0 else "")
            )
        if self._overflows and self.overflow == "error":
            raise ValueError(
                f"OrthogonalProjector: rank must be at most {d // (n + 1)}, as {n} clients and the generic subspace "
                f"need (clients + 1) * rank <= features, {d}, got {r}; lower rank, or give overflow='cycle' or 'random'"
            )
        if self._overflows and self.overflow == "cycle" and 2 * r > d:
            raise ValueError(
                f"OrthogonalProjector: rank must be at most {d // 2} with overflow='cycle', as no client may share "
                f"the generic subspace, got {r}; lower rank, or give overflow='random'"
            )

    def _make_bases(self) -> tuple[Tensor, Tensor]:
        d, n, r = self.features, self.clients, self.rank
        generator = torch.Generator().manual_seed(self.seed)
        if self._overflows and self.overflow == "random":
            subspaces = torch.stack([self._orthonormal(generator, r) for _ in range(n + 1)])
            return subspaces[0], subspaces[1:]
        q = self._orthonormal(generator, d)
        # Without overflow: one block for the generic subspace and one per client.
        blocks = min(n + 1, d // r)
        personal = [1 + i % (blocks - 1) for i in range(n)]
        generic = q[:, :r]
        if self.remainder == "generic":
            generic = torch.cat([generic, q[:, blocks * r :]], 1)
        return generic, torch.stack([q[:, i * r : (i + 1) * r] for i in personal])

    def _orthonormal(self, generator: torch.Generator, columns: int) -> Tensor:
        """Returns orthonormal columns ``[d, columns]``, computed in float64 and rounded once to float32."""
        if self.basis == "identity":
            if columns == self.features:
                return torch.eye(self.features)
            chosen = torch.randperm(self.features, generator=generator)[:columns]
            return torch.eye(self.features)[:, chosen]
        draw = torch.randn if self.basis == "gaussian" else torch.rand
        numbers = draw(self.features, columns, generator=generator, dtype=torch.float64)
        q: Tensor
        q, r = torch.linalg.qr(numbers)
        # QR leaves the signs of columns open; a positive diagonal of R makes them independent of the LAPACK library.
        return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).float()
