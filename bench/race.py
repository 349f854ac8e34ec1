"""Comparisons of candidates that run in turn: their measurements, as JSON and as tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Row:
    """Measurements of one candidate: run times in seconds, peak memory in bytes, number of kernels."""

    name: str
    turns: list[float] = field(default_factory=list)
    peak: int = 0
    kernels: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.turns)

    @property
    def spread(self) -> tuple[float, float]:
        """20 % and 80 % quantiles."""
        cuts = statistics.quantiles(self.turns, n=5, method="inclusive")
        return cuts[0], cuts[-1]


@dataclass
class Race:
    """One comparison of candidates, on the CPU kernels of one instruction set."""

    title: str
    kernels: str
    rows: list[Row]
    bytes_moved: int | None
    goals: Mapping[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        """The time of every other candidate as a multiple of the first one's."""
        subject, *others = self.rows
        return {row.name: row.median / subject.median for row in others}


def write(file: Path, races: Sequence[Race]) -> None:
    file.write_text(json.dumps([asdict(race) for race in races]))


def read(file: Path) -> list[Race]:
    return [Race(**{**race, "rows": [Row(**row) for row in race["rows"]]}) for race in json.loads(file.read_text())]


LEGEND = [
    "ms: median run time, with 20 % and 80 % quantiles. x first: time as a multiple of the first row's.",
    "MB: peak memory allocated. ops: operators that would each be a kernel launch on a GPU (- for compiled code).",
]
HEADER = ("CPU", "ms", "20 %", "80 %", "x first", "GB/s", "MB", "ops")


def tables(races: Iterable[Race]) -> list[str]:
    """Returns a table for every title, with the rows of every instruction set."""
    by_title: dict[str, list[Race]] = {}
    for race in races:
        by_title.setdefault(race.title, []).append(race)
    lines = []
    for title, measured in by_title.items():
        lines += ["", f"{title:50}" + "".join(f"{name:>10}" for name in HEADER) + "  goal"]
        lines += [line for race in measured for line in rows(race)]
    return lines


NOISE = 0.95  # a candidate below this multiple of the first one's time counts as faster
BOUNDS = re.compile(r"native|plain copy|plain read|.*, forward$")  # candidates that do less: not shown without a goal


def summary(races: Iterable[Race]) -> str:
    """Returns a Markdown table: every candidate with a goal, and every one that is faster than the first."""
    by_title: dict[str, list[Race]] = {}
    for race in races:
        by_title.setdefault(race.title, []).append(race)
    sets = list(dict.fromkeys(race.kernels for measured in by_title.values() for race in measured))
    lines = [f"| benchmark | compared with | {' | '.join(sets)} | goal |", "| --- " * (len(sets) + 3) + "|"]
    for title, measured in by_title.items():
        for name in measured[0].ratios:
            ratios = {race.kernels: race.ratios[name] for race in measured}
            goal = measured[0].goals.get(name)
            if goal is not None or (min(ratios.values()) < NOISE and not BOUNDS.match(name)):
                cells = [f"{ratios[one]:.2f}" if one in ratios else "-" for one in sets]
                reached = (
                    "-" if goal is None else f"{goal:g}, {'reached' if min(ratios.values()) >= goal else 'MISSED'}"
                )
                lines.append(f"| {title} | {name} | {' | '.join(cells)} | {reached} |")
    return "\n".join(lines) + "\n"


def rows(race: Race) -> list[str]:
    subject = race.rows[0].median
    lines = []
    for row in race.rows:
        times = [f"{1e3 * t:.3f}" for t in (row.median, *row.spread)]
        rate = f"{race.bytes_moved / row.median / 1e9:.1f}" if race.bytes_moved else "-"
        ratio = f"{row.median / subject:.2f}"
        cells = [race.kernels, *times, ratio, rate, f"{row.peak / 1e6:.2f}", str(row.kernels or "-")]
        goal = race.goals.get(row.name)
        verdict = "" if goal is None else f"  {'reached' if row.median >= goal * subject else 'MISSED'} (>= {goal:g})"
        lines.append(f"  {row.name:48}" + "".join(f"{cell:>10}" for cell in cells) + verdict)
    return lines
