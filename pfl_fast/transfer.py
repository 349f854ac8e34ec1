"""Transfers between the host and devices: copies that the host does not wait for, many values read at once, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor


def to_device(values: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Returns values on a device. A copy from the host to a GPU goes through pinned memory: the host does not wait.

    Args:
        values: tensor, or integers.
        device: device of the result.
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors in main memory; the host waits once for each GPU, however many tensors there are."""
    copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    for device in dict.fromkeys(tensor.device for tensor in tensors.values()):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    return copies


def write_rows(blocks: Mapping[str, Tensor], rows: Sequence[int], values: Mapping[str, Tensor]) -> None:
    """Writes ``values [C, *shape]`` to C rows of the block ``[N, *shape]`` of the same name; on a GPU, all at once.

    >>> blocks = {"weight": torch.zeros(3, 1)}
    >>> write_rows(blocks, [2, 0], {"weight": torch.tensor([[1.0], [2.0]])})
    >>> blocks["weight"].flatten()
    tensor([2., 0., 1.])
    """
    begin, end = rows[0], rows[0] + len(rows)
    adjacent = list(rows) == list(range(begin, end))
    indices: dict[torch.device, Tensor] = {}
    for name, block in blocks.items():
        if adjacent:
            block[begin:end].copy_(values[name])
        elif block.device.type == "cuda":
            index = indices.get(block.device)
            indices[block.device] = index = to_device(rows, block.device) if index is None else index
            block.index_copy_(0, index, values[name].to(block))
        else:
            for row, value in zip(rows, values[name], strict=True):
                block[row].copy_(value)


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


def pack(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the bytes of tensors in main memory, as one tensor."""
    return torch.cat([t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in tensors])


def unpack(packed: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors that :func:`pack` was given; ``like`` has names, shapes and dtypes.

    >>> some = {"a": torch.tensor([True]), "b": torch.tensor([[0.5, 1.5]])}
    >>> unpack(pack(some.values()), some)
    {'a': tensor([True]), 'b': tensor([[0.5000, 1.5000]])}
    """
    parts = packed.split([tensor.nbytes for tensor in like.values()])
    # Copied, because the bytes of a number start at a multiple of its size.
    return {n: part.clone().view(t.dtype).view(t.shape) for (n, t), part in zip(like.items(), parts, strict=True)}
