"""Random augmentation of training images, on tensors.

The augmentation of a sample depends on its key only, not on its batch: it is the same for one client or a stack of
clients, on any device.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pfl_fast import ops

AUGMENTATIONS = ("none", "flip", "flip-rotate", "crop-flip")
DEGREES = 30.0  # maximum rotation in either direction
PADDING = 4  # maximum shift of a crop, in pixels


def augment(name: str, x: Tensor, keys: Tensor, black: Tensor) -> Tensor:
    """Augments each image with random draws from its key.

    ``"flip"`` flips half of the images horizontally; ``"flip-rotate"`` also rotates each by an angle uniform in
    [-30, 30] degrees (bilinear); ``"crop-flip"`` shifts each by up to 4 pixels in both directions and flips half of
    them. Pixels from outside the image are black.

    Args:
        name: one of ``AUGMENTATIONS``.
        x: ``[*batch, C, H, W]`` floating.
        keys: ``[*batch]`` int64.
        black: ``[C]`` value of a black pixel.

    Returns:
        A tensor with the shape, dtype and memory format of ``x``.
    """
    if name == "none":
        return x
    images = x.flatten(0, -4)
    draws = ops.philox_uniform(keys.flatten(), [3])  # flip; then angle, or shifts of rows and columns
    flip = draws[:, 0] < 0.5
    if name == "crop-flip":
        shifts = (draws[:, 1:] * (2 * PADDING + 1)).long() - PADDING
        result = _shifted(images, shifts[:, 0], shifts[:, 1], flip, black)
    else:
        result = torch.where(flip[:, None, None, None], images.flip(-1), images)
        if name == "flip-rotate":
            result = _rotated(result, (2 * draws[:, 1].double() - 1) * math.radians(DEGREES), black)
    channels_last = x.stride(-3) == 1 and x.shape[-3] > 1
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return result.to(x.dtype).contiguous(memory_format=memory_format).view(x.shape)


def _shifted(images: Tensor, down: Tensor, right: Tensor, flip: Tensor, black: Tensor) -> Tensor:
    count, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device) + right[:, None]
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    picked = images[
        torch.arange(count, device=images.device)[:, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        rows.clamp(0, height - 1)[:, None, :, None],
        columns.clamp(0, width - 1)[:, None, None, :],
    ]
    inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
    return torch.where(inside, picked, black[:, None, None].to(picked.dtype))


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _rotated(images: Tensor, angle: Tensor, black: Tensor) -> Tensor:
    """Rotates images counter-clockwise by ``angle`` [n] around their centre."""
    height, width = images.shape[-2:]
    # Sine and cosine in float64, rounded once: vectorised and scalar float32 versions differ in the last bit.
    cos, sin = (f(angle).float()[:, None, None] for f in (torch.cos, torch.sin))
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    grid = torch.stack([(cos * x - sin * y) * (2 / width), (sin * x + cos * y) * (2 / height)], -1)
    # grid_sample pads with zeros: shift values so that black is zero.
    shift = black.float()[:, None, None]
    return F.grid_sample(images.float() - shift, grid, align_corners=False).add_(shift)
