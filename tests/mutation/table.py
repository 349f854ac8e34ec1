"""The table of bench/mutants.md: one row per kernel, so that a run for one operator replaces its rows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPORT = Path(__file__).parents[2] / "bench" / "mutants.md"
HEADER = """# Mutants of the kernels

`make mutants KERNEL=<operator> SAMPLE=<tried> WRITE=1` writes the rows of an operator; without KERNEL, all rows.
`make mutants` without SAMPLE tries all mutants, and `python -m tests.mutation --help` describes the checks.

"""
COLUMNS = ["kernel", "mutants", "tried", "do not compile", "caught", "equivalent", "survived", "why equivalent"]
VERDICTS = INVALID, CAUGHT, EQUIVALENT, SURVIVED = COLUMNS[3:7]


@dataclass(frozen=True)
class Row:
    kernel: str
    mutants: int
    verdicts: dict[str, int]  # INVALID, CAUGHT, EQUIVALENT and SURVIVED
    reasons: Sequence[str] = ()

    def __str__(self) -> str:
        counts = [self.mutants, sum(self.verdicts.values()), *(self.verdicts[verdict] for verdict in VERDICTS)]
        return f"| {self.kernel} | {' | '.join(map(str, counts))} | {'; '.join(self.reasons)} |"

    @staticmethod
    def parse(line: str) -> Row:
        kernel, mutants, _, *counts, reasons = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        verdicts = dict(zip(VERDICTS, map(int, counts), strict=True))
        return Row(kernel, int(mutants), verdicts, reasons.split("; ") if reasons else ())


def read(report: Path) -> dict[str, Row]:
    """Returns the rows by kernel."""
    lines = report.read_text().splitlines() if report.exists() else []
    return {row.kernel: row for row in (Row.parse(line) for line in lines if ".c" in line.split(" | ")[0])}


def render(rows: Sequence[Row]) -> str:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.verdicts)
    lines = [f"| {' | '.join(COLUMNS)} |", f"| --- {'| ---: ' * 6}| --- |", *map(str, rows)]
    judged = total[CAUGHT] + total[SURVIVED]
    share = f", {total[CAUGHT] / judged:.1%}" if judged else ""
    return "\n".join(lines) + f"\n\n{total[CAUGHT]} of {judged} mutants that are not equivalent are caught{share}.\n"


def update(report: Path, new: Sequence[Row], kernels: Sequence[str]) -> None:
    """Replaces the rows of the new results; drops those of kernels that no longer exist."""
    rows = {**read(report), **{row.kernel: row for row in new}}
    report.write_text(HEADER + render([rows[k] for k in sorted(kernels) if k in rows]))
