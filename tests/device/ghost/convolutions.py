"""Convolutions on a ghost GPU, one launch each: there is no ghost of cuDNN."""

from __future__ import annotations

import ctypes
import warnings

import torch
from torch import Tensor


def install(runtime: ctypes.CDLL) -> torch.library.Library:
    """Replaces torch's convolutions on CUDA, as long as the returned object lives."""

    def launch(name: str) -> None:
        runtime.ghost_launch(name.encode())

    def convolution(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        _transposed: bool,
        _output_padding: list[int],
        groups: int,
    ) -> Tensor:
        layout = channels_last(x, weight)
        sizes = zip(x.shape[2:], weight.shape[2:], padding, dilation, stride, strict=True)
        shape = [(side + 2 * pad - gap * (k - 1) - 1) // step + 1 for side, k, pad, gap, step in sizes]
        x, weight = x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        launch("cudnn convolution" if groups == 1 else "cudnn grouped convolution")
        out = torch.empty([len(x), len(weight), *shape], dtype=x.dtype, device=x.device, memory_format=layout)
        return out if bias is None else out.add_(bias.view(1, -1, *([1] * len(shape))))

    def backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: object) -> tuple[Tensor | None, ...]:
        layout, mask = channels_last(x, weight), rest[-1]
        assert isinstance(mask, list)
        grad, x, weight = (t.contiguous(memory_format=layout) for t in (grad, x, weight))
        found: list[Tensor | None] = [None, None, None]
        for i, (like, name) in enumerate(((x, "cudnn data gradient"), (weight, "cudnn weight gradient"))):
            if mask[i]:
                launch(name)
                found[i] = torch.empty_like(like)
        if mask[2]:
            found[2] = grad.sum((0, *range(2, grad.dim())))
        return tuple(found)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*previously registered kernel.*")
        library.impl("convolution", convolution, "CUDA")
        library.impl("convolution_backward", backward, "CUDA")
    return library


def channels_last(*tensors: Tensor) -> torch.memory_format:
    """Memory format of cuDNN's result: channels-last if an argument has it and is not contiguous, too."""
    last = any(
        t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in tensors
    )
    return torch.channels_last if last else torch.contiguous_format
