"""``pfl-fast methods``: the methods there are, and everything about one of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pfl_fast.methods import Method
    from pfl_fast.methods.base import Part


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a page.")
@click.option("--fidelity", is_flag=True, help="Print docs/fidelity.md: how each paper is read, and what checks it.")
def methods(name: str | None, as_json: bool, fidelity: bool) -> None:
    """List the methods by kind, or say everything about one: formulas, parts, cost, readings, options, presets.

    \b
    Examples:
      pfl-fast methods
      pfl-fast methods fedcp
      pfl-fast methods fedcp --json | python -m json.tool
      pfl-fast methods --fidelity > docs/fidelity.md
    """
    from pfl_fast.assembly import find_method
    from pfl_fast.cli.pfllib_flags import METHOD_NAMES, canonical_name
    from pfl_fast.methods import METHODS

    if fidelity:
        click.echo(as_fidelity_page(METHODS))
        return
    if name is None:
        rows = {
            key: {"title": m.title, "summary": m.summary, "family": m.family, "paper": m.paper}
            for key, m in METHODS.items()
        }
        click.echo(json.dumps(rows, indent=2) if as_json else as_list(rows))
        return
    name = canonical_name(name, METHODS, METHOD_NAMES)
    facts = collect(name, find_method(name))
    click.echo(json.dumps(facts, indent=2) if as_json else as_page(facts))


def collect(name: str, kind: type[Method]) -> dict[str, Any]:
    """Everything about a method, as plain data."""
    from pfl_fast.cli.method_costs import Example, cost_of
    from pfl_fast.models import MODELS
    from pfl_fast.options import describe

    return {
        "name": name,
        "title": kind.title,
        "summary": kind.summary,
        "paper": kind.paper,
        "about": inspect.getdoc(inspect.getmodule(kind)) or "",
        "family": kind.family,
        "reading": kind.reading,
        "public_code": kind.public_code,
        "parts": parts_table(Example(name).parts),
        "cost": asdict(cost_of(name)),
        "batch_norm": kind.batch_norm,
        "options": [asdict(option) for option in describe(kind.Options)],
        "presets": {preset: dict(values) for preset, values in kind.presets.items()},
        "paper_values": {model: dict(values) for model in MODELS if (values := kind.defaults(model, ""))},
        "paper_values_by_dataset": dataset_values(kind),
    }


def dataset_values(kind: type[Method]) -> dict[str, dict[str, Any]]:
    """By data set, on the model it is used with: what differs from other data on that model."""
    from pfl_fast.data.catalogue import DATASETS
    from pfl_fast.models import default_model

    found = {}
    for name, entry in DATASETS.items():
        model = default_model(name, entry.kind, entry.input_shape)
        usual = kind.defaults(model, "")
        values = {key: value for key, value in kind.defaults(model, name).items() if usual.get(key) != value}
        if values:
            found[name] = values
    return found


def parts_table(parts: Mapping[str, Part]) -> list[dict[str, Any]]:
    """Returns one row for each part of a client's model."""
    return [
        {
            "part": name,
            "trained": part.trained,
            "receives": part.receives,
            "uploads": part.uploads,
            "recipients": part.recipients if part.receives else None,
            "mixes": part.mixes,
            "kept": part.kept,
        }
        for name, part in parts.items()
    ]


def as_list(rows: dict[str, dict[str, str]]) -> str:
    """The methods for a person to read, those of a kind together."""
    from pfl_fast.methods.base import FAMILIES

    width = max(map(len, rows)) + 2
    lines = []
    for family in FAMILIES:
        lines.append(click.style(family, bold=True))
        lines += [f"  {n:{width}}{row['summary']}" for n, row in rows.items() if row["family"] == family]
        lines.append("")
    return "\n".join([*lines, "pfl-fast methods NAME says everything about one; pfl-fast train NAME trains it."])


def as_fidelity_page(kinds: Mapping[str, type[Method]]) -> str:
    """How each paper is read, what checks it, and what public code does differently, as a table in Markdown."""
    lines = [
        "# Fidelity",
        "",
        "How each method's paper is read where it leaves a choice, what checks the code, and where public code",
        "differs. Each method is compared, tensor by tensor in float64, with a second implementation in plain loops",
        "over two or more rounds, in several settings of the run, such as momentum, partial participation, lost",
        "clients and policies for BatchNorm; and over all executors and through a resume by `tests/engine`.",
        "",
        "Made by `pfl-fast methods --fidelity > docs/fidelity.md`.",
        "",
        "| method | paper | our reading | checked by | differs from public code in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, kind in kinds.items():
        test = f"tests/methods/test_{name.replace('-', '_')}.py"
        cells = (kind.title, kind.paper, kind.reading, f"`{test}`", kind.public_code or "nothing that we know of")
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def as_page(facts: dict[str, Any]) -> str:
    """One method for a person to read."""
    from pfl_fast.cli.method_costs import Cost

    lines = [f"{click.style(facts['title'], bold=True)} ({facts['name']}): {facts['summary']}", facts["paper"], ""]
    lines += [facts["about"], ""]
    lines += section("parts of a client's model", table([{k: shown(v) for k, v in p.items()} for p in facts["parts"]]))
    lines += section("a client's cost of a round", Cost(**facts["cost"]).lines())
    lines += section("how the paper is read", [facts["reading"] or "to the letter"])
    lines += section("what public code does differently", [facts["public_code"] or "nothing that we know of"])
    lines += section("BatchNorm", [f"{facts['batch_norm']} (--batch-norm says otherwise)"])
    lines += section("options (--set NAME=VALUE)", options_lines(facts["options"]) or ["none"])
    presets = [f"{name}: {assignments(values)}" for name, values in facts["presets"].items()]
    lines += section("presets (--preset NAME)", presets or ["none"])
    lines += section("the paper's values, by model", by_value(facts["paper_values"]) or ["none: the general defaults"])
    if facts["paper_values_by_dataset"]:
        lines += section("and by data set", by_value(facts["paper_values_by_dataset"]))
    return "\n".join(lines).rstrip()


def section(title: str, lines: list[str]) -> list[str]:
    """A heading and what stands under it."""
    return [click.style(title, bold=True), *(f"  {line}" for line in lines), ""]


def table(rows: list[dict[str, str]]) -> list[str]:
    """Rows under their column names, in columns as wide as needed."""
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def options_lines(options: list[dict[str, Any]]) -> list[str]:
    """Each option with its default, its choices and what it does."""
    lines = []
    for option in options:
        choices = f" (one of {', '.join(map(str, option['choices']))})" if option["choices"] else ""
        lines += [f"{option['name']} = {shown(option['default'])}{choices}", f"    {option['help']}"]
    return lines


def by_value(values: dict[str, dict[str, Any]]) -> list[str]:
    """Models, or data sets, that have the same values share a line."""
    sharing: dict[str, list[str]] = {}
    for name, its in values.items():
        sharing.setdefault(assignments(its), []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in sharing.items()]


def assignments(values: dict[str, Any]) -> str:
    """As ``--set`` takes them."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def shown(value: Any) -> str:
    """A value as ``--set`` takes it, a dash for none.

    >>> shown(True), shown((10.0, 0.5)), shown(None), shown(0.005)
    ('true', '10,0.5', '-', '0.005')
    """
    if isinstance(value, (tuple, list)):
        return ",".join(shown(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)
