"""Reproduced tables in docs/reproduce.md, and their orderings in docs/fidelity.md.

``python -m bench.reproduced FOLDER...`` records the results of finished ``pfl-fast reproduce`` commands as JSON beside
this file, and writes both pages; without a folder it only writes the pages. ``reasons.toml`` has a reason for every
ordering that does not show.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl_fast.cli.methods import as_fidelity_page
from pfl_fast.cli.recipes import facts
from pfl_fast.comparison.formats import Table, markdown
from pfl_fast.comparison.recipes import load_recipe, recipe_names
from pfl_fast.comparison.reproduction import reproduced_table, signed
from pfl_fast.methods import METHODS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PAGE, FIDELITY = DOCS / "reproduce.md", DOCS / "fidelity.md"
SHOWN = ("recipe", "table", "rows", "columns", "data")
ORDERINGS = """\
## Orderings

Does the difference between the paper's method and another row, or an ablation, have the paper's sign? Differences are
in percentage points, over two seeds, of the tables that [reproduce.md](reproduce.md) lists with their commands.
`undecided`: within one standard deviation of our difference. Reasons are of three kinds: `budget`, our runs are too
small; `paper`, its text leaves a choice or other data would be needed; `bug`, a known defect of the package.
"""


def record(folder: Path) -> Path:
    """Copies the results of a folder; the file has the name of the folder."""
    target = HERE / f"{folder.resolve().name}.json"
    target.write_text((folder / "results.json").read_text())
    return target


def recorded() -> dict[str, dict[str, Any]]:
    """Returns all recorded tables by name."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(HERE.glob("*.json"))}


def recipe_table() -> str:
    """Returns the list of recipes as Markdown."""
    lines = [[facts(load_recipe(name))[column] for column in SHOWN] for name in recipe_names()]
    return markdown(Table([], [list(SHOWN), *lines], [])).strip()


def results() -> str:
    """Returns all recorded tables as Markdown, each with its command."""
    blocks = [
        f"### {one['recipe']}\n\n```\n{one['command']}\n```\n\n{markdown(reproduced_table(one))}"
        for one in recorded().values()
    ]
    return "\n".join(blocks).strip() or "None yet."


def page() -> str:
    """Returns docs/reproduce.md with its generated blocks."""
    text = PAGE.read_text()
    for name, block in (("recipes", recipe_table()), ("results", results())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, block=block: f"{found[1]}\n{block}\n\n{found[2]}", text)
    return text


def reasons() -> dict[str, dict[str, str]]:
    """Returns the reasons by table and row."""
    return tomllib.loads((HERE / "reasons.toml").read_text())


def orderings() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields each recorded ordering with the name of its table, and the reason why it does not show."""
    known = reasons()
    for name, table in recorded().items():
        for ordering in table["orderings"]:
            yield name, ordering, known.get(name, {}).get(ordering["row"], "")


def fidelity_page() -> str:
    """Returns docs/fidelity.md: the interpretations, then the orderings."""
    lines = [["table", "ordering", "paper", "ours", "verdict", "reason"]]
    for name, found, reason in orderings():
        what = f"{found['column']}: {found['subject']} - {found['row']}"
        numbers = [signed(found[whose], 2) for whose in ("paper", "ours")]
        lines.append([name, what, *numbers, found["verdict"], reason])
    table = markdown(Table([], lines, [])).strip() if lines[1:] else "None yet."
    return f"{as_fidelity_page(METHODS)}\n\n{ORDERINGS}\n{table}\n"
