"""A batch of normalised images out of a data set of bytes: what a DataLoader does, in one pass.

    out[b, c, h, w] = (images[index[b], h, w, c] / 255 - mean[c]) / std[c]

Computed by this very formula: value by value where that is fastest, else once for each of a byte's 256 values, which
are then looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


def take_normalized(
    images: Tensor,
    index: Tensor,
    mean: Tensor | Sequence[float],
    std: Tensor | Sequence[float],
    *,
    channels_last: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(images[index] / 255 - mean) / std`` with channels in front.

    Args:
        images: ``[N, H, W, C]`` uint8, contiguous; ``torch.from_numpy`` of a memory-mapped array is fine, only the
            images asked for are read. Grey images have C = 1.
        index: ``[*batch]`` int64, each in [0, N); ``[clients, batch]`` gives every client its batch in one call. On a
            GPU the values are not looked at, as that would stall it: there the image of an index outside is NaN.
        mean: ``[C]``, a floating tensor on the device of ``images`` or numbers; likewise ``std``.
        std: see ``mean``.
        channels_last: in memory each image is [H, W, C], as ``torch.channels_last`` has it, which convolutions on the
            CPU and half types on a GPU like best; otherwise [C, H, W].
        dtype: of the result: float64, float32, bfloat16 or float16.

    Returns:
        ``[*batch, C, H, W]``, equal to the bit to indexing, ``.float()``, ``/ 255``, ``- mean``, ``/ std`` on the CPU,
        and rounded once to ``dtype``. Not differentiable.

    >>> images = torch.tensor([[[[0], [255]]], [[[51], [102]]]], dtype=torch.uint8)     # two images of 1 x 2 pixels
    >>> take_normalized(images, torch.tensor([1, 0]), [0.5], [0.5]).squeeze()
    tensor([[-0.6000, -0.2000],
            [-1.0000,  1.0000]])
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"pfl_fast::take_normalized: images must be a tensor, got {type(images).__name__}")
    if not isinstance(index, Tensor):
        raise TypeError(f"pfl_fast::take_normalized: index must be a tensor, got {type(index).__name__}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"pfl_fast::take_normalized: dtype must be a torch.dtype, got {type(dtype).__name__}")
    means, stds = _per_channel("mean", mean, images, dtype), _per_channel("std", std, images, dtype)
    if backend.uses_native():
        native = torch.ops.pfl_fast.take_normalized
        return cast(Tensor, native(images, index, means, stds, channels_last, dtype))
    _check(images, index, means, stds, dtype)
    _check_values(images, index)
    return reference.take_normalized(images, index, means, stds, channels_last, dtype)


def _per_channel(name: str, value: Tensor | Sequence[float], images: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, (int, float)) for v in value):
        raise TypeError(
            f"pfl_fast::take_normalized: {name} must be a tensor or a list of numbers, got {type(value).__name__}"
        )
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.tensor(value, dtype=exact, device=images.device)


def _check(images: Tensor, index: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> None:
    """The contract in csrc/take_normalized.h, for the paths that do not reach it."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise RuntimeError(f"pfl_fast::take_normalized: {what}")

    floats, shape = "float64, float32, bfloat16 or float16", list(images.shape)
    expect(images.dtype == torch.uint8, f"images must be uint8, got {images.dtype}")
    expect(images.dim() == 4, f"images must be [count, height, width, channels], got shape {shape}")
    expect(
        images.is_contiguous(),
        "images must be contiguous, so that a data set is not copied at each call: call .contiguous() once, "
        f"got shape {shape} with gaps or another order in memory",
    )
    expect(index.dtype == torch.int64, f"index must be an int64 tensor, got {index.dtype}")
    for name, x in {"index": index, "mean": mean, "std": std}.items():
        expect(x.device == images.device, f"{name} must be on the device of images, {images.device}, got {x.device}")
    for name, x in {"mean": mean, "std": std}.items():
        expect(x.dtype in backend.FLOATS, f"{name} must be {floats}, got {x.dtype}")
        expect(
            x.shape == images.shape[3:],
            f"{name} must be {shape[3:]}, one for each channel of images, got shape {list(x.shape)}",
        )
    expect(dtype in backend.FLOATS, f"dtype must be {floats}, got {dtype}")


def _check_values(images: Tensor, index: Tensor) -> None:
    if backend.has_values(index) and index.numel():
        bad = index[(index < 0) | (index >= len(images))]
        if bad.numel():
            raise RuntimeError(
                f"pfl_fast::take_normalized: index must be in [0, {len(images)}), the images there are, "
                f"got {int(bad.flatten()[0])}"
            )


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
    """Clients that pick from one data set are one call; with data sets or norms of their own they are one call each."""
    native = torch.ops.pfl_fast.take_normalized
    if all(d is None for d in (in_dims[0], in_dims[2], in_dims[3])):
        return native(images, index.movedim(in_dims[1], 0), mean, std, channels_last, dtype), 0
    tensors = list(zip((images, index, mean, std), in_dims[:4], strict=True))
    results = [
        native(*[x if d is None else x.select(d, i) for x, d in tensors], channels_last, dtype)
        for i in range(info.batch_size)
    ]
    return torch.stack(results), 0
