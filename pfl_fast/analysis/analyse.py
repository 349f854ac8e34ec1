"""Applies analyses to the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_fast.analysis.catalogue import ANALYSES, AnalysisEntry
from pfl_fast.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pfl_fast.analysis.result import Result
    from pfl_fast.analysis.run import AnalysisOptions, FinishedRun

SWEEP = "sweep"  # of a folder that holds runs
Done = Callable[[str, list[Path] | None, str], None]  # of name, files or None, and the reason without files


def analyse(
    folder: str | Path,
    what: Sequence[str] = ("all",),
    out: str | Path | None = None,
    formats: Sequence[str] = ("svg",),
    log: Callable[[str], None] = lambda _message: None,
    done: Done = lambda _name, _files, _reason: None,
    trusted: bool = True,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, list[Path]]:
    """Writes tables and figures of a run; returns the files of each analysis.

    Args:
        folder: folder of a finished run, or for the analysis ``sweep`` one that holds runs.
        what: names of analyses; ``"all"``: those that suit the run and take seconds.
        out: folder of the files; None: ``analysis`` in the folder of the run.
        formats: formats of figures: svg, png, pdf.
        log: receives messages.
        done: called after each analysis with its name, and its files, or None and the reason why it was left out.
        trusted: load models that somebody else's run names as ``module:attribute``.
        data: values of :meth:`pfl_fast.experiment.Experiment.resume`, such as ``{"data_dir": ...}``.
        options: see :class:`pfl_fast.analysis.run.AnalysisOptions`.

    Raises:
        ConfigError: if a named analysis does not exist or does not suit the run.
    """
    names = chosen(what)
    from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun

    target, written = Path(out) if out else Path(folder) / "analysis", {}
    if not (Path(folder) / "config.toml").exists() and (names == [SWEEP] or "all" in what):
        from pfl_fast.analysis.sweep import runs_in, sweep

        if runs_in(Path(folder)):
            written[SWEEP] = sweep(Path(folder)).write(target, SWEEP, formats)
            done(SWEEP, written[SWEEP], "")
            return written
    with FinishedRun(folder, log, trusted, **(data or {})) as run:
        if "all" in what:
            names = [name for name in suitable(run.name) if not ANALYSES[name].slow]
        for name in names:
            try:
                result = compute(name, run, AnalysisOptions(**options))
            except AnalysisError as error:
                if "all" not in what:
                    raise AnalysisError(f"{name}: {error}") from None
                done(name, None, str(error))
                continue
            written[name] = result.write(target, name, formats)
            done(name, written[name], "")
    return written


def chosen(what: Sequence[str]) -> list[str]:
    """Returns the names in ``what``; raises if one is unknown."""
    unknown = [name for name in what if name not in ANALYSES and name != "all"]
    if unknown:
        hint = did_you_mean(unknown[0], ANALYSES) or f"; choose all, or some of {', '.join(ANALYSES)}"
        raise ConfigError(f"what: there is no analysis {unknown[0]!r}{hint}")
    return [name for name in what if name != "all"]


def suitable(method: str) -> list[str]:
    """Returns the analyses that suit a method.

    >>> "pir" in suitable("fedcp"), "pir" in suitable("fedavg")
    (True, False)
    """
    return [name for name, e in ANALYSES.items() if name != SWEEP and (not e.methods or method in e.methods)]


def compute(name: str, run: FinishedRun, request: AnalysisOptions) -> Result:
    """Returns the result of one analysis, its caption completed with the facts of the run."""
    from pfl_fast.analysis.run import AnalysisError

    entry = ANALYSES[name]
    if name == SWEEP:
        raise AnalysisError("needs a folder that holds several runs, such as that of pfl-fast compare --grid lam=1,5")
    if entry.methods and run.name not in entry.methods:
        raise AnalysisError(f"is an analysis of {', '.join(entry.methods)}; this run trained {run.name}")
    result = function_of(entry)(run, request)
    return replace(result, caption=f"{result.caption} {run.facts()}")


def function_of(entry: AnalysisEntry) -> Callable[[FinishedRun, AnalysisOptions], Result]:
    """Returns the function of an analysis."""
    module, function = entry.function.split(":")
    found: Callable[[FinishedRun, AnalysisOptions], Result] = getattr(
        import_module(f"pfl_fast.analysis.{module}"), function
    )
    return found
