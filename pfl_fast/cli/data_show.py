"""``pfl-fast data show``: sizes and classes of a data set, and a sheet of its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.data_options import data_options, open_dataset, read_settings

if TYPE_CHECKING:
    from pfl_fast.data.dataset import Dataset


@click.command()
@click.argument("name")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="PNG file to write  [name of the data set.png]"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@data_options
def show(name: str, out: Path | None, as_json: bool, **values: Any) -> None:
    """Print sizes and classes of the data set NAME, and draw a sheet of its samples.

    NAME is a data set of the catalogue, an imported one, or the path of your own files.

    \b
    Examples:
      pfl-fast data show path/to/photos
      pfl-fast data show digits
      pfl-fast data show office-caltech10 --out office.png
      pfl-fast data show mnist --json
    """
    from pfl_fast.data.pictures import sample_sheet

    dataset = open_dataset(read_settings(name, values))
    facts = dataset_facts(dataset)
    if dataset.modality == "images":
        picture = out or Path(f"{dataset.name}.png")
        sample_sheet(dataset, picture)
        facts["picture"] = str(picture)
    click.echo(json.dumps(facts, indent=2) if as_json else as_page(facts))


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """Returns everything about a data set but its samples, for people and for JSON."""
    import numpy as np

    counts = np.bincount(dataset.y, minlength=len(dataset.classes))
    facts: dict[str, Any] = {
        "name": dataset.name,
        "source": dataset.source,
        "modality": dataset.modality,
        "samples": len(dataset),
        "official test samples": int(dataset.test.sum()),
        "input": list(dataset.input_shape),
        "MB": round(dataset.x.nbytes / 1e6, 1),
        "classes": dict(zip(dataset.classes, counts.tolist(), strict=True)),
    }
    if dataset.domain is not None:
        counts = np.bincount(dataset.domain, minlength=len(dataset.domains))
        facts["domains"] = dict(zip(dataset.domains, counts.tolist(), strict=True))
    if dataset.natural is not None:
        sizes = [sum(map(len, own)) for own in dataset.natural]
        named = dict(zip(dataset.client_names, sizes, strict=True)) if dataset.client_names else {}
        facts["clients"] = named or len(sizes)
    if dataset.labels:
        facts["labellings"] = sorted(dataset.labels)
    if dataset.vocabulary:
        facts["vocabulary"] = dataset.vocabulary
    return facts


def as_page(facts: dict[str, Any]) -> str:
    """Formats the facts as a table."""
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
