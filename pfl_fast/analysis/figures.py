"""The look of all figures: colours that are distinguishable with every kind of colour blindness, lines, bars, maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pfl_fast.comparison.curves import COLOURS, MARKERS

__all__ = ["COLOURS", "MARKERS", "bars", "heatmap", "lines", "pictures", "plain_axes"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEQUENTIAL = "cividis"  # made for readers with and without colour blindness
MANY = 8  # lines above this number are coloured by a map, with a colour bar instead of a legend
RASTER = 400  # cells or points above this number are drawn as pixels, which keeps SVG files small


def plain_axes(axes: Axes, xlabel: str, ylabel: str, title: str = "") -> Axes:
    """Labels axes; removes the frame's upper and right lines, and adds a light grid."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if title:
        axes.set_title(title, loc="left")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def lines(
    figure: Figure, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], xlabel: str, ylabel: str, legend: str = ""
) -> Axes:
    """Draws one line per curve, ``label -> (x, y)``; with many curves, the legend is to the right of the axes."""
    from matplotlib.ticker import MaxNLocator

    axes = plain_axes(figure.add_subplot(), xlabel, ylabel)
    for number, (label, (x, y)) in enumerate(curves.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        style = "-" if number < len(COLOURS) else "--"
        count = len(np.atleast_1d(np.asarray(x)))
        axes.plot(x, y, style, color=colour, marker=marker, markersize=4, markevery=max(1, count // 10), label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(curves) > 1:
        axes.legend(title=legend or None, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    return axes


def bars(
    figure: Figure, labels: Sequence[str], groups: Mapping[str, Sequence[float]], xlabel: str, ylabel: str
) -> Axes:
    """Draws bars for each label, side by side for each group."""
    axes = plain_axes(figure.add_subplot(), xlabel, ylabel)
    width, places = 0.8 / len(groups), np.arange(len(labels))
    for number, (group, values) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * width
        axes.bar(places + shift, values, width, color=COLOURS[number % len(COLOURS)], label=group)
    turned = sum(map(len, labels)) > 60
    axes.set_xticks(places, labels, rotation=40 if turned else 0, ha="right" if turned else "center")
    if len(groups) > 1:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return axes


def heatmap(
    figure: Figure,
    values: ArrayLike,
    xlabel: str,
    ylabel: str,
    unit: str,
    axes: Axes | None = None,
    limits: tuple[float, float] | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    digits: int = 2,
) -> Axes:
    """Draws a matrix ``[rows, columns]``; cells hold their value if there are few; missing values stay white."""
    array = np.asarray(values, float)
    axes = axes or figure.add_subplot()
    low, high = limits or (np.nanmin(array), np.nanmax(array))
    image = axes.imshow(array, cmap=SEQUENTIAL, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(_ticks(array.shape[1]), _texts(array.shape[1], columns), rotation=40 if _long(columns) else 0,
                    ha="right" if _long(columns) else "center")  # fmt: skip
    axes.set_yticks(_ticks(array.shape[0]), _texts(array.shape[0], rows))
    figure.colorbar(image, ax=axes, label=unit, fraction=0.05)
    if array.size <= 200 and max(abs(low), abs(high)) >= 0.5 * 10.0**-digits * 10:
        for (row, column), value in np.ndenumerate(array):
            if np.isfinite(value):
                dark = value < (low + high) / 2
                axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=6,
                          color="white" if dark else "black")  # fmt: skip
    return axes


def _long(labels: Sequence[str]) -> bool:
    return sum(map(len, labels)) > 40


def _ticks(count: int) -> list[int]:
    return list(range(0, count, -(-count // 20)))


def _texts(count: int, labels: Sequence[str]) -> list[str]:
    return [labels[tick] if labels else str(tick) for tick in _ticks(count)]


def pictures(figure: Figure, images: Sequence[Sequence[Any]], titles: Sequence[str], rows: Sequence[str] = ()) -> None:
    """Draws images ``[h, w]`` or ``[h, w, 3]`` in [0, 1], in rows and columns."""
    grid = figure.subplots(len(images), len(images[0]), squeeze=False)
    for number, (row, own) in enumerate(zip(grid, images, strict=True)):
        for axes, image in zip(row, own, strict=True):
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none")
            axes.set(xticks=[], yticks=[])
        if rows:
            row[0].set_ylabel(rows[number], fontsize=8)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=8)
