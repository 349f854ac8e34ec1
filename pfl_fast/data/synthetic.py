"""Generated data sets that a model learns over several epochs: for tests, demonstrations and stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import SYNTHETIC, Dataset
from pfl_fast.errors import did_you_mean
from pfl_fast.randomness import generator, key, permutation

GRID = 4  # values along each side of a smooth pattern, before interpolation
FINEST = 64  # larger images are drawn at this resolution and enlarged
BLOCK = 512
DISTINCT = 0.8  # standard deviation between classes, relative to that between samples of a class
TEST_SHARE = 6  # every sixth sample is in the official test part
PADDING, START, SPECIAL = 0, 1, 3


def synthetic(
    samples: int = 6000,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    domains: int = 0,
    seed: int = 0,
    modality: str = "images",
    vocabulary: int = 2000,
    name: str = "synthetic",
) -> Dataset:
    """Generates a data set in which each class and each domain has its own pattern.

    Images show the smooth pattern of their class, shifted at random, with smooth clutter and noise; domains change
    colours and background. Texts draw some of their words from the topic of their class. Features are noise around the
    centre of their class.

    Args:
        samples: number of samples, at least 1; sizes of classes (and domains) differ by at most one.
        shape: ``(C, H, W)`` with C = 1 or 3, ``(L,)`` tokens, or any shape of features.
        classes: number of classes.
        domains: number of domains, 0 for none.
        seed: random seed.
        modality: ``"images"``, ``"text"`` or ``"features"``.
        vocabulary: number of tokens; text only.
        name: name of the data set.

    >>> data = synthetic(7, (1, 5, 5), 2)
    >>> data.x.shape, sorted(data.y.tolist())
    ((7, 5, 5, 1), [0, 0, 0, 0, 1, 1, 1])
    """
    if modality not in _MAKERS:
        raise ValueError(
            f"modality must be one of {', '.join(_MAKERS)}, not {modality!r}{did_you_mean(modality, _MAKERS)}"
        )
    if samples < 1 or classes < 1 or domains < 0 or min(shape, default=0) < 1:
        raise ValueError(f"samples, classes and shape must be positive, not {samples}, {classes} and {shape}")
    if modality == "images" and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise ValueError(f"shape must be (1 or 3, height, width) for images, not {shape}")
    if modality == "text" and (len(shape) != 1 or vocabulary < SPECIAL + classes):
        raise ValueError(f"text needs shape (length,) and a vocabulary of at least {SPECIAL + classes} tokens")
    order = permutation(key(seed, "synthetic order"), samples)
    y = order % classes
    domain = order // classes % domains if domains else None
    channels = shape[0] if modality == "images" else 0
    return Dataset(
        name=name,
        x=_MAKERS[modality](y, domain, shape, classes, domains, seed, vocabulary),
        y=y,
        classes=tuple(f"class {i}" for i in range(classes)),
        test=permutation(key(seed, "synthetic test"), samples) < samples // TEST_SHARE,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        domain=domain,
        domains=tuple(f"domain {i}" for i in range(domains)),
        vocabulary=vocabulary if modality == "text" else 0,
        source=SYNTHETIC,
    )


Labels = NDArray[np.int64]


def _images(
    y: Labels, domain: Labels | None, shape: tuple[int, ...], classes: int, domains: int, seed: int, _vocabulary: int
) -> NDArray[Any]:
    channels, full_height, full_width = shape
    square = -(-max(full_height, full_width) // FINEST)
    height, width = -(-full_height // square), -(-full_width // square)
    common = _smooth(key(seed, "synthetic pattern"), 1, height, width, channels)
    patterns = common + DISTINCT * _smooth(key(seed, "synthetic classes"), classes, height, width, channels)
    backgrounds = _smooth(key(seed, "synthetic backgrounds"), max(domains, 1), height, width, channels)
    colours = generator(key(seed, "synthetic colours")).uniform(0.4, 1.6, (max(domains, 1), 1, 1, channels))
    x = np.empty((len(y), full_height, full_width, channels), np.uint8)
    for number, rows in _blocks(len(y)):
        draw = generator(key(seed, "synthetic images", number))
        n = len(y[rows])
        here = domain[rows] if domain is not None else np.zeros(n, np.int64)
        down = (np.arange(height) + draw.integers(-(height // 6), height // 6 + 1, (n, 1))) % height
        across = (np.arange(width) + draw.integers(-(width // 6), width // 6 + 1, (n, 1))) % width
        value = patterns[y[rows, None, None], down[:, :, None], across[:, None, :]]
        value += _smooth(key(seed, "synthetic clutter", number), n, height, width, channels)
        if domain is not None:
            value = value * colours[here].astype(np.float32) + backgrounds[here]
        value += draw.standard_normal(value.shape, np.float32)
        drawn = np.clip(127.5 + 40 * value, 0, 255).astype(np.uint8)
        x[rows] = drawn.repeat(square, 1).repeat(square, 2)[:, :full_height, :full_width]
    return x


def _smooth(key: int, count: int, height: int, width: int, channels: int) -> NDArray[np.float32]:
    """Returns ``[count, H, W, C]`` random values on a coarse grid, interpolated."""
    grid = generator(key).standard_normal((count, GRID, GRID, channels), np.float32)
    down, across = (_interpolation(length) for length in (height, width))
    return np.asarray(np.einsum("hg,ngkc,wk->nhwc", down, grid, across, optimize=True), np.float32)


def _interpolation(length: int) -> NDArray[np.float32]:
    """Returns ``[length, GRID]`` weights of a linear interpolation."""
    place = np.linspace(0, GRID - 1, length)
    return np.asarray(np.maximum(0, 1 - np.abs(place[:, None] - np.arange(GRID))), np.float32)


def _text(
    y: Labels, domain: Labels | None, shape: tuple[int, ...], classes: int, domains: int, seed: int, vocabulary: int
) -> NDArray[Any]:
    """Draws a quarter of the words from the topic of the class and a tenth from that of the domain, if any."""
    words = vocabulary - SPECIAL
    topic_size = max(1, min(50, words // (classes + domains)))
    topics = permutation(key(seed, "synthetic topics"), words)[: (classes + domains) * topic_size] + SPECIAL
    x = np.full((len(y), *shape), PADDING, np.int32)
    for number, rows in _blocks(len(y)):
        draw = generator(key(seed, "synthetic text", number))
        size = x[rows].shape
        common = SPECIAL + (words * draw.random(size) ** 3).astype(np.int64)
        about = topics[(y[rows, None] * topic_size + draw.integers(0, topic_size, size)) % len(topics)]
        pick = draw.random(size)
        chosen = np.where(pick < 0.25, about, common)
        if domain is not None:
            manner = topics[
                ((classes + domain[rows, None]) * topic_size + draw.integers(0, topic_size, size)) % len(topics)
            ]
            chosen = np.where(pick > 0.9, manner, chosen)
        length = draw.integers(max(1, size[1] // 4), size[1] + 1, (size[0], 1))
        x[rows] = np.where(np.arange(size[1]) < length, chosen, PADDING)
    x[:, 0] = START
    return x


def _features(
    y: Labels, domain: Labels | None, shape: tuple[int, ...], classes: int, domains: int, seed: int, _vocabulary: int
) -> NDArray[Any]:
    centres = generator(key(seed, "synthetic centres")).standard_normal((classes, *shape), np.float32)
    shifts = generator(key(seed, "synthetic shifts")).standard_normal((max(domains, 1), *shape), np.float32)
    x = np.empty((len(y), *shape), np.float32)
    for number, rows in _blocks(len(y)):
        noise = generator(key(seed, "synthetic features", number)).standard_normal(x[rows].shape, np.float32)
        x[rows] = 0.5 * centres[y[rows]] + noise + (0 if domain is None else shifts[domain[rows]])
    return x


def _blocks(samples: int) -> Iterator[tuple[int, slice]]:
    for start in range(0, samples, BLOCK):
        yield start // BLOCK, slice(start, start + BLOCK)


_MAKERS = {"images": _images, "text": _text, "features": _features}
