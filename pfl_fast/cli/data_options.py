"""What the verbs about data have in common: options, and data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pfl_fast.data.dataset import Dataset
    from pfl_fast.data.partition import Partition

_F = TypeVar("_F", bound=Callable[..., Any])

PARTITION_OPTIONS = (
    click.option(
        "--partition",
        "kind",
        help="iid, dirichlet, pathological, domain, domain-split, superclass or natural. "
        "Default: natural for imported data with clients of its own, else dirichlet.",
    ),
    click.option("--clients", type=int, help="How many; default 20, or as the data set has them."),
    click.option("--beta", type=float, help="Of dirichlet: small is skewed. Default 0.1."),
    click.option("--classes-per-client", type=int, help="Of pathological. Default 2."),
    click.option("--per-client", type=int, help="Keep only a client's first so many training samples."),
    click.option("--draw", type=int, help="Keep only so many of the clients, drawn at random."),
    click.option("--test", help="split (pool the official parts and cut them) or official."),
    click.option("--test-fraction", type=float, help="Of a client's samples, for testing. Default 0.25."),
    click.option("--validation", type=float, help="Fraction of the training samples for validation. Default 0."),
    click.option("--batch-size", type=int, help="Clients have samples for one batch of tests. Default 10."),
    click.option("--least", type=int, help="Fewest samples of a client."),
    click.option("--cuts", help="Of superclass: equal or random."),
    click.option("--seed", type=int, help="Everything random follows from it. Default 0."),
    click.option("--legacy", is_flag=True, default=None, help="The draws of published code; its seed is 1."),
)
DATA_OPTIONS = (
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        help="Look here. Default: $PFL_FAST_DATA, else the user's data folder.",
    ),
    click.option("--size", type=click.IntRange(min=1), help="Side of the images, or number of tokens."),
)


def data_options(function: _F) -> _F:
    """Adds ``data_dir`` and ``size``."""
    for option in reversed(DATA_OPTIONS):
        function = option(function)
    return function


def partition_options(function: _F) -> _F:
    """Adds what :func:`partition_of` takes."""
    for option in reversed(PARTITION_OPTIONS):
        function = option(function)
    return function


def open_dataset(name: str, data_dir: Path | None, size: int | None, *, real_only: bool = False) -> Dataset:
    """An imported data set, or one of the catalogue."""
    from pfl_fast.data.prepare import load
    from pfl_fast.data.progress import shown

    return load(name, folder=data_dir, size=size, real_only=real_only, report=_say, progress=shown)


def _say(message: str) -> None:
    click.echo(message, err=True)


def partition_of(dataset: Dataset, kind: str | None, options: dict[str, Any]) -> Partition:
    """The partition the options ask for; what was not given has its default."""
    from pfl_fast.data.partition import make_partition

    given = {name: value for name, value in options.items() if value is not None}
    return make_partition(dataset, kind or ("natural" if dataset.natural else "dirichlet"), **given)


def described(partition: Partition) -> str:
    """One line about a partition."""
    sizes = [len(index) for index in partition.train]
    tests = sum(len(index) for index in partition.test)
    return (
        f"{partition.kind}: {partition.clients} clients with {min(sizes)} to {max(sizes)} training samples "
        f"({sum(sizes)} in all, {tests} for test), hash {partition.hash}"
    )
