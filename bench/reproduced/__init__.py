"""Reproduced tables in docs/reproduce.md.

``python -m bench.reproduced FOLDER...`` records the results of finished ``pfl-fast reproduce`` commands as JSON beside
this file, and writes the page's list of recipes and its tables; without a folder it only writes the page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from pfl_fast.cli.recipes import facts
from pfl_fast.comparison.formats import Table, markdown
from pfl_fast.comparison.recipes import load_recipe, recipe_names
from pfl_fast.comparison.reproduction import reproduced_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduce.md"
SHOWN = ("recipe", "table", "rows", "columns", "data")


def record(folder: Path) -> Path:
    """Copies the results of a folder; the file has the name of the folder."""
    target = HERE / f"{folder.resolve().name}.json"
    target.write_text((folder / "results.json").read_text())
    return target


def recipe_table() -> str:
    """Returns the list of recipes as Markdown."""
    lines = [[facts(load_recipe(name))[column] for column in SHOWN] for name in recipe_names()]
    return markdown(Table([], [list(SHOWN), *lines], [])).strip()


def results() -> str:
    """Returns all recorded tables as Markdown, each with its command."""
    found = [json.loads(file.read_text()) for file in sorted(HERE.glob("*.json"))]
    blocks = [
        f"### {one['recipe']}\n\n```\n{one['command']}\n```\n\n{markdown(reproduced_table(one))}" for one in found
    ]
    return "\n".join(blocks).strip() or "None yet."


def page() -> str:
    """Returns docs/reproduce.md with its generated blocks."""
    text = PAGE.read_text()
    for name, block in (("recipes", recipe_table()), ("results", results())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, block=block: f"{found[1]}\n{block}\n\n{found[2]}", text)
    return text
