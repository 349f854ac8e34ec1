"""Fixture of all benchmarks: candidates run in turn within one session, so that their ratios are comparable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from bench import machine
from bench.footprint import footprint
from bench.race import LEGEND, Race, Row, tables, write

ROUNDS = range(5, 200)  # minimum and maximum number of runs per candidate
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
            run_in_turn(list(candidates.values()), rows, request.config.getoption("--race-seconds"))
            title = request.node.name.removeprefix("test_")
            RACES.append(Race(title, machine.kernels(), rows, bytes_moved, goals or {}))
            benchmark.extra_info.update({row.name: row.median for row in rows}, bytes_moved=bytes_moved)
        benchmark.pedantic(next(iter(candidates.values())), rounds=1)

    return run


@pytest.fixture
def one_thread():
    """Uses one thread, since the engine trains one client per core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_in_turn(functions: list[Callable[[], object]], rows: list[Row], seconds: float) -> None:
    started = time.perf_counter()
    for turn in range(ROUNDS.stop):
        for function, row in zip(functions, rows, strict=True):
            before = time.perf_counter()
            function()
            row.turns.append(time.perf_counter() - before)
        if turn + 1 >= ROUNDS.start and time.perf_counter() - started > seconds:
            return


def pytest_addoption(parser) -> None:
    parser.addoption("--ratios", metavar="FILE", help="also write the tables to FILE")
    parser.addoption("--races", metavar="FILE", help="write the measurements to FILE as JSON")
    parser.addoption("--race-seconds", type=float, default=6.0, help="duration of one comparison (default: 6)")


def pytest_terminal_summary(terminalreporter, config) -> None:
    if not RACES:
        return
    lines = [machine.heading(), *LEGEND, *tables(RACES)]
    terminalreporter.section("ratios")
    for line in lines:
        terminalreporter.line(line)
    if config.getoption("--ratios"):
        Path(config.getoption("--ratios")).write_text("\n".join(lines) + "\n")
    if config.getoption("--races"):
        write(Path(config.getoption("--races")), RACES)
