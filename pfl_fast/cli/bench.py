"""``pfl-fast bench``: whole rounds against a plain PyTorch trainer. The benchmark itself lives in the repository."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from pfl_fast.errors import ConfigError

BENCHMARK = "bench.end_to_end.__main__"


@click.command()
@click.option("--quick", is_flag=True, help="At most 200 training samples per client: some minutes, not hours.")
@click.option("--case", "cases", multiple=True, help="Only this one, such as fedcp-mnist; may be repeated.")
@click.option("--repetitions", type=click.IntRange(1), help="Rounds of each side, besides a first one. Default: 5.")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True), help="Folder with data sets.")
@click.option("--table", is_flag=True, help="Print what was last measured on this machine, and measure nothing.")
def bench(quick: bool, cases: tuple[str, ...], repetitions: int | None, data_dir: Path | None, table: bool) -> None:
    """Measure whole rounds against a plain PyTorch trainer that computes the same.

    Both take turns in one run: times as fast, seconds by part, memory, arithmetic, operators per step. Needs a checkout
    of the repository, where the benchmark and its results are. A data set that is not there is generated in its shape.

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
            f"bench: needs a checkout of the repository, as an installed package has no benchmarks ({error.name} is "
            "missing); in one, run make bench-e2e or python -m bench.end_to_end"
        ) from None
    words = [*(["--quick"] if quick else []), *(["--table"] if table else []), *(["--cases", *cases] if cases else [])]
    words += ["--repetitions", str(repetitions)] if repetitions else []
    words += ["--data-dir", str(data_dir)] if data_dir else []
    benchmark.main(words)
