"""``pfl-fast datasets``: the catalogue of data sets, and their files on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pfl_fast.cli.setting_options import setting_options
from pfl_fast.paths import data_folder

FACTS = (
    "title", "modality", "classes", "domains", "samples", "input_shape", "licence", "homepage", "download_bytes",
    "mean", "std", "augment",
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@setting_options(["data_dir"])
def datasets(as_json: bool, data_dir: str | None) -> None:
    """List the data sets of the catalogue, their terms and files on disk, and imported data sets.

    \b
    Examples:
      pfl-fast datasets
      pfl-fast datasets --data-dir /mnt/data
      pfl-fast datasets --json | python -m json.tool
    """
    folder = Path(data_dir or data_folder()).expanduser()
    rows = {**catalogue_facts(folder), **imported_facts(folder)}
    click.echo(json.dumps(rows, indent=2)) if as_json else _print_table(rows, folder)


def catalogue_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the entries of the catalogue by name, with the files found on disk."""
    from pfl_fast.data.cache import prepared_folders
    from pfl_fast.data.catalogue import DATASETS, locate

    rows = {}
    for name, entry in DATASETS.items():
        found = locate(entry, folder)
        rows[name] = {
            **{key: getattr(entry, key) for key in FACTS},
            "files": [asdict(download) for download in entry.downloads],
            "by_hand": entry.by_hand,
            "on_disk": {
                "raw": [str(file) for file in found[1]] if found else [],
                "prepared": [str(path) for path in prepared_folders(entry.base or name, folder)],
            },
        }
    return rows


def imported_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the imported data sets of a data folder by name, in the format of the catalogue."""
    from pfl_fast.data.cache import BrokenCacheError, imported_folder, imported_names, read_cache

    rows: dict[str, dict[str, Any]] = {}
    for name in imported_names(folder):
        place = imported_folder(name, folder)
        row: dict[str, Any] = {**dict.fromkeys(FACTS), "title": "imported", "licence": "yours"}
        row |= {"files": [], "by_hand": "imported"}
        row |= {"modality": "cannot be used", "classes": "-", "domains": 0, "samples": "-", "input_shape": ()}
        row["on_disk"] = {"raw": [], "prepared": [str(place)]}
        try:
            dataset = found[0] if (found := read_cache(place)) else None
        except BrokenCacheError:
            dataset = None
        if dataset is not None:
            row |= {"modality": dataset.modality, "classes": len(dataset.classes), "samples": len(dataset)}
            row |= {"input_shape": dataset.input_shape, "domains": len(dataset.domains)}
        rows[name] = row
    return rows


def _print_table(rows: dict[str, dict[str, Any]], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, justify in (
        ("name", "left"), ("modality", "left"), ("classes", "right"), ("samples", "right"), ("input", "left"),
        ("download", "right"), ("on disk", "left"), ("licence", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title != "licence")  # type: ignore[arg-type]
    for name, row in rows.items():
        domains = f", {row['domains']} domains" if row["domains"] else ""
        table.add_row(
            name,
            row["modality"] + domains,
            str(row["classes"]),
            str(row["samples"]),
            "x".join(map(str, row["input_shape"])),
            _download_size(row),
            _on_disk(row),
            row["licence"],
        )
    console = Console()
    if not console.is_terminal:
        console.width = 200  # no truncation or wrapping in a pipe
    console.print(table)
    console.print(
        f"\nData folder: {folder}. 'pfl-fast data get NAME' downloads a data set; --dataset PATH takes your own files.",
        highlight=False,
    )


def _download_size(row: dict[str, Any]) -> str:
    if row["by_hand"]:
        return str(row["by_hand"]) if row["by_hand"] == "imported" else "by hand"
    size = row["download_bytes"] / 1e6
    return "-" if not size else f"{size:.0f} MB" if size < 1000 else f"{size / 1000:.1f} GB"


def _on_disk(row: dict[str, Any]) -> str:
    if not row["files"] and not row["by_hand"]:
        return "always"
    return " + ".join(form for form in ("raw", "prepared") if row["on_disk"][form]) or "-"
