"""Fixture of all benchmarks: candidates run in turn within one session, so that their ratios are comparable."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from bench.footprint import footprint
from bench.machine import processor
from pfl_fast import ops

SECONDS = 6.0  # duration of one comparison
ROUNDS = range(5, 200)  # minimum and maximum number of runs per candidate


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
    """One comparison of candidates."""

    title: str
    rows: list[Row]
    bytes_moved: int | None
    goals: Mapping[str, float]


RACES: list[Race] = []


@pytest.fixture
def race(benchmark, request):
    """Compares functions: ``race({"native": f, "reference": g}, bytes_moved=..., goals={"reference": 3.0})``.

    The first candidate is the subject: other times are shown as multiples of its time, and a goal is the minimum
    multiple. No time is asserted, so that a busy machine does not fail a test.
    """

    def run(
        candidates: Mapping[str, Callable[[], object]],
        bytes_moved: int | None = None,
        goals: Mapping[str, float] | None = None,
    ) -> None:
        rows = [Row(name) for name in candidates]
        for function in candidates.values():
            function()  # compile, allocate and warm caches
        if benchmark.enabled:
            for row, function in zip(rows, candidates.values(), strict=True):
                row.peak, row.kernels = footprint(function)
            run_in_turn(list(candidates.values()), rows)
            RACES.append(Race(request.node.name.removeprefix("test_"), rows, bytes_moved, goals or {}))
            benchmark.extra_info.update({row.name: row.median for row in rows}, bytes_moved=bytes_moved)
        benchmark.pedantic(next(iter(candidates.values())), rounds=5, warmup_rounds=1)

    return run


@pytest.fixture
def one_thread():
    """Uses one thread, since the engine trains one client per core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_in_turn(functions: list[Callable[[], object]], rows: list[Row]) -> None:
    started = time.perf_counter()
    for turn in range(ROUNDS.stop):
        for function, row in zip(functions, rows, strict=True):
            before = time.perf_counter()
            function()
            row.turns.append(time.perf_counter() - before)
        if turn + 1 >= ROUNDS.start and time.perf_counter() - started > SECONDS:
            return


def pytest_addoption(parser) -> None:
    parser.addoption("--ratios", metavar="FILE", help="also write the table of ratios to FILE")
    parser.addoption("--ratios-json", metavar="FILE", help="write the ratios by race and candidate to FILE as JSON")


def pytest_terminal_summary(terminalreporter, config) -> None:
    if not RACES:
        return
    kernels = torch.ops.pfl_fast.cpu_capability() if ops.NATIVE.available else "none"
    lines = [
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, CPU kernels {kernels}.",
        "ms: median run time, with 20 % and 80 % quantiles. x native: time as a multiple of the first row's.",
        "MB: peak memory allocated. kernels: operators that would each be a kernel launch on a GPU",
        "(unknown for compiled code).",
        *(line for result in RACES for line in table(result)),
    ]
    terminalreporter.section("ratios")
    for line in lines:
        terminalreporter.line(line)
    if config.getoption("--ratios"):
        Path(config.getoption("--ratios")).write_text("\n".join(lines) + "\n")
    if config.getoption("--ratios-json"):
        Path(config.getoption("--ratios-json")).write_text(json.dumps({race.title: ratios(race) for race in RACES}))


def ratios(result: Race) -> dict[str, float]:
    """Returns the time of every other candidate as a multiple of the first one's."""
    subject, *others = result.rows
    return {row.name: row.median / subject.median for row in others}


HEADER = ("ms", "20 %", "80 %", "x native", "GB/s", "MB", "kernels")


def table(result: Race) -> list[str]:
    subject = result.rows[0].median
    lines = ["", f"{result.title:50}" + "".join(f"{name:>10}" for name in HEADER) + "  goal"]
    for row in result.rows:
        times = [f"{1e3 * t:.3f}" for t in (row.median, *row.spread)]
        rate = f"{result.bytes_moved / row.median / 1e9:.1f}" if result.bytes_moved else "-"
        cells = [*times, f"{row.median / subject:.2f}", rate, f"{row.peak / 1e6:.2f}", str(row.kernels or "-")]
        goal = result.goals.get(row.name)
        verdict = "" if goal is None else f"  {'reached' if row.median >= goal * subject else 'MISSED'} (>= {goal:g})"
        lines.append(f"  {row.name:48}" + "".join(f"{cell:>10}" for cell in cells) + verdict)
    return lines
