"""``pfl-fast train``: trains one method on one data set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from pfl_fast.cli.pfllib_flags import PREFIX, pfllib_flags
from pfl_fast.cli.ranks import on_all_ranks, refuse_ranks, restarted
from pfl_fast.cli.setting_options import (
    SETTINGS,
    GroupedCommand,
    check_trackers,
    debug_option,
    given,
    log_option,
    setting_options,
)
from pfl_fast.cli.train_request import TrainRequest, build_request
from pfl_fast.errors import ConfigError, PflFastError

EXAMPLES = """\b
Examples:
  pfl-fast train fedcp --dataset digits --rounds 10         offline, under a minute
  pfl-fast train fedavg --dataset digits --rounds 10        same partition, one model for all clients
  pfl-fast train fedcp --dataset mnist --preset official    settings of the authors' code
  pfl-fast train fedcp --set lam=1 --set cpn_depth=2        options of FedCP; pfl-fast methods fedcp lists them
  pfl-fast train --config runs/fedcp-digits-1/config.toml   repeat a run with all its settings
  pfl-fast train fedcp --dataset digits --log tensorboard   curves while it trains; tensorboard --logdir runs
  pfl-fast train my_file.py:MyMethod --dataset digits       your own method; pfl-fast new method writes one
  pfl-fast train fedper --clients 2000 --join-ratio 0.01 --state disk   many clients, their state on disk

\b
A setting is taken from the command line, else from the file, the preset, the method's paper, the default.
PFLlib's flags (-data -m -nc -gr -lbs -lr -ls -jr -lam ...) are accepted too.
"""


class TrainCommand(GroupedCommand):
    """Points to ``--set`` if an option of a method is given as an option of the command."""

    def remedy(self, name: str) -> str:
        """Returns the methods with an option ``name``."""
        from pfl_fast.methods import METHODS

        owners = [n for n, method in METHODS.items() if name in {f.name for f in fields(method.Options)}]
        return f"is an option of {', '.join(owners)}; write --set {name}=VALUE" if owners else ""


# --local_epochs is accepted as --local-epochs.
DASHES = {"token_normalize_func": lambda token: token.replace("_", "-")}


@click.command(cls=TrainCommand, epilog=EXAMPLES, context_settings=DASHES)
@click.argument("method", required=False)
@setting_options(SETTINGS)
@click.option("--preset", metavar="NAME", help="named set of values of the method, such as official")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="value of an option of the method or of a setting; repeatable",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="file with settings and options of the method",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="folder for results  [runs/<method>-<dataset>-<number>]",
)
@click.option("--seeds", metavar="N,...", help="train once for each seed and print a table, as pfl-fast compare does")
@click.option("--trust", is_flag=True, help="load models and metrics that FILE.toml names as module:attribute")
@click.option("--quiet", is_flag=True, help="print one line with the results and nothing else")
@log_option
@debug_option
@pfllib_flags
@on_all_ranks
def train(
    method: str | None,
    preset: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    out: Path | None,
    seeds: str | None,
    trust: bool,
    quiet: bool,
    trackers: tuple[str, ...],
    **values: Any,
) -> None:
    """Train METHOD and test every client's model.

    pfl-fast methods lists the methods. Results and checkpoints are written to a folder; pfl-fast resume continues an
    interrupted run.
    """
    chosen = given(values)
    flags = {name.removeprefix(PREFIX): value for name, value in chosen.items() if name.startswith(PREFIX)}
    settings = {name: value for name, value in chosen.items() if not name.startswith(PREFIX)}
    if seeds is not None and "seed" in settings:
        raise ConfigError("seed: give --seed or --seeds")
    if trackers and seeds is not None:
        raise ConfigError("--log sends a single run to a tracker; leave out --seeds, or train each --seed")
    check_trackers(trackers)
    request = build_request(method, preset, settings, flags, assignments, config_file, trust)

    for note in () if quiet else request.notes:
        click.echo(f"note: {note}", err=True)
    if seeds is not None:
        refuse_ranks("--seeds")
        return train_seeds(request, seeds, out or free_folder(request), quiet)

    from pfl_fast.cli.messages import as_arguments
    from pfl_fast.cli.run import run_experiment
    from pfl_fast.engine.ranks import current_ranks
    from pfl_fast.experiment import Experiment

    ranks, existed = current_ranks(), out is not None and out.exists()
    folder, continues = ranks.gather(lambda: folder_of_run(request, out) if ranks.rank == 0 else (Path(), False))[0]

    def create(log: Callable[[str], None]) -> Experiment:
        if continues:
            return Experiment.resume(folder, log=log, trusted=trust)
        return Experiment(request.method, resolved=request.resolved, out=folder, log=log)

    try:
        run_experiment(
            create,
            folder,
            quiet,
            lambda _: as_arguments(
                {name: value for name, value in request.values_with_preset.items() if name in SETTINGS}
            ),
            trackers,
        )
    except PflFastError:
        if not (existed or continues) and ranks.rank == 0:
            remove_failed_start(folder)
        raise
    finally:
        if out is None and ranks.rank == 0:
            with suppress(OSError):  # the folder is not empty once the run has started
                folder.rmdir()


def remove_failed_start(folder: Path) -> None:
    """Removes a folder without checkpoints, in which no client has trained, unless another process uses it."""
    from pfl_fast.engine.results.run_lock import RunLock

    if not folder.is_dir():
        return
    lock = RunLock(folder)
    with suppress(PflFastError):
        lock.take_from_this_process()
        lock.acquire(lambda _message: None)
        if not any((folder / "checkpoint").glob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def train_seeds(request: TrainRequest, seeds: str, folder: Path, quiet: bool) -> None:
    """Trains a method once for each seed, on one partition."""
    from pfl_fast.cli.compare import run_comparison
    from pfl_fast.comparison.plan import Request, seeds_of

    values = {name: value for name, value in request.values.items() if name != "seed"}  # the seed of a file
    compared = Request((request.method,), seeds_of(seeds), values, preset=request.preset)
    run_comparison(compared, folder, quiet)


def folder_of_run(request: TrainRequest, out: Path | None) -> tuple[Path, bool]:
    """Returns the folder of a run, and whether it holds a run that ranks continue after their restart."""
    if out is not None and restarted() and (out / "config.toml").exists():
        return out, True
    folder = out or free_folder(request)
    check_empty(folder)
    return folder, False


def free_folder(request: TrainRequest) -> Path:
    """Creates the folder of a run without --out."""
    from pfl_fast.assembly import method_name
    from pfl_fast.data.own_files import name_of

    return new_folder(method_name(request.resolved.method), name_of(request.resolved.settings.dataset))


def new_folder(method: str, dataset: str) -> Path:
    """Creates ``runs/<method>-<dataset>-<number>`` with the first free number; safe if several runs start at once."""
    number = 0
    while True:
        number += 1
        folder = Path("runs") / f"{method}-{dataset}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OutError(f"{folder}: cannot be created ({error.strerror}); choose a folder with --out") from None
        return folder


def check_empty(folder: Path) -> None:
    """Raises if ``folder`` holds files: results are never overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        holds_run = (folder / "config.toml").exists()
        hint = f"; pfl-fast resume {folder} continues the run in it" if holds_run else ""
        raise OutError(f"--out {folder}: exists and is not empty{hint}; choose another folder")


class OutError(PflFastError):
    """The folder for results cannot be used."""

    exit_code = 2
