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

AUGMENTATIONS = ("none", "flip", "flip-rotate", "crop-flip", "resized-crop-flip")
DEGREES = 30.0  # maximum rotation in either direction
PADDING = 4  # maximum shift of a crop, in pixels
# Random resized crop, as torchvision's RandomResizedCrop: share of the area, width / height, draws before the fallback.
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def augment(name: str, x: Tensor, keys: Tensor, black: Tensor) -> Tensor:
    """Augments each image with random draws from its key.

    ``"flip"`` flips half of the images horizontally; ``"flip-rotate"`` also rotates each by an angle uniform in
    [-30, 30] degrees (bilinear); ``"crop-flip"`` shifts each by up to 4 pixels in both directions and flips half of
    them; ``"resized-crop-flip"`` stretches a random part of 8 to 100 % of each to its size (bilinear, without
    antialiasing) and flips half of them. Pixels from outside the image are black.

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
    count = 3 + 2 * TRIES if name == "resized-crop-flip" else 3
    draws = ops.philox_uniform(keys.flatten(), [count])  # flip; then angle, or rows and columns, then sizes of a crop
    flip = draws[:, 0] < 0.5
    if name == "crop-flip":
        shifts = (draws[:, 1:] * (2 * PADDING + 1)).long() - PADDING
        result = _shifted(images, shifts[:, 0], shifts[:, 1], flip, black)
    elif name == "resized-crop-flip":
        result = _resized(images, draws[:, 1:].double(), flip)
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


def _resized(images: Tensor, draws: Tensor, flip: Tensor) -> Tensor:
    """Resizes a crop of each image to the size of the image; ``draws`` [n, 2 + 2 TRIES]: place, areas, ratios."""
    top, left, height, width = _crop(draws, *images.shape[-2:])
    rows, columns = (torch.arange(size, device=images.device) + 0.5 for size in images.shape[-2:])
    # Positions in the image, in pixels from its edge, and then from -1 to 1, at which grid_sample reads.
    y = top[:, None] + rows * (height / len(rows))[:, None]
    x = left[:, None] + columns * (width / len(columns))[:, None]
    x = torch.where(flip[:, None], x.flip(1), x)
    y, x = 2 * y / len(rows) - 1, 2 * x / len(columns) - 1
    grid = torch.stack([x[:, None, :].expand(-1, len(rows), -1), y[:, :, None].expand(-1, -1, len(columns))], -1)
    return F.grid_sample(images.float(), grid.float(), padding_mode="border", align_corners=False)


def _crop(draws: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns top, left, height and width ``[n]`` of a random part of an image, as whole numbers of pixels.

    The first drawn size that fits is taken; if none fits, the largest central part of an allowed ratio.
    """
    areas = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draws[:, 2 : 2 + TRIES])
    low, high = (math.log(ratio) for ratio in RATIO)
    ratios = torch.exp(low + (high - low) * draws[:, 2 + TRIES :])
    widths, heights = torch.round(torch.sqrt(areas * ratios)), torch.round(torch.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1)
    h = torch.where(any_fits, heights.gather(1, first)[:, 0], float(min(height, round(width / RATIO[0]))))
    w = torch.where(any_fits, widths.gather(1, first)[:, 0], float(min(width, round(height * RATIO[1]))))
    top = torch.where(any_fits, torch.floor(draws[:, 0] * (height - h + 1)), torch.round((height - h) / 2))
    left = torch.where(any_fits, torch.floor(draws[:, 1] * (width - w + 1)), torch.round((width - w) / 2))
    return top, left, h, w


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
