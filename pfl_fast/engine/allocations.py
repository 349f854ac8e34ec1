"""Counts the bytes of allocated tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operators allocate inside the ``with`` block.

    Attributes:
        now: bytes currently allocated.
        most: largest value of ``now``.

    >>> import torch
    >>> with Allocations() as allocations:
    ...     x = torch.zeros(4, dtype=torch.int8)
    ...     y = x.view(2, 2)
    ...     del x, y
    ...     z = torch.zeros(2, dtype=torch.int8)
    >>> allocations.now, allocations.most
    (2, 4)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch says no types here
        self.now = 0
        self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operator; results that do not share memory with an argument are new allocations."""
        for tensor in _tensors((args, kwargs)):
            self._see(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._see(storage, storage.nbytes())
        return result

    def _see(self, storage: UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
