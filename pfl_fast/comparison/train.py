"""Trains the runs of a plan, or continues them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from pfl_fast import trust
from pfl_fast.comparison.plan import ComparisonPlan, PlannedRun
from pfl_fast.comparison.results import is_complete
from pfl_fast.config import NOT_IN_RESULTS
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.results.run_lock import RunLock
from pfl_fast.engine.stopping import Interrupted, stop_on_signals
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.scratch import remove

ERROR = "error.txt"  # the traceback of a failed run, in its folder


@contextmanager
def locked(folder: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Keeps other processes out of the folder of a comparison, which is made; removes what killed ones left.

    A folder that nothing was written to is removed again.

    Args:
        folder: folder of the comparison.
        log: receives a message if a process was killed while it held the lock.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder}: is not a folder; choose another --out") from None
    lock = RunLock(folder, "comparison")
    try:
        lock.acquire(log)
        remove([*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")])  # runs are deeper, and have locks of their own
        yield
    finally:
        lock.release()
        for path in made:
            with suppress(OSError):  # not empty
                path.rmdir()


def train_all(
    plan: ComparisonPlan, started: Callable[[PlannedRun], Listener], ended: Callable[[PlannedRun, str | None], None]
) -> dict[tuple[str, int], str]:
    """Trains all runs that are not complete; returns the error messages of failed runs by label and seed.

    A signal ends the current step, saves the run and raises :class:`Interrupted`.

    Args:
        plan: runs of a comparison.
        started: called before a run; returns a listener for it.
        ended: called after a run, with its error message or None.
    """
    failures = {}
    for run in plan.runs:
        message = None
        with suppress(OSError):
            (run.folder / ERROR).unlink(missing_ok=True)
        if not is_complete(run.folder):  # to resume a finished run repairs its files
            try:
                _train(plan, run, started(run))
            except Interrupted:
                raise
            except Exception as error:  # the other runs go on
                message = str(error).splitlines()[0] if str(error) else type(error).__name__
                failures[run.label, run.seed] = message
                with suppress(OSError):  # a full disk, which the message names
                    run.folder.mkdir(parents=True, exist_ok=True)
                    (run.folder / ERROR).write_text(traceback.format_exc())
        ended(run, message)
    return failures


def _train(plan: ComparisonPlan, run: PlannedRun, listener: Listener) -> None:
    settings = run.resolved.settings
    if (run.folder / "config.toml").exists():
        changes = {name: getattr(settings, name) for name in NOT_IN_RESULTS - {"rounds"}}
        # Code that the user names for this comparison.
        trust.remember(run.folder, {**asdict(settings), "method": run.method})
        experiment = Experiment.resume(run.folder, log=_discard, trusted=False, **changes)
    else:
        experiment = Experiment(run.method, dataset=plan.dataset, resolved=run.resolved, out=run.folder, log=_discard)
    experiment.listeners.append(listener)
    try:
        with stop_on_signals(experiment.round.executor.stop):
            experiment.run()
    finally:
        experiment.close()


def _discard(_message: str) -> None:
    """Prints nothing: the table shows the progress."""
