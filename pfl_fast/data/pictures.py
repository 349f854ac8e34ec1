"""Pictures of data sets and partitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import REAL, Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.errors import DataError, DataRequestError
from pfl_fast.randomness import key, permutation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXAMPLES = 12  # images per row, with one row per class
ROWS = 20  # maximum number of classes with a row each; with more classes, each gets one image
GRID = 20  # images per row, with one image per class
LARGEST = 60  # maximum number of images per row, with one row per domain
FORMATS = ("png", "pdf", "svg", "jpg")
INK = "#2b6cb0"


def sample_sheet(dataset: Dataset, file: str | Path) -> None:
    """Draws random images into a PNG: one row per class, one row per domain, or one image per class."""
    if dataset.modality != "images":
        raise DataError(f"{dataset.name} holds {dataset.modality}; only images can be drawn")
    if len(dataset) == 0:
        raise DataError(f"{dataset.name} is empty; there is nothing to draw")
    if dataset.domain is not None:
        cells = _domain_cells(dataset)
        rows, columns = list(dataset.domains), list(dataset.classes[:LARGEST])
    elif len(dataset.classes) <= ROWS:
        cells = [_drawn(dataset.y == label, EXAMPLES, key(0, "sheet", label)) for label in range(len(dataset.classes))]
        rows, columns = list(dataset.classes), []
    else:
        one = [_drawn(dataset.y == label, 1, key(0, "sheet", label))[0] for label in range(len(dataset.classes))]
        one += [None] * (-len(one) % GRID)
        cells = [one[first : first + GRID] for first in range(0, len(one), GRID)]
        rows, columns = [], []
    _montage(dataset, cells, rows, columns, file)


def partition_plot(
    partition: Partition, y: NDArray[np.int64], file: str | Path, classes: Sequence[str] | None = None
) -> None:
    """Plots the training samples of each client and class as bubbles with areas proportional to their number.

    Args:
        partition: partition to plot.
        y: ``[n]`` labels of the data set.
        file: PNG file to write.
        classes: names of the classes. Default: their numbers.
    """
    labels = len(classes) if classes is not None else int(y.max(initial=0)) + 1
    counts = np.stack([np.bincount(y[index], minlength=labels) for index in partition.train])
    width, height = (float(np.clip(12 / size, low, 0.45)) for size, low in ((partition.clients, 0.1), (labels, 0.06)))
    names = list(classes) if classes is not None and labels <= 50 else [str(label) for label in range(labels)]
    longest = max(map(len, partition.names), default=0)
    turned = longest * 0.07 > width
    axes, save = _figure(width * partition.clients + 0.2, height * labels + 0.2, max(map(len, names)), longest * turned)
    client, label = np.nonzero(counts)
    cell = min(width, height)
    widest = 72 * max(0.95 * cell, min(0.14, 2.2 * cell))  # points; bubbles of tiny cells may overlap
    areas = np.maximum(0.4, widest**2 * counts[client, label] / counts.max())
    axes.scatter(client, label, s=areas, c=INK, alpha=0.75, linewidths=0)
    axes.set(xlim=(-0.7, partition.clients - 0.3), ylim=(labels - 0.3, -0.7), xlabel="client", ylabel="class")
    columns = _ticks(partition.clients, width, 0.3)
    axes.set_xticks(columns, [partition.names[c] if partition.names else str(c) for c in columns])
    if turned:
        axes.tick_params(axis="x", rotation=90)
    rows = _ticks(labels, height, 0.16)
    axes.set_yticks(rows, [names[row] for row in rows])
    axes.tick_params(labelsize=8, length=2)
    axes.grid(alpha=0.15, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_title(_title(partition, int(counts.max())), fontsize=9, loc="left")
    save(file)


def _title(partition: Partition, largest: int) -> str:
    chosen = {"dirichlet": "beta", "pathological": "classes_per_client"}.get(partition.rule)
    parts = [f"{partition.settings.get('dataset', '')} {partition.rule}".strip()]
    parts += [
        f"{name.replace('_', ' ')} {partition.settings[name]}"
        for name in (chosen, "seed")
        if name in partition.settings
    ]
    parts += ["legacy"] if partition.settings.get("legacy") else []
    parts += [source] if (source := partition.settings.get("source", REAL)) != REAL else []
    return ", ".join(parts) + f"\nlargest bubble {largest} samples, hash {partition.hash}"


def _ticks(count: int, cell: float, inches: float) -> list[int]:
    """Returns every n-th number, so that labels are at least ``inches`` apart."""
    step = next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, count + 1) if step * cell >= inches or step > count
    )
    return list(range(0, count, step))


def _figure(width: float, height: float, longest: int, longest_below: int = 0) -> tuple[Axes, Any]:
    """Returns axes of a size in inches with margins for labels of some letters, and a function that writes the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    left, right, bottom, top = 0.6 + 0.075 * longest, 0.15, 0.5 + 0.075 * longest_below, 0.5
    size = (max(4.0, width + left + right), height + bottom + top)
    figure = Figure(figsize=size, dpi=130)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))

    def save(file: str | Path) -> None:
        ending = Path(file).suffix.lower().removeprefix(".") or "png"
        if ending not in FORMATS:
            raise DataRequestError(f"{file}: pictures are written as {', '.join(FORMATS)}; choose one of these endings")
        try:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            canvas.print_figure(str(file), format=ending)
        except OSError as error:
            raise DataError(f"{file} cannot be written ({error.strerror}); choose another file") from error

    return axes, save


