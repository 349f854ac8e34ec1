"""Tables as lists of rows by name of column: CSV, JSON lists of objects, and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from pfl_fast.data import bounded
from pfl_fast.errors import DataError

TABLES = (".csv", ".tsv", ".json", ".jsonl")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}


def read_json(file: Path) -> Any:
    """Reads a JSON file."""
    with bounded.reading(file, "JSON file"):
        return json.loads(bounded.read_file(file))


def read_rows(file: Path, content: Any = None) -> list[dict[str, Any]]:
    """Reads a table; the names of columns lose case and spaces around them.

    Args:
        file: ``.csv``, ``.tsv`` (names of columns in the first row), ``.json`` (a list of objects, or an object of
            columns) or ``.jsonl`` (one object per line).
        content: contents of a JSON file that was read before.
    """
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_csv(file, "\t" if suffix == ".tsv" else ",")
    if suffix == ".jsonl":
        with bounded.reading(file, "file of JSON lines"):
            content = [json.loads(line) for line in bounded.read_file(file).splitlines() if line.strip()]
    elif content is None:
        content = read_json(file)
    if isinstance(content, dict) and content and all(isinstance(column, list) for column in content.values()):
        lengths = {name: len(column) for name, column in content.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise DataError(f"{file}: columns of different lengths, {shown}")
        content = [dict(zip(content, values, strict=True)) for values in zip(*content.values(), strict=True)]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{file}: expected a list of objects, one per sample, or an object of columns")
    rows = [{str(name).strip().lower(): value for name, value in row.items()} for row in content]
    if wrong := [number for number, row in enumerate(rows) if row.keys() != rows[0].keys()]:
        raise DataError(f"{file}: entry {wrong[0]} has {', '.join(rows[wrong[0]])}; the first has {', '.join(rows[0])}")
    return rows


def _read_csv(file: Path, delimiter: str) -> list[dict[str, Any]]:
    data = bounded.read_file(file)
    with bounded.reading(file, "table in UTF-8"):
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter, strict=True)
        names = [name.strip().lower() for name in next(lines, [])]
        rows = []
        for row in filter(None, lines):
            if len(row) != len(names):
                raise DataError(
                    f"{file}: line {lines.line_num} has {len(row)} values for {len(names)} columns; complete it"
                )
            rows.append(dict(zip(names, (value.strip() for value in row), strict=True)))
    if len(set(names)) < len(names):
        raise DataError(f"{file}: two columns have the same name; the first row must have a name for each column")
    return rows
