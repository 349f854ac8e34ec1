"""Options of the commands that use a trained run, and opening it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.errors import ConfigError

if TYPE_CHECKING:
    from pfl_fast.experiment import Experiment

run_argument = click.argument("run", type=click.Path(path_type=Path))
trust_option = click.option(
    "--trust", is_flag=True, help="load models and metrics that somebody else's run names as module:attribute"
)
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")


def client_option(help: str) -> Callable[[Any], Any]:
    """Adds ``--client``."""
    return click.option("--client", metavar="NAME", help=help)


def open_run(run: Path, trust: bool, data: bool = False, metrics: Sequence[str] = ()) -> Experiment:
    """Opens a run; loads its data set only if asked to, or if the method's predictions need it."""
    from pfl_fast.experiment import Experiment

    def remark(message: str) -> None:
        click.echo(message, err=True)

    experiment = Experiment.load(run, log=remark, trusted=trust, data=data, metrics=metrics)
    if experiment.adapts_before_tests and not data:
        return Experiment.load(run, log=remark, trusted=trust, data=True)
    return experiment


def chosen_client(experiment: Experiment, client: str | None) -> int:
    """Returns the number of the client that the user named."""
    if client is None:
        names = experiment.client_names
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise ConfigError(f"--client: which of {', '.join(names[:20])}{more}? Give a name, or a number from 0")
    return experiment.client_number(client)