def _drawn(mask: NDArray[np.bool_], count: int, draw: int) -> list[int | None]:
    members = np.flatnonzero(mask)
    chosen: list[int | None] = members[permutation(draw, len(members))[:count]].tolist()
    return chosen + [None] * (count - len(chosen))


def _domain_cells(dataset: Dataset) -> list[list[int | None]]:
    labels = range(min(len(dataset.classes), LARGEST))
    return [
        [_drawn((dataset.domain == d) & (dataset.y == c), 1, key(0, "sheet", d, c))[0] for c in labels]
        for d in range(len(dataset.domains))
    ]


def _montage(
    dataset: Dataset, cells: list[list[int | None]], rows: list[str], columns: list[str], file: str | Path
) -> None:
    step = -(-max(dataset.x.shape[1:3]) // 96)  # large images are subsampled
    small = dataset.x[:, ::step, ::step]
    height, width, channels = small.shape[1:]
    zoom = max(1, round(64 / max(height, width)))
    gap = 2 if rows else 12 + round(max(height, width) * zoom / 8)  # class names are written between the images
    tall, wide = height * zoom + gap, width * zoom + 2
    sheet = np.full((tall * len(cells), wide * len(cells[0]), 3), 255, dtype=np.uint8)
    for row, line in enumerate(cells):
        for column, sample in enumerate(line):
            if sample is not None:
                image = np.broadcast_to(np.asarray(small[sample])[..., : 3 if channels >= 3 else 1], (height, width, 3))
                large = image.repeat(zoom, 0).repeat(zoom, 1)
                sheet[row * tall : row * tall + height * zoom, column * wide : column * wide + width * zoom] = large
    axes, save = _figure(sheet.shape[1] / 130, sheet.shape[0] / 130, max(map(len, rows), default=0))
    axes.imshow(sheet, interpolation="nearest")
    axes.axis("off")
    for row, name in enumerate(rows):
        axes.text(-6, row * tall + height * zoom / 2, name, ha="right", va="center", fontsize=8)
    for column, name in enumerate(columns):
        axes.text(column * wide + wide / 2, tall * len(cells) + 4, name, ha="right", va="top", fontsize=6, rotation=30)
    if not rows:
        for number, name in enumerate(dataset.classes):
            place = (number % GRID * wide, number // GRID * tall + height * zoom + 1)
            short = name if len(name) <= 12 else f"{name[:11]}…"
            axes.text(*place, short, ha="left", va="top", fontsize=4.5)
    axes.set_title(
        f"{dataset.name}: {len(dataset)} samples, {len(dataset.classes)} classes, {dataset.source}",
        fontsize=9,
        loc="left",
    )
    save(file)
