"""``pfl-fast recipes``: lists the tables of the papers, or shows one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pfl_fast.comparison.recipes import Column, Recipe

HEAD = ("recipe", "table", "rows", "columns", "data", "runs", "samples")


@click.command()
@click.argument("name", required=False)
def recipes(name: str | None) -> None:
    """List the recipes: tables of the papers that pfl-fast reproduce runs; or show the recipe NAME.

    samples is the number of training samples of all rounds, epochs and runs together.

    \b
    Examples:
      pfl-fast recipes
      pfl-fast recipes fedcp/table2
    """
    from pfl_fast.comparison.formats import Table, text
    from pfl_fast.comparison.recipes import load_recipe, recipe_names

    if name:
        click.echo(page(load_recipe(name)))
        return
    lines = [list(HEAD), *(list(facts(load_recipe(found)).values()) for found in recipe_names())]
    click.echo(text(Table([], lines, [])).strip())
    click.echo("\npfl-fast recipes NAME shows a recipe; pfl-fast reproduce NAME --dry-run estimates its time.")


def facts(recipe: Recipe) -> dict[str, str]:
    """Returns one line of the list."""
    runs = (len(recipe.rows) * len(recipe.columns) - len(recipe.not_run)) * len(recipe.seeds)
    found = (recipe.name, recipe.title, len(recipe.rows), len(recipe.columns), ", ".join(recipe.datasets), runs)
    return dict(zip(HEAD, [*map(str, found), f"{recipe.passes():.1e}"], strict=True))


def page(recipe: Recipe) -> str:
    """Returns the description of a recipe: settings of each column, values and numbers of each row."""
    from pfl_fast.engine.results.protocol import find_protocol

    lines = [click.style(f"{recipe.name}: {recipe.paper}, {recipe.title}", bold=True)]
    lines += [f"accuracy  {find_protocol(recipe.protocol)}", f"seeds     {', '.join(map(str, recipe.seeds))}"]
    lines += [f"note      {note}" for note in recipe.notes]
    for column in recipe.columns:
        lines += ["", click.style(f"column {column.name}", bold=True), f"  {values(recipe.settings(column).items())}"]
        for row in recipe.rows:
            if (row.name, column.name) in recipe.not_run:
                continue
            own = values(recipe.row_values(row, column).items())
            method = "" if row.label == row.name == row.method else f" ({row.method}{', ' if own else ''}{own})"
            lines.append(f"  {row.name}{method}: {numbers(recipe, column, row.name)}")
    return "\n".join(lines)


def values(found: Iterable[tuple[str, Any]]) -> str:
    """Returns values in the format of ``--set``."""
    from pfl_fast.cli.methods import format_value

    return ", ".join(f"{name}={format_value(value)}" for name, value in found)


def numbers(recipe: Recipe, column: Column, row: str) -> str:
    """Returns the paper's numbers of a row in a column."""
    known = [(domain, recipe.numbers.get((row, column.name, domain))) for domain in column.domains or ("",)]
    return ", ".join(f"{d} {number or 'not in the source'}".strip() for d, number in known)
