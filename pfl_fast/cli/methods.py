"""``pfl-fast methods``: lists all methods, or describes one."""

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
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of a page")
@click.option("--fidelity", is_flag=True, help="print interpretation and tests of each paper, as in docs/fidelity.md")
def methods(name: str | None, as_json: bool, fidelity: bool) -> None:
    """List all methods, or describe the method NAME.

    The description has formulas, parts, cost, interpretation of the paper, options and presets.

    \b
    Examples:
      pfl-fast methods
      pfl-fast methods fedcp
      pfl-fast methods fedcp --json | python -m json.tool
      pfl-fast methods --fidelity
    """
    from pfl_fast.assembly import find_method
    from pfl_fast.cli.pfllib_flags import METHOD_NAMES, canonical_name
    from pfl_fast.methods import METHODS
    from pfl_fast.models import absolute_code

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
    name = absolute_code(canonical_name(name, METHODS, METHOD_NAMES))
    facts = collect(name, find_method(name))
    click.echo(json.dumps(facts, indent=2) if as_json else as_page(facts))


def collect(name: str, method_class: type[Method]) -> dict[str, Any]:
    """Returns the description of a method as plain data."""
    from pfl_fast.cli.method_costs import Example, cost_of
    from pfl_fast.models import MODELS
    from pfl_fast.options import describe

    return {
        "name": name,
        "title": method_class.title,
        "summary": method_class.summary,
        "paper": method_class.paper,
        "about": inspect.getdoc(inspect.getmodule(method_class)) or "",
        "family": method_class.family,
        "reading": method_class.reading,
        "public_code": method_class.public_code,
        "parts": parts_table(Example(name).parts),
        "cost": asdict(cost_of(name)),
        "batch_norm": method_class.batch_norm,
        "options": [asdict(option) for option in describe(method_class.Options)],
        "presets": {preset: dict(values) for preset, values in method_class.presets.items()},
        "paper_experiments": paper_experiments(method_class),
        "paper_values": {model: dict(values) for model in MODELS if (values := method_class.defaults(model, ""))},
        "paper_values_by_dataset": dataset_values(method_class),
    }


def paper_experiments(method_class: type[Method]) -> dict[str, dict[str, Any]]:
    """Returns the values of ``--preset paper`` by data set."""
    from pfl_fast.methods.papers import FIRST

    values = {name: method_class.preset("paper", name) for name in sorted(FIRST)}
    return {name: dict(found) for name, found in values.items() if found}


def dataset_values(method_class: type[Method]) -> dict[str, dict[str, Any]]:
    """Returns, by data set, the paper's values that differ from those for other data sets with the same model."""
    from pfl_fast.data.catalogue import DATASETS
    from pfl_fast.models import default_model

    found = {}
    for name, entry in DATASETS.items():
        model = default_model(name, entry.modality, entry.input_shape)
        usual = method_class.defaults(model, "")
        values = {key: value for key, value in method_class.defaults(model, name).items() if usual.get(key) != value}
        if values:
            found[name] = values
    return found


def parts_table(parts: Mapping[str, Part]) -> list[dict[str, Any]]:
    """Returns one row for each part of a client's model."""
    return [
        {
            "part": name,
            "trained": part.trained,
            "receives": part.receive_from,
            "uploads": part.upload_to,
            "recipients": part.recipients if part.receive_from else None,
            "mixture_of": part.mixture_of,
            "persists": part.persists,
        }
        for name, part in parts.items()
    ]


def as_list(rows: dict[str, dict[str, str]]) -> str:
    """Returns the list of methods as text, by family."""
    from pfl_fast.methods.base import FAMILIES

    width = max(map(len, rows)) + 2
    lines = []
    for family in FAMILIES:
        lines.append(click.style(family, bold=True))
        lines += [f"  {n:{width}}{row['summary']}" for n, row in rows.items() if row["family"] == family]
        lines.append("")
    return "\n".join([*lines, "pfl-fast methods NAME describes a method; pfl-fast train NAME trains it."])


