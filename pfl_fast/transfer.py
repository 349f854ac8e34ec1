"""Transfers between the host and devices: copies that the host does not wait for, many values read in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor


def to_device(values: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Returns values of the host on a device. A copy to a GPU goes through pinned memory: the host does not wait.

    Args:
        values: CPU tensor, or integers.
        device: device of the result.
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def read(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Returns the values of tensors, flattened; the host waits once for each device, however many tensors there are.

    >>> read([torch.tensor([1, 2]), torch.tensor(0.5)])
    [[1.0, 2.0], [0.5]]
    """
    found: list[list[float]] = [[] for _ in tensors]
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        # Concatenated by dtype first: on GPUs, one kernel converts all of them.
        dtypes = dict.fromkeys(tensor.dtype for tensor in tensors if tensor.device == device)
        here = [[n for n, t in enumerate(tensors) if (t.device, t.dtype) == (device, dtype)] for dtype in dtypes]
        parts = [torch.cat([tensors[n].detach().flatten() for n in numbers]).double() for numbers in here]
        values = iter(torch.cat(parts).tolist())
        for numbers in here:
            for n in numbers:
                found[n] = list(islice(values, tensors[n].numel()))
    return found
