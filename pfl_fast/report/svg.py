"""SVG elements, and the axes of a chart. Colours come from the style sheet of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

COLOURS = 7  # of the style sheet: --c0, --c1, ...
DASHES = ("none", "7 4", "2 3")  # the next one when all colours are used


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """Returns an element; text and values are escaped, ``_`` in names of attributes is ``-``.

    >>> print(tag("text", "a < b", class_="run-0", text_anchor="end"))
    <text class="run-0" text-anchor="end">a &lt; b</text>
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opening = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in pairs)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), opening, joined(children))


def joined(parts: Iterable[str | Markup]) -> Markup:
    """Returns elements and texts one after another."""
    return Markup("").join(escape(part) for part in parts)


def colour(number: int) -> str:
    """Returns the CSS value of a colour."""
    return f"var(--c{number % COLOURS})"


def dash(number: int) -> str:
    """Returns the line style of a run; runs of equal colours have different styles."""
    return DASHES[number // COLOURS % len(DASHES)]


def drawing(width: float, height: float, label: str, *children: Markup) -> Markup:
    """Returns an ``svg`` element that scales with the page; ``label`` describes it to screen readers."""
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def ticks(low: float, high: float, count: int, integer: bool = False) -> list[float]:
    """Returns round numbers from ``low`` to ``high``."""
    from matplotlib.ticker import MaxNLocator

    return [float(t) for t in MaxNLocator(count, integer=integer).tick_values(low, high)]


@dataclass(frozen=True)
class Axes:
    """Linear axes; values outside the limits are not drawn.

    Attributes:
        x: lower and upper limit.
        y: lower and upper limit.
        width: of the drawing, with labels.
        height: of the drawing, with labels.
        left: space for the labels of the vertical axis.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 560
    height: float = 300
    left: float = 58
    right: float = 14
    top: float = 10
    bottom: float = 44

    def at_x(self, value: float) -> float:
        """Returns the horizontal position of a value."""
        return self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        """Returns the vertical position of a value."""
        low, high = self.height - self.bottom, self.top
        return low + (value - self.y[0]) / (self.y[1] - self.y[0]) * (high - low)

    def grid(self, y_ticks: Sequence[float], y_title: str, x_title: str) -> Markup:
        """Returns horizontal lines with their values, and both titles."""
        middle = (self.top + self.height - self.bottom) / 2
        lines = [
            tag("line", x1=self.left, x2=self.width - self.right, y1=f"{self.at_y(t):.1f}", y2=f"{self.at_y(t):.1f}")
            for t in y_ticks
        ]
        values = [
            tag("text", f"{t:g}", x=self.left - 6, y=f"{self.at_y(t) + 4:.1f}", text_anchor="end") for t in y_ticks
        ]
        titles = [
            tag("text", y_title, transform=f"translate(13 {middle:g}) rotate(-90)", text_anchor="middle"),
            tag("text", x_title, x=(self.left + self.width - self.right) / 2, y=self.height - 6, text_anchor="middle"),
        ]
        return tag("g", *lines, class_="grid") + joined([*values, *titles])

    def x_labels(self, places: Iterable[tuple[float, str]]) -> Markup:
        """Returns labels below the horizontal axis."""
        y = self.height - self.bottom + 17
        return joined(tag("text", text, x=f"{self.at_x(x):.1f}", y=y, text_anchor="middle") for x, text in places)
