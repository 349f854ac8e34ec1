"""``pfl-fast data show``: sizes, classes and a sheet of samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.data_options import data_options, open_dataset

if TYPE_CHECKING:
    from pfl_fast.data.dataset import Dataset


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The picture. Default: NAME.png.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a page.")
@data_options
def show(name: str, out: Path | None, as_json: bool, data_dir: Path | None, size: int | None) -> None:
    """Show the data set NAME: sizes, classes, and a sheet of samples as a PNG.

    \b
    Examples:
      pfl-fast data show digits
      pfl-fast data show office-caltech10 --out office.png
      pfl-fast data show mnist --json
    """
    from pfl_fast.data.pictures import sample_sheet

    dataset = open_dataset(name, data_dir, size)
    facts = dataset_facts(dataset)
    if dataset.kind == "images":
        picture = out or Path(f"{name}.png")
        sample_sheet(dataset, picture)
        facts["picture"] = str(picture)
    click.echo(json.dumps(facts, indent=2) if as_json else as_page(facts))


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """What there is to know without looking at samples."""
    import numpy as np

    counts = np.bincount(dataset.y, minlength=len(dataset.classes))
    facts: dict[str, Any] = {
        "name": dataset.name,
        "source": dataset.source,
        "kind": dataset.kind,
        "samples": len(dataset),
        "official test samples": int(dataset.test.sum()),
        "input": list(dataset.input_shape),
        "MB": round(dataset.x.nbytes / 1e6, 1),
        "classes": dict(zip(dataset.classes, counts.tolist(), strict=True)),
    }
    if dataset.domain is not None:
        sizes = np.bincount(dataset.domain, minlength=len(dataset.domains))
        facts["domains"] = dict(zip(dataset.domains, sizes.tolist(), strict=True))
    if dataset.natural is not None:
        facts["clients"] = len(dataset.natural)
    if dataset.labels:
        facts["labellings"] = sorted(dataset.labels)
    if dataset.vocabulary:
        facts["vocabulary"] = dataset.vocabulary
    return facts


def as_page(facts: dict[str, Any]) -> str:
    """The facts for a person to read."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            shown = [f"{key} {count}" for key, count in list(value.items())[:20]]
            more = [f"and {len(value) - 20} more"] if len(value) > 20 else []
            value = f"{len(value)}: {', '.join(shown + more)}"
        elif isinstance(value, list):
            value = " x ".join(map(str, value)) if name == "input" else ", ".join(map(str, value))
        lines.append(f"{name:22} {value}")
    return "\n".join(lines)
