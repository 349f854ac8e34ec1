"""``pfl-fast bench``: runs the end-to-end benchmark of the repository."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from pfl_fast.errors import ConfigError

BENCHMARK = "bench.end_to_end.__main__"


@click.command()
@click.option("--quick", is_flag=True, help="use at most 200 training samples per client: minutes, not hours")
@click.option("--case", "cases", multiple=True, help="run only this case, such as fedcp-mnist; repeatable")
@click.option("--repetitions", type=click.IntRange(1), help="measured rounds per trainer, after one warm-up  [5]")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True), help="folder of data sets")
@click.option("--table", is_flag=True, help="print the last results of this machine and measure nothing")
def bench(quick: bool, cases: tuple[str, ...], repetitions: int | None, data_dir: Path | None, table: bool) -> None:
    """Compare the speed of whole rounds with a plain PyTorch trainer.

    Both trainers compute the same results and take turns in one process. Reports the speedup, seconds by part of the
    round, memory, FLOPs and operators per step. Needs a checkout of the repository. Missing data sets are replaced by
    generated data of the same shape.

    \b
    Examples:
      pfl-fast bench --quick
      pfl-fast bench --quick --case fedcp-mnist --repetitions 3
      pfl-fast bench --data-dir ~/data
      pfl-fast bench --table
    """
    try:
        benchmark = import_module(BENCHMARK)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("bench"):
            raise
        raise ConfigError(
            f"bench: needs a checkout of the repository; the installed package has no benchmarks ({error.name} is "
            "missing). In a checkout, run make bench-e2e or python -m bench.end_to_end"
        ) from None
    arguments = [*(["--quick"] if quick else []), *(["--table"] if table else [])]
    arguments += ["--cases", *cases] if cases else []
    arguments += ["--repetitions", str(repetitions)] if repetitions else []
    arguments += ["--data-dir", str(data_dir)] if data_dir else []
    benchmark.main(arguments)
