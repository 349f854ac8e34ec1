"""Recipes: the tables and sweeps of the papers as data, in ``pfl_fast/recipes/<paper>/<table>.toml``.

``paper.toml`` holds the values that all tables of a paper share; a table names differences. Keys of both files:

    title        what the table shows                     subject   row of the paper's own method
    protocol     rules for the accuracies                 method    method of rows that name none
    seeds        seeds of the paper, or usual ones        notes     remarks, printed with the results
    quantity     accuracy, or time: of a round, without tests; numbers in any unit, compared relative to FedAvg's
    settings     values of all columns                    columns   one table of values per column; ``domains`` names
    datasets     values by data set                                 the numbers of a column with several
    models       values by model                          rows      values of rows that are not just a method's name
    grid         values of options: one row for each      numbers   one line per row: name, then the paper's numbers

Values are settings, or tables of settings and options by name of a method (``fedcp.lam = 5``). Later layers win:
settings, datasets and models of the paper, settings of the table, column, row. A row is a name in ``rows``,
``option=value`` of the table's method, or the name of a method. A number is ``98.81±0.01`` or ``98.81``; ``-``: not in
the source; ``x``: not run in the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pfl_fast.comparison.plan import SETTINGS, Request, Variant
from pfl_fast.config import NOT_IN_RESULTS, Settings
from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.partition_spec import default_test_fraction
from pfl_fast.engine.results.protocol import find_protocol
from pfl_fast.errors import ConfigError, did_you_mean, raise_config_errors
from pfl_fast.methods import METHODS
from pfl_fast.models.registry import MODELS
from pfl_fast.options import convert, unknown

FOLDER = Path(__file__).parents[1] / "recipes"
PAPER = "paper"  # the file with the values of all tables of a paper
KEYS = {
    "title", "protocol", "seeds", "subject", "method", "notes", "settings", "datasets", "models", "columns", "rows",
    "grid", "numbers", "quantity",
}  # fmt: skip
QUANTITIES = ("accuracy", "time")
BASE = "fedavg"  # row that times are divided by
EVALUATIONS = {  # tests that a protocol needs; others would only cost time
    "after_agg": {"eval_at": "after_agg", "eval_global": False},
    "after_local": {"eval_at": "after_local", "eval_global": False},
    "after_finetune": {"eval_at": "after_agg", "eval_global": False},
    "global": {"eval_at": "after_agg", "eval_global": True},
}
Layer = Mapping[str, Any]
NOTHING: Layer = MappingProxyType({})
EXECUTION = NOT_IN_RESULTS - {"protocol", "rounds"}


@dataclass(frozen=True)
class Expected:
    """A number of a paper, accuracies in percent: mean and standard deviation (None if the paper has none)."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        """Returns the number as the paper prints it."""
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class RecipeRow:
    """A row: name on the command line, label in tables, method, and values of this row only."""

    name: str
    label: str
    method: str
    values: Layer


@dataclass(frozen=True)
class Column:
    """A column: name, its values, and the domains that the paper reports (empty: one number)."""

    name: str
    values: Layer
    domains: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """A table of a paper.

    Attributes:
        name: ``"<paper>/<table>"``.
        paper: title of the paper's method.
        title: what the table shows.
        quantity: ``"accuracy"``, or ``"time"`` of a round relative to FedAvg's.
        protocol: rules for the accuracies.
        seeds: seeds.
        subject: name of the row of the paper's own method; empty if the table has none.
        notes: remarks.
        columns: the columns.
        rows: the rows.
        numbers: numbers by row, column and domain (``""``: the column has no domains).
        not_run: rows and columns that the paper did not run.
        layers: values of paper and table, in the order in which they are merged.
    """

    name: str
    paper: str
    title: str
    quantity: str
    protocol: str
    seeds: tuple[int, ...]
    subject: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[RecipeRow, ...]
    numbers: Mapping[tuple[str, str, str], Expected]
    not_run: frozenset[tuple[str, str]]
    layers: tuple[Layer, Layer]

    @cached_property
    def datasets(self) -> list[str]:
        """Names of the data sets."""
        return list(dict.fromkeys(str(self.settings(column)["dataset"]) for column in self.columns))

    def settings(self, column: Column, method: str | None = None) -> dict[str, Any]:
        """Returns settings of a column, and with ``method`` settings and options that are for this method only."""
        paper, table = self.layers
        dataset, model = (
            _last(name, column.values, table.get("settings", {}), *paper_layers)
            for name, paper_layers in (
                ("dataset", [paper.get("settings", {})]),
                ("model", [self._by_dataset(column), paper.get("settings", {})]),
            )
        )
        layers = [
            paper.get("settings", {}),
            paper.get("datasets", {}).get(dataset, {}),
            paper.get("models", {}).get(model, {}),
            table.get("settings", {}),
            column.values,
        ]
        if method is not None:
            layers = [layer.get(method, {}) for layer in layers]
        merged = {name: value for layer in layers for name, value in layer.items() if not isinstance(value, dict)}
        if method is not None:
            return merged
        protocol = find_protocol(self.protocol)
        return {**EVALUATIONS[protocol.point], "protocol": self.protocol, **merged}

    def _by_dataset(self, column: Column) -> Layer:
        paper, table = self.layers
        dataset = _last("dataset", column.values, table.get("settings", {}), paper.get("settings", {}))
        found: Layer = paper.get("datasets", {}).get(dataset, {})
        return found

    def request(self, column: Column, rows: Iterable[RecipeRow], seeds: tuple[int, ...], changes: Layer) -> Request:
        """Returns the comparison of one column. All settings are given, so that no method's defaults count."""
        defaults = {f.name: f.default for f in fields(Settings) if f.name not in ("seed", *EXECUTION)}
        values = {**defaults, **self.settings(column), **changes}
        variants = [
            Variant(row.label, row.method, self.row_values(row, column, changes), row.name.replace("/", "_"))
            for row in rows
            if (row.name, column.name) not in self.not_run
        ]
        methods = tuple(dict.fromkeys(variant.method for variant in variants))
        return Request(methods, seeds, values, rows=tuple(variants))

    def row_values(self, row: RecipeRow, column: Column, changes: Layer = NOTHING) -> dict[str, Any]:
        """Returns the settings and options of one row; ``changes`` of the user win over settings of the column."""
        own = {**self.settings(column, row.method), **row.values}
        if protocol := own.get("protocol"):
            own = {**EVALUATIONS[find_protocol(protocol).point], **own}
        return {name: value for name, value in own.items() if name not in changes}

    def expected(self, row: str, column: Column, domains: Iterable[str] = ()) -> Expected | None:
        """Returns the paper's number of a column, or the mean of its numbers of ``domains``."""
        if not column.domains:
            number, base = (self.numbers.get((name, column.name, "")) for name in (row, BASE))
            return Expected(number.mean / base.mean) if self.quantity == "time" and number and base else number
        found = [self.numbers.get((row, column.name, domain)) for domain in domains]
        known = [number.mean for number in found if number]
        return Expected(sum(known) / len(known)) if known and len(known) == len(found) else None

    def training_samples(self, column: Column) -> int:
        """Returns the number of training samples of a column with all its data, from the catalogue."""
        s = {**{f.name: f.default for f in fields(Settings)}, **self.settings(column)}
        entry = DATASETS[s["dataset"]]
        clients = self.clients(column)
        drawn = clients / int(s["clients"] or clients)
        pool = entry.samples if entry.pools_test else entry.samples * 10 / 11  # without Tiny-ImageNet's validation part
        held_out = s["test_fraction"]
        if held_out is None:
            held_out = default_test_fraction(s["partition"])
        share = 5 / 6 if s["partition"] == "superclass" else 1 - held_out  # CIFAR-100 has 1/6 official tests
        most = [clients * (s["per_client"] or entry.samples), entry.domains * (s["per_domain"] or entry.samples)]
        return round(min([pool * share * drawn, *(number for number in most if number)]))

    def clients(self, column: Column) -> int:
        """Returns the number of clients of a column."""
        s = self.settings(column)
        return int(s.get("draw_clients") or s.get("clients") or max(1, DATASETS[s["dataset"]].domains))

    def scaled(self, column: Column, scale: float) -> dict[str, Any]:
        """Returns the changes of a column on a scale below 1.

        Rounds shrink in proportion, at least 10 remain; training samples of a client are at most the paper's mean times
        the square root of the scale, at least two batches. Tests keep all their samples.
        """
        if scale == 1:
            return {}
        s = {**{f.name: f.default for f in fields(Settings)}, **self.settings(column)}
        mean = self.training_samples(column) / self.clients(column)
        changes: dict[str, Any] = {"rounds": max(min(10, s["rounds"]), round(scale * s["rounds"]))}
        samples = max(2 * s["batch_size"], round(scale**0.5 * mean))
        changes |= {"per_client": samples} if samples < mean else {}
        for row in self.rows:  # the only option that counts rounds
            if "warmup" in (values := self.row_values(row, column)):
                changes[f"{row.method}.warmup"] = round(scale * values["warmup"])
        return changes

    def passes(self) -> float:
        """Returns the number of samples on which the whole table trains: epochs x rounds x samples x rows x seeds."""
        total = 0.0
        for column in self.columns:
            s = self.settings(column)
            rows = sum((row.name, column.name) not in self.not_run for row in self.rows)
            share = s.get("join_ratio", 1.0) if not s.get("train_all") else 1.0
            total += rows * share * s["rounds"] * s.get("local_epochs", 1) * self.training_samples(column)
        return total * len(self.seeds)

    def select(self, rows: str | None, columns: str | None) -> Recipe:
        """Returns the recipe with the named rows and columns, separated by commas."""
        chosen_rows = _chosen("row", rows, {row.name: row for row in self.rows})
        chosen_columns = _chosen("column", columns, {column.name: column for column in self.columns})
        return replace(self, rows=tuple(chosen_rows), columns=tuple(chosen_columns))

    def errors(self) -> list[str]:
        """Returns a line for each unknown name, and for each value that cannot be used."""
        errors = [] if self.quantity in QUANTITIES else [f"quantity: must be one of {', '.join(QUANTITIES)}"]
        errors += [f"subject: no row {self.subject!r}"] * (bool(self.subject) and self.subject not in self.row_names)
        for column in self.columns:
            settings = self.settings(column)
            where = f"column {column.name}: "
            dataset, model = settings.get("dataset"), settings.get("model")
            errors += [] if dataset in DATASETS else [f"{where}no data set {dataset!r}"]
            errors += [] if model in MODELS else [f"{where}no model {model!r}"]
            for row in self.rows:
                values = self.row_values(row, column)
                options = METHODS[row.method].Options
                names = {f.name for f in fields(options)}
                found = {n: v for n, v in {**settings, **values}.items() if n in SETTINGS}
                place = f"{where}row {row.name}: "
                errors += [f"{place}{unknown(n, names | SETTINGS)}" for n in values if n not in names | SETTINGS]
                errors += [f"{place}{unknown(n, SETTINGS)}" for n in settings if n not in SETTINGS]
                invalid: list[str] = []
                convert(Settings, found, invalid)
                convert(options, {n: v for n, v in values.items() if n in names}, invalid)
                errors += [f"{place}{line}" for line in invalid]
                find_protocol(str(found["protocol"]))
        return list(dict.fromkeys(errors))

    @property
    def row_names(self) -> list[str]:
        """Names of the rows."""
        return [row.name for row in self.rows]


