"""Charts of a report: an SVG drawing, and its values as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pfl_fast.report.svg import Axes, colour, dash, drawing, joined, tag, ticks

MARKED = 60  # curves of at most this many points have a marker with its value at each
SHARES = ("accuracy", "AUC", "balanced accuracy", "macro f1")  # their axes end at 1
TABLE_ROWS = 200  # of a table of values


@dataclass(frozen=True)
class Series:
    """A curve of a run.

    Attributes:
        run: number of the run.
        label: label of the run.
        points: pairs of positions and values.
        spread: standard deviation at each point, drawn as a band; empty without.
    """

    run: int
    label: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing with its title.

    Attributes:
        title: heading.
        svg: drawing.
        header: head of the table of values.
        rows: table of values.
        note: text below the drawing.
        run: number of the run if the drawing shows one run only.
        legend: pairs of a name and its colour, for colours that are not runs.
    """

    title: str
    svg: Markup
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    run: int | None = None
    legend: Sequence[tuple[str, str]] = ()


def curves(title: str, series: Sequence[Series], x_title: str, y_title: str, note: str = "") -> Chart:
    """Draws the curves of several runs."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    y_ticks = _limits(min(ys), max(ys))
    if max(ys) <= 1 and y_title.startswith(SHARES):
        y_ticks = [t for t in y_ticks if t < 1] + [1.0] * (y_ticks[-1] >= 1)
    integer = all(float(x).is_integer() for x in xs)
    low, high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    axes = Axes((low, high), (y_ticks[0], y_ticks[-1]))
    x_ticks = [t for t in ticks(low, high, 8, integer) if low <= t <= high]
    parts = [axes.grid(y_ticks, y_title, x_title), axes.x_labels((t, f"{t:g}") for t in x_ticks)]
    described = "; ".join(f"{s.label}: from {s.points[0][1]:.4g} to {s.points[-1][1]:.4g}" for s in series)
    svg = drawing(axes.width, axes.height, f"{title}. {described}", *parts, *(_curve(axes, s) for s in series))
    return Chart(title, svg, *_curve_table(series, x_title), note)


def _curve(axes: Axes, series: Series) -> Markup:
    places = [(axes.at_x(x), axes.at_y(y)) for x, y in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    stroke = {"stroke": colour(series.run), "stroke_dasharray": dash(series.run)}
    parts = [tag("path", d=path, class_="curve", **stroke)]
    if series.spread:
        low, high = axes.y
        pairs = list(zip(series.points, series.spread, strict=True))
        upper = [(axes.at_x(x), axes.at_y(min(y + s, high))) for (x, y), s in pairs]
        lower = [(axes.at_x(x), axes.at_y(max(y - s, low))) for (x, y), s in reversed(pairs)]
        band = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *lower])
        parts.insert(0, tag("polygon", points=band, class_="band", fill=colour(series.run)))
    if len(places) <= MARKED:
        for (x, y), (at, value) in zip(places, series.points, strict=True):
            shown = tag("title", f"{series.label}, {at:g}: {value:.4g}")
            parts.append(tag("circle", shown, cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, fill=colour(series.run)))
    return tag("g", *parts, class_=f"run-{series.run}")


def _curve_table(series: Sequence[Series], x_title: str) -> tuple[list[str], list[list[str]]]:
    values = [{x: f"{y:.4f}" for x, y in one.points} for one in series]
    positions = sorted({x for found in values for x in found})
    step = -(-len(positions) // TABLE_ROWS)
    shown = [x for number, x in enumerate(positions) if number % step == 0 or x == positions[-1]]
    rows = [[f"{x:g}", *(found.get(x, "") for found in values)] for x in shown]
    return [x_title, *(one.label for one in series)], rows


def bars(title: str, values: Mapping[str, float], run: int | None, y_title: str, highest: float | None = None) -> Chart:
    """Draws one bar for each name, in the colour of a run.

    Args:
        title: heading of the chart.
        values: heights by name.
        run: number of the run; None if the values are those of several runs.
        y_title: name of the values.
        highest: upper end of the axis; None: the largest value.
    """
    y_ticks = ticks(0, highest or max([*values.values(), 1e-9]), 5)
    axes = Axes((-0.6, len(values) - 0.4), (0, y_ticks[-1]), height=220)
    width = (axes.at_x(1) - axes.at_x(0)) * 0.8
    drawn, fill = [], "var(--plain)" if run is None else colour(run)
    for place, (name, value) in enumerate(values.items()):
        top = axes.at_y(value)
        position = {"x": f"{axes.at_x(place) - width / 2:.1f}", "y": f"{top:.1f}"}
        size = {"width": f"{width:.1f}", "height": f"{axes.at_y(0) - top:.1f}"}
        drawn.append(tag("rect", tag("title", f"{name}: {value:.4g}"), **position, **size, fill=fill))
    grid = axes.grid(y_ticks, y_title, "")
    svg = drawing(axes.width, axes.height, _bars_text(title, values), grid, _names(axes, list(values)), *drawn)
    rows = [[name, f"{value:.4g}"] for name, value in values.items()]
    return Chart(title, svg, ["", y_title], rows, run=run)


def _bars_text(title: str, values: Mapping[str, float]) -> str:
    if not values:
        return title
    low, *_, high = [*(by_value := sorted(values, key=lambda name: values[name])), by_value[-1]]
    return f"{title}. {len(values)} bars, from {values[low]:.4g} ({low}) to {values[high]:.4g} ({high})"


def _names(axes: Axes, names: Sequence[str]) -> Markup:
    """Labels of a horizontal axis with one place for each name; as many as there is room for."""
    short = [name.removeprefix("client ") for name in names]
    room = (axes.width - axes.left) / (7.5 * max(map(len, short), default=1) + 6)
    step = max(1, -(-len(short) // max(1, int(room))))
    return axes.x_labels((place, name) for place, name in enumerate(short) if place % step == 0)


def stacked_bar(title: str, parts: Mapping[str, float], names: Sequence[str], longest: float, run: int) -> Chart:
    """Draws the parts of a total side by side.

    Args:
        title: heading of the chart.
        parts: lengths by name.
        names: names of all parts, in the order of their colours.
        longest: length of the whole axis.
        run: number of the run.
    """
    width, place, drawn = 560.0, 0.0, []
    for number, name in enumerate(names):
        size = parts.get(name, 0.0) / longest * width
        shown = tag("title", f"{name}: {parts.get(name, 0.0):.4g} s")
        drawn.append(tag("rect", shown, x=f"{place:.1f}", y=2, width=f"{size:.1f}", height=24, fill=colour(number)))
        place += size
    text = ", ".join(f"{name} {parts.get(name, 0.0):.3g} s" for name in names)
    legend = [(f"{name} {parts.get(name, 0.0):.3f} s", colour(number)) for number, name in enumerate(names)]
    return Chart(title, drawing(width, 28, f"{title}. {text}", *drawn), run=run, legend=legend)


def bubbles(
    title: str, counts: Sequence[Mapping[int, int]], names: Sequence[str], classes: Sequence[str], run: int | None
) -> Chart:
    """Draws the samples of each client and class as bubbles with areas proportional to their number.

    Args:
        title: heading of the chart.
        counts: number of samples by class, of each client.
        names: names of the clients.
        classes: names of the classes.
        run: number of the run; None if the partition is that of several runs.
    """
    most = max((n for of_client in counts for n in of_client.values()), default=1)
    left = 14 + 7.0 * min(24, max((len(name) for name in classes), default=1))
    width, height = max(560.0, left + 9 * len(names)), 60 + min(22, max(7, 440 / len(classes))) * len(classes)
    axes = Axes((-0.6, len(names) - 0.4), (len(classes) - 0.5, -0.6), width, height, left)
    radius = min(abs(axes.at_y(1) - axes.at_y(0)), axes.at_x(1) - axes.at_x(0), 24) / 2
    drawn = []
    for client, of_client in enumerate(counts):
        for label, number in of_client.items():
            size = max(0.6, radius * (number / most) ** 0.5)
            shown = tag("title", f"{names[client]}, class {classes[label]}: {number} samples")
            place = {"cx": f"{axes.at_x(client):.1f}", "cy": f"{axes.at_y(label):.1f}"}
            drawn.append(tag("circle", shown, **place, r=f"{size:.1f}", class_="bubble"))
    step = max(1, -(-14 // max(1, int(abs(axes.at_y(1) - axes.at_y(0))))))
    labelled = [
        tag("text", name[:24], x=left - 6, y=f"{axes.at_y(label) + 4:.1f}", text_anchor="end")
        for label, name in enumerate(classes)
        if label % step == 0
    ]
    text = f"{title}. {len(names)} clients, {len(classes)} classes, at most {most} samples of a class at a client"
    svg = drawing(width, height, text, axes.grid([], "", "client"), _names(axes, names), joined([*labelled, *drawn]))
    rows = [
        [name, ", ".join(f"{classes[label]}: {n}" for label, n in of_client.items())]
        for name, of_client in zip(names, counts, strict=True)
    ]
    return Chart(title, svg, ["client", "training samples by class"], rows, run=run)


def _limits(low: float, high: float) -> list[float]:
    if high <= low:
        low, high = low - 0.05 * (abs(low) or 1), high + 0.05 * (abs(high) or 1)
    return ticks(low, high, 6)
