"""``pfl-fast models``: lists all models with feature width and number of parameters."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import click

from pfl_fast.errors import ConfigError


@dataclass
class ModelFacts:
    """One model at its typical input. ``problem`` says why it cannot be built here, then there are no numbers."""

    name: str
    summary: str
    takes: str
    input_shape: tuple[int, ...]
    classes: int
    options: dict[str, Any]
    feature_width: int | None = None
    parameters: int | None = None
    problem: str | None = None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON list instead of a table")
def models(as_json: bool) -> None:
    """List the models with feature width and number of parameters.

    Numbers are for a typical input of the model. A module of your own is given to pfl-fast train as
    --model package.module:attribute --head NAME.

    \b
    Examples:
      pfl-fast models
      pfl-fast models --json | python -m json.tool
    """
    rows = collect()
    click.echo(json.dumps([asdict(row) for row in rows], indent=2) if as_json else as_table(rows))


def collect() -> list[ModelFacts]:
    """Builds every model on the meta device and counts its parameters."""
    import torch

    from pfl_fast.models import MODELS, build

    rows = []
    for name, entry in MODELS.items():
        shape, classes, vocabulary = entry.typical
        row = ModelFacts(name, entry.summary, entry.takes, shape, classes, entry.options)
        try:
            with torch.device("meta"):
                backbone = build(name, input_shape=shape, classes=classes, vocabulary=vocabulary)
        except ConfigError as error:
            row.problem = str(error)
        else:
            row.feature_width = backbone.feature_width
            row.parameters = sum(parameter.numel() for parameter in backbone.parameters())
        rows.append(row)
    return rows


def as_table(rows: list[ModelFacts]) -> str:
    """Returns a table with one line per model, followed by the problems of models that cannot be built."""
    lines = [click.style(f"{'model':16} {'input':>9} {'classes':>7} {'features':>8} {'parameters':>11}", bold=True)]
    for row in rows:
        width = "-" if row.feature_width is None else str(row.feature_width)
        count = "-" if row.parameters is None else f"{row.parameters:,}"
        shape = "x".join(map(str, row.input_shape))
        options = "; " + ", ".join(f"{key}={value!r}" for key, value in row.options.items()) if row.options else ""
        lines.append(f"{row.name:16} {shape:>9} {row.classes:7} {width:>8} {count:>11}  {row.summary}{options}")
    return "\n".join([*lines, *(row.problem for row in rows if row.problem)])
