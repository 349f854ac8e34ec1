"""``pfl-fast models``: the models there are, how wide their features are and how many parameters they have."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import click

from pfl_fast.errors import ConfigError


@dataclass
class Row:
    """One model at its typical input; no numbers, but a problem, where it cannot be built here."""

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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list instead of a table.")
def models(as_json: bool) -> None:
    """List the models, with feature width and parameters for a typical input.

    A model of your own is named as package.module:attribute, together with its head.

    \b
    Examples:
      pfl-fast models
      pfl-fast models --json | python -m json.tool
    """
    rows = collect()
    click.echo(json.dumps([asdict(row) for row in rows], indent=2) if as_json else as_table(rows))


def collect() -> list[Row]:
    """Builds every model without memory for its weights, and counts."""
    import torch

    from pfl_fast.models import MODELS, build

    rows = []
    for name, entry in MODELS.items():
        shape, classes, vocabulary = entry.typical
        row = Row(name, entry.summary, entry.takes, shape, classes, entry.options)
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


def as_table(rows: list[Row]) -> str:
    """The models for a person to read: a line each, then what stands in the way of some."""
    lines = [click.style(f"{'model':16} {'input':>9} {'classes':>7} {'features':>8} {'parameters':>11}", bold=True)]
    for row in rows:
        width = "-" if row.feature_width is None else str(row.feature_width)
        count = "-" if row.parameters is None else f"{row.parameters:,}"
        shape = "x".join(map(str, row.input_shape))
        options = "; " + ", ".join(f"{key}={value!r}" for key, value in row.options.items()) if row.options else ""
        lines.append(f"{row.name:16} {shape:>9} {row.classes:7} {width:>8} {count:>11}  {row.summary}{options}")
    return "\n".join([*lines, *(row.problem for row in rows if row.problem)])
