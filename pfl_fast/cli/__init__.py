"""The ``pfl-fast`` command: one module per subcommand."""

from __future__ import annotations

import resource
import signal
from typing import Any

import click

from pfl_fast import __version__
from pfl_fast.cli.analyse import analyse
from pfl_fast.cli.bench import bench
from pfl_fast.cli.command_group import CommandGroup
from pfl_fast.cli.compare import compare
from pfl_fast.cli.data import data
from pfl_fast.cli.datasets import datasets
from pfl_fast.cli.doctor import doctor
from pfl_fast.cli.evaluate import evaluate
from pfl_fast.cli.export import export
from pfl_fast.cli.methods import methods
from pfl_fast.cli.models import models
from pfl_fast.cli.new import new
from pfl_fast.cli.plan import plan
from pfl_fast.cli.predict import predict
from pfl_fast.cli.recipes import recipes
from pfl_fast.cli.report import report
from pfl_fast.cli.reproduce import reproduce
from pfl_fast.cli.resume import resume
from pfl_fast.cli.runs import runs
from pfl_fast.cli.setting_options import as_flags
from pfl_fast.cli.train import train
from pfl_fast.errors import PflFastError, machine_problem

EXAMPLES = """\b
Examples:
  pfl-fast train fedcp --dataset digits --rounds 10   train FedCP; offline, under a minute
  pfl-fast resume runs/fedcp-digits-1 --rounds 20     continue that run up to round 20
  pfl-fast compare --methods fedavg,fedcp --seeds 0,1,2 --dataset digits --out DIR   one table, learning curves
  pfl-fast analyse runs/fedcp-digits-1              tables and figures of a finished run
  pfl-fast report runs/fedcp-digits-1 runs/fedavg-digits-1   one HTML page with curves, bars, times and settings
  pfl-fast runs                                       runs with results and sizes; pfl-fast runs rm RUN removes one
  pfl-fast evaluate runs/fedcp-digits-1 --per-class   test the clients of a run again, with the recall of each class
  pfl-fast export runs/fedcp-digits-1 --client 3      write a client's model for use without pfl-fast
  pfl-fast recipes                                    the tables of the papers that pfl-fast reproduce runs
  pfl-fast new method MyMethod                        your own method in one file, with a test
  pfl-fast methods fedcp                              formulas, cost, options and presets of FedCP
  pfl-fast models                                     feature width and parameters of all models
  pfl-fast datasets                                   all data sets and their files on disk
  pfl-fast data get mnist                             download a data set
  pfl-fast plan fedcp --dataset mnist --gpu a100      estimated seconds of a round on a GPU
  pfl-fast doctor                                     check the installation
  pfl-fast bench --quick                              measure the speed of whole rounds
"""


TORCH_BYTES = 4 << 30  # address space that importing a CUDA build of torch may take


class MainGroup(CommandGroup):
    """Prints a :class:`PflFastError`, and errors of disks and memory, as a message without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand."""
        warn_of_little_memory()
        try:
            return super().invoke(ctx)
        except PflFastError as error:
            click.secho(f"Error: {as_flags(str(error))}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(128 + signal.SIGINT)
        except Exception as error:
            if (message := machine_problem(error)) is None:
                raise
            click.secho(f"Error: {message}", err=True)
            ctx.exit(1)


def warn_of_little_memory() -> None:
    """Warns if the address space is too small to import torch, which ends the process without a reason then."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < TORCH_BYTES:
        click.secho(
            f"note: the address space is limited to {most >> 20} MiB (ulimit -v); importing torch may take "
            f"{TORCH_BYTES >> 20} MiB",
            err=True,
        )


@click.group(cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="pfl-fast")
def main() -> None:
    """Personalized federated learning in PyTorch: trains all clients in one process, on CPU or GPU."""


COMMANDS = (
    analyse, bench, compare, data, datasets, doctor, evaluate, export, methods, models, new, plan, predict, recipes,
    report, reproduce, resume, runs, train,
)  # fmt: skip
for command in COMMANDS:
    main.add_command(command)