def recipe_names(folder: Path = FOLDER) -> list[str]:
    """Returns the names of all recipes of the package."""
    files = [file for file in folder.glob("*/*.toml") if file.stem != PAPER]
    return sorted((f"{file.parent.name}/{file.stem}" for file in files), key=_natural)


def load_recipe(name: str) -> Recipe:
    """Loads a recipe of the package, or of your own from a TOML file; a ``paper.toml`` beside it is read, too."""
    file = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not file.is_file():
        known = recipe_names()
        tables = [other for other in known if other.startswith(f"{name}/")]
        hint = f"; there is {', '.join(tables)}" if tables else did_you_mean(name, known)
        raise ConfigError(f"no recipe {name!r}{hint}; pfl-fast recipes lists them")
    shared = file.parent / f"{PAPER}.toml"
    paper, table = _read(shared) if shared.is_file() else {}, _read(file)
    recipe = _parse(f"{file.resolve().parent.name}/{file.stem}", paper, table)
    raise_config_errors([f"{file}: {error}" for error in recipe.errors()])
    return recipe


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file ({error})") from None
    raise_config_errors([f"{file}: {unknown(name, sorted(KEYS))}" for name in values if name not in KEYS])
    return values


def _parse(name: str, paper: Layer, table: Layer) -> Recipe:
    both = {**paper, **table}
    columns = tuple(
        Column(key, {n: v for n, v in values.items() if n != "domains"}, tuple(values.get("domains", ())))
        for key, values in table.get("columns", {"all": {}}).items()
    )
    lines = [line.split() for line in table.get("numbers", "").strip().splitlines()]
    grid = [f"{option}={value}" for option, values in table.get("grid", {}).items() for value in values]
    listed = [line[0] for line in lines] + grid
    rows = tuple(_row(row, both) for row in dict.fromkeys([*listed, *table.get("rows", {})]))
    numbers, not_run = _numbers(name, lines, columns)
    subject = both.get("subject", "")
    inherited = "subject" not in table
    return Recipe(
        name=name,
        paper=paper.get("title", name),
        title=table.get("title", ""),
        quantity=table.get("quantity", QUANTITIES[0]),
        protocol=both.get("protocol", Settings.protocol),
        seeds=tuple(both.get("seeds", (0,))),
        subject="" if inherited and subject not in [row.name for row in rows] else subject,
        notes=(*paper.get("notes", ()), *table.get("notes", ())),
        columns=columns,
        rows=rows,
        numbers=numbers,
        not_run=not_run,
        layers=(paper, table),
    )


