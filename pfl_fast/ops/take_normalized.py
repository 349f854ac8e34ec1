"""Gathers a batch of uint8 images and normalises it in one pass, as a DataLoader does in several.

    out[b, c, h, w] = (images[index[b], h, w, c] / 255 - mean[c]) / std[c]

Computed by exactly this formula: per value if that is fastest, otherwise once for each of the 256 byte values and then
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import (
    FLOAT_NAMES,
    FLOATS,
    check_device,
    check_float,
    check_int64,
    check_tensors,
    expect,
    fail,
    is_readable,
)

OP = "take_normalized"


def take_normalized(
    images: Tensor,
    index: Tensor,
    mean: Tensor | Sequence[float],
    std: Tensor | Sequence[float],
    *,
    channels_last: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Returns ``(images[index] / 255 - mean) / std`` with shape ``[*batch, C, H, W]``.

    Args:
        images: ``[N, H, W, C]`` uint8, contiguous. With ``torch.from_numpy`` of a memory-mapped array, only the
            indexed images are read. Grey images have C = 1.
        index: ``[*batch]`` int64 indices in [0, N); ``[clients, batch]`` returns the batches of all clients in one
            call. CUDA indices are not range-checked, to avoid a synchronisation: images out of range are NaN.
        mean: channel means ``[C]``, numbers or a floating-point tensor on the device of ``images``.
        std: channel standard deviations, likewise.
        channels_last: True for the ``torch.channels_last`` memory format, [H, W, C] per image, which is fastest for
            convolutions on the CPU and for half types on CUDA; False for [C, H, W].
        dtype: dtype of the result: float64, float32, bfloat16 or float16.

    Returns:
        ``[*batch, C, H, W]``, bit for bit equal to indexing, ``.float()``, ``/ 255``, ``- mean``, ``/ std`` on the CPU,
        then rounded once to ``dtype``. Not differentiable.

    >>> images = torch.tensor([[[[0], [255]]], [[[51], [102]]]], dtype=torch.uint8)     # two images of 1 x 2 pixels
    >>> take_normalized(images, torch.tensor([1, 0]), [0.5], [0.5]).squeeze()
    tensor([[-0.6000, -0.2000],
            [-1.0000,  1.0000]])
    """
    check_tensors(OP, images=images, index=index)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"pfl_fast::{OP}: dtype must be a torch.dtype, got {type(dtype).__name__}")
    means, stds = _per_channel("mean", mean, images, dtype), _per_channel("std", std, images, dtype)
    if backend.runs_native(OP, images):
        native = torch.ops.pfl_fast.take_normalized.default
        return cast(Tensor, native(images, index, means, stds, channels_last, dtype))
    _check(images, index, means, stds, dtype)
    _check_index_range(images, index)
    return reference.take_normalized(images, index, means, stds, channels_last, dtype)


def _per_channel(name: str, value: Tensor | Sequence[float], images: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, (int, float)) for v in value):
        raise TypeError(f"pfl_fast::{OP}: {name} must be a tensor or a list of numbers, got {type(value).__name__}")
    return torch.tensor(value, dtype=torch.promote_types(dtype, torch.float32), device=images.device)


def _check(images: Tensor, index: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> None:
    """Raises if an argument violates csrc/ops/take_normalized/contract.h, except for the range of ``index``."""
    shape = list(images.shape)
    expect(OP, images.dtype == torch.uint8, f"images must be uint8, got {images.dtype}")
    expect(OP, images.dim() == 4, f"images must be [count, height, width, channels], got shape {shape}")
    expect(
        OP,
        images.is_contiguous(),
        "images must be contiguous, so that a data set is not copied at each call: call .contiguous() once, "
        f"got shape {shape} with gaps or another order in memory",
    )
    check_int64(OP, "index", index)
    for name, x in {"index": index, "mean": mean, "std": std}.items():
        check_device(OP, name, x, "images", images)
    for name, x in {"mean": mean, "std": std}.items():
        check_float(OP, name, x)
        expect(
            OP,
            x.shape == images.shape[3:],
            f"{name} must be {shape[3:]}, one for each channel of images, got shape {list(x.shape)}",
        )
    expect(OP, dtype in FLOATS, f"dtype must be {FLOAT_NAMES}, got {dtype}")


def _check_index_range(images: Tensor, index: Tensor) -> None:
    if is_readable(index) and index.numel():
        wrong = index[(index < 0) | (index >= len(images))]
        if wrong.numel():
            fail(OP, f"index must be in [0, {len(images)}), the number of images, got {int(wrong.flatten()[0])}")


@backend.fake("take_normalized")
def _(images: Tensor, index: Tensor, mean: Tensor, std: Tensor, channels_last: bool, dtype: torch.dtype) -> Tensor:
    _check(images, index, mean, std, dtype)
    _, height, width, channels = images.shape
    if channels_last:
        return images.new_empty([*index.shape, height, width, channels], dtype=dtype).movedim(-1, -3)
    return images.new_empty([*index.shape, channels, height, width], dtype=dtype)


@backend.vmap("take_normalized")
def _(
    info: Any,
    in_dims: Any,
    images: Tensor,
    index: Tensor,
    mean: Tensor,
    std: Tensor,
    channels_last: bool,
    dtype: torch.dtype,
) -> Any:
    """Runs one call for clients that share images, mean and std, and one call per client otherwise."""
    native = torch.ops.pfl_fast.take_normalized
    if all(d is None for d in (in_dims[0], in_dims[2], in_dims[3])):
        return native(images, index.movedim(in_dims[1], 0), mean, std, channels_last, dtype), 0
    tensors = list(zip((images, index, mean, std), in_dims[:4], strict=True))
    results = [
        native(*[x if d is None else x.select(d, i) for x, d in tensors], channels_last, dtype)
        for i in range(info.batch_size)
    ]
    return torch.stack(results), 0