def as_fidelity_page(methods: Mapping[str, type[Method]]) -> str:
    """Returns a Markdown table: interpretation of each paper, its test, and differences from public code."""
    lines = [
        "# Fidelity",
        "",
        "How each paper is interpreted where it leaves a choice, which test checks the implementation, and where",
        "public code differs. Each test compares all tensors in float64 with a second implementation in plain loops,",
        "over two or more rounds and with several settings: momentum, partial participation, dropped clients and",
        "BatchNorm policies. `tests/engine` compares the executors with each other and resumed runs with",
        "uninterrupted ones. [reproduce.md](reproduce.md) has the papers' tables as recipes, and our numbers beside",
        "theirs.",
        "",
        "Generated by `pfl-fast methods --fidelity`; `python -m bench.reproduced` adds the orderings below.",
        "",
        "| method | paper | interpretation | test | differences from public code |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, method_class in methods.items():
        test = f"tests/methods/test_{name.replace('-', '_')}.py"
        cells = (
            method_class.title,
            method_class.paper,
            method_class.reading,
            f"`{test}`",
            method_class.public_code or "none known",
        )
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def as_page(facts: dict[str, Any]) -> str:
    """Returns the description of a method as text."""
    from pfl_fast.cli.method_costs import Cost

    lines = [f"{click.style(facts['title'], bold=True)} ({facts['name']}): {facts['summary']}", facts["paper"], ""]
    lines += [facts["about"], ""]
    parts = [{name: format_value(value) for name, value in part.items()} for part in facts["parts"]]
    lines += section("parts of a client's model", table(parts))
    lines += section("cost of a round per client", Cost(**facts["cost"]).lines())
    lines += section("interpretation of the paper", [facts["reading"] or "as written"])
    lines += section("differences from public code", [facts["public_code"] or "none known"])
    lines += section("BatchNorm", [f"{facts['batch_norm']} (default of --batch-norm)"])
    lines += section("options (--set NAME=VALUE)", options_lines(facts["options"]) or ["none"])
    presets = [f"{name}: {assignments(values)}" for name, values in facts["presets"].items()]
    lines += section("presets (--preset NAME)", presets or ["paper"])
    lines += section("preset paper by data set", group_by_values(facts["paper_experiments"]))
    lines += section("values of the paper by model", group_by_values(facts["paper_values"]) or ["none"])
    if facts["paper_values_by_dataset"]:
        lines += section("values of the paper by data set", group_by_values(facts["paper_values_by_dataset"]))
    return "\n".join(lines).rstrip()


def section(title: str, lines: list[str]) -> list[str]:
    """Returns a heading and indented lines."""
    return [click.style(title, bold=True), *(f"  {line}" for line in lines), ""]


def table(rows: list[dict[str, str]]) -> list[str]:
    """Returns a header line and one line per row, with aligned columns."""
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def options_lines(options: list[dict[str, Any]]) -> list[str]:
    """Returns two lines per option: default and choices, then the help text."""
    lines = []
    for option in options:
        choices = f" (one of {', '.join(map(str, option['choices']))})" if option["choices"] else ""
        lines += [f"{option['name']} = {format_value(option['default'])}{choices}", f"    {option['help']}"]
    return lines


def group_by_values(values: dict[str, dict[str, Any]]) -> list[str]:
    """Returns one line for all models, or data sets, with the same values."""
    names: dict[str, list[str]] = {}
    for name, own_values in values.items():
        names.setdefault(assignments(own_values), []).append(name)
    return [f"{', '.join(group)}: {text}" for text, group in names.items()]


def assignments(values: dict[str, Any]) -> str:
    """Returns values in the format of ``--set``."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in values.items())


def format_value(value: Any) -> str:
    """Returns a value in the format of ``--set``; None becomes a dash.

    >>> format_value(True), format_value((10.0, 0.5)), format_value(None), format_value(0.005)
    ('true', '10,0.5', '-', '0.005')
    """
    if isinstance(value, (tuple, list)):
        return ",".join(format_value(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)
