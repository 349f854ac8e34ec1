"""Displays of objects in notebooks."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from pfl_fast.errors import ConfigError

LAST = 10  # rounds in the table of a notebook
SHOWN = ("round", "test_accuracy_after_agg", "test_accuracy_after_local", "test_auc_after_agg", "train_loss", "seconds")


class Records(list[dict[str, Any]]):
    """JSON objects of the rounds, see docs/results-format.md; a table in notebooks.

    >>> records = Records([{"round": 1, "train_loss": 0.5}])
    >>> records[0]["train_loss"], records
    (0.5, Records(1 round))
    """

    def frame(self) -> Any:
        """Returns a pandas ``DataFrame`` with a row for each round; ``seconds_by_part`` has a column for each part."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("records.frame: the package pandas is not installed: pip install pandas") from None
        rows = [
            {n: v for n, v in r.items() if n != "seconds_by_part"}
            | {f"seconds_{part}": value for part, value in (r.get("seconds_by_part") or {}).items()}
            for r in self
        ]
        return pandas.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")

    def __repr__(self) -> str:
        return f"Records({len(self)} round{'' if len(self) == 1 else 's'})"

    def _repr_html_(self) -> str:
        names = [name for name in SHOWN if any(record.get(name) is not None for record in self)]
        more = f"<p>last {LAST} of {len(self)} rounds; <code>records.frame()</code> has all</p>"
        return html_table(names, self[-LAST:]) + (more if len(self) > LAST else "")


def html_table(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns rows as an HTML table."""
    names = list(names)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_text(row.get(n))}</td>" for n in names) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(title: str, facts: Mapping[str, Any]) -> str:
    """Returns names and values as an HTML table with a title."""
    rows = "".join(
        f"<tr><th style='text-align: left'>{escape(n)}</th><td>{_text(v)}</td></tr>" for n, v in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else escape(str(value))