def _row(name: str, table: Layer) -> RecipeRow:
    """Returns the row ``name``: one of ``rows``, ``option=value`` of the table's method, or a method."""
    own = dict(table.get("rows", {}).get(name, {}))
    method = str(own.pop("method", table.get("method", "")))
    label = str(own.pop("label", name))
    if name not in table.get("rows", {}):
        option, equals, value = name.partition("=")
        if equals:
            own = {option: value}
        else:
            method, label = name, METHODS[name].title if name in METHODS else name
    if method not in METHODS:
        raise ConfigError(f"row {name!r}: no method {method!r}{did_you_mean(method, METHODS)}")
    return RecipeRow(name, label, method, own)


def _numbers(
    name: str, lines: Iterable[list[str]], columns: tuple[Column, ...]
) -> tuple[dict[tuple[str, str, str], Expected], frozenset[tuple[str, str]]]:
    places = [(column.name, domain) for column in columns for domain in column.domains or ("",)]
    numbers, not_run = {}, set()
    for row, *words in lines:
        if len(words) != len(places):
            raise ConfigError(f"{name}: row {row!r} has {len(words)} numbers for {len(places)} columns and domains")
        for (column, domain), word in zip(places, words, strict=True):
            mean, _, deviation = word.partition("±")
            if word == "x":
                not_run.add((row, column))
            elif word != "-":
                try:
                    numbers[row, column, domain] = Expected(float(mean), float(deviation) if deviation else None)
                except ValueError:
                    raise ConfigError(f"{name}: row {row!r}: {word!r} is not a number such as 98.81±0.01") from None
    return numbers, frozenset(not_run)


def _chosen(what: str, text: str | None, known: Mapping[str, Any]) -> list[Any]:
    names = [name.strip() for name in text.split(",")] if text else list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{what}s: no {what} {name!r}{hint or '; there is ' + ', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _last(name: str, *layers: Layer) -> Any:
    return next((layer[name] for layer in layers if name in layer), None)


def _natural(name: str) -> tuple[str, int, str]:
    """Sorts ``table10`` behind ``table2``."""
    paper, _, table = name.partition("/")
    digits = "".join(c for c in table.partition("-")[0] if c.isdecimal())
    return paper, int(digits) if digits and table.startswith("table") else 1000, table
