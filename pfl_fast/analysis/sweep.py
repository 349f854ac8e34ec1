"""Sweeps: accuracy of several runs over the option in which they differ (FedPick Fig. 11-13, FedAFK Tables 1-2).

A folder that holds runs, such as that of ``pfl-fast compare --grid lam=0.1,0.3``, is analysed as one sweep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfl_fast import config
from pfl_fast.analysis.figures import plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.engine.results.protocol import POINTS, REDUCTIONS
from pfl_fast.errors import ConfigError

# Settings that may differ between the runs of a sweep, in addition to its option.
LEFT_OUT = config.NOT_IN_RESULTS - {"rounds"} | {"seed", "partition"}


def runs_in(folder: Path) -> list[Path]:
    """Returns the folders below ``folder`` that hold runs with a summary."""
    return sorted(file.parent for file in folder.rglob("summary.json") if (file.parent / "config.toml").exists())


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the settings that are not equal in all runs.

    >>> differing([{"lam": 1, "seed": 0}, {"lam": 2, "seed": 1}])
    ['lam']
    """
    names = sorted({name for values in settings for name in values} - LEFT_OUT)
    return [name for name in names if len({json.dumps(values.get(name)) for values in settings}) > 1]


def sweep(folder: Path) -> Result:
    """Returns the accuracy by the protocol of the runs in ``folder``: mean and standard deviation over seeds."""
    runs = runs_in(folder)
    settings = [config.read(run / "config.toml") for run in runs]
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    names = differing(settings)
    if len(names) != 1 or not all(summary.get("protocol") for summary in summaries):
        found = f"{len(runs)} runs that differ in {', '.join(names) or 'no setting'}"
        raise ConfigError(f"{folder}: a sweep needs tested runs that differ in one setting; found {found}")
    values: dict[Any, list[float]] = {}
    for own, summary in zip(settings, summaries, strict=True):
        values.setdefault(own.get(names[0]), []).append(100 * summary["protocol"]["accuracy"])
    ordered = sorted(values.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    rows = [[v, len(a), np.mean(a), np.std(a, ddof=1) if len(a) > 1 else None] for v, a in ordered]
    protocol = summaries[0]["protocol"]

    def draw(figure: Any) -> None:
        axes = plain_axes(figure.add_subplot(), names[0], "test accuracy (%)")
        places = range(len(rows))
        axes.errorbar(places, [row[2] for row in rows], [row[3] or 0 for row in rows], fmt="o-", capsize=3, ms=4)
        axes.set_xticks(places, [str(row[0]) for row in rows])

    first = summaries[0]
    point = POINTS.get(protocol["point"], "after the final fine-tune")
    return Result(
        f"Sweep of {names[0]}",
        f"Test accuracy {point}, {REDUCTIONS[protocol['reduction']]}, {protocol['selection']} of the rounds; mean and "
        f"standard deviation over seeds. Data: {first['dataset']}, {first['clients']} clients, partition "
        f"{first['partition']}. Method: {first['method']}, model {first['model']}. {first['rounds']} rounds, seeds "
        f"{', '.join(str(seed) for seed in sorted({s['seed'] for s in summaries}))}.",
        [names[0], "seeds", "test accuracy (%)", "standard deviation"],
        rows,
        draw,
        (5.0, 3.2),
    )
