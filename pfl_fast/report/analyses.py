"""Analyses of a run: every ``analysis/NAME.json`` with ``NAME.svg`` beside it.

The JSON object has ``title``, ``caption``, and optionally a table: ``columns`` (names) and ``rows`` (lists of values).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_fast.errors import ConfigError


@dataclass(frozen=True)
class Analysis:
    """An analysis of a run.

    Attributes:
        title: heading.
        caption: text below the picture.
        picture: address of the picture: its data.
        columns: head of the table.
        rows: rows of the table, as text.
        run: number of the run.
        label: label of the run.
    """

    title: str
    caption: str
    picture: str
    columns: list[str]
    rows: list[list[str]]
    run: int
    label: str


def read_analyses(folder: Path, run: int, label: str) -> list[Analysis]:
    """Reads the analyses in a run folder, sorted by name."""
    return [_read(file, run, label) for file in sorted((folder / "analysis").glob("*.json"))]


def _read(file: Path, run: int, label: str) -> Analysis:
    drawn = file.with_suffix(".svg")
    try:
        about = json.loads(file.read_text())
        columns, rows = about.get("columns") or [], about.get("rows") or []
        return Analysis(
            title=str(about["title"]),
            caption=str(about.get("caption", "")),
            # A picture is shown as an image: its identifiers and scripts stay apart from the page.
            picture="data:image/svg+xml;base64," + base64.b64encode(drawn.read_bytes()).decode(),
            columns=[str(name) for name in columns],
            rows=[[_text(value) for value in row] for row in rows],
            run=run,
            label=label,
        )
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}); make the analysis again") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file}: not an analysis ({type(error).__name__}: {error}); make it again") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
