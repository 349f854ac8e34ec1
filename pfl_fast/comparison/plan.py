"""The runs of a comparison: methods x grids x seeds, with the same data and the same settings for every method."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from pfl_fast import assembly, atomic
from pfl_fast.config import NOT_IN_RESULTS, Settings
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import Partition, make_partition
from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.engine.results.protocol import Protocol, find_protocol
from pfl_fast.errors import ConfigError, raise_config_errors
from pfl_fast.methods import Method
from pfl_fast.options import convert, plain, unknown

SETTINGS = {f.name for f in fields(Settings)}
# Data and protocol, which all runs share; a batch size only sets the default of min_samples.
SHARED = {"dataset", "image_size", "samples", "protocol", *(f.name for f in fields(PartitionSpec))} - {"batch_size"}


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        label: name of the row.
        method: name of the method.
        values: settings and options of this row only; ``"method.name"`` is accepted for its method.
        folder: beginning of the names of its run folders.
    """

    label: str
    method: str
    values: Mapping[str, Any]
    folder: str


@dataclass(frozen=True)
class Request:
    """A comparison as requested on the command line, or the column of a recipe.

    Attributes:
        methods: names of the methods.
        seeds: seeds of the runs.
        values: settings, and options for the methods that have them; ``"method.name"`` is for one method.
        grid: lists of values, by name of a setting or option as in ``values``.
        preset: preset of the methods that have it.
        partition_per_seed: draw a partition for each seed; otherwise all runs have the partition of the first seed.
        rows: the rows of the table; empty: methods x grid. Rows may be added when the comparison is repeated.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[str]] = field(default_factory=dict)
    preset: str | None = None
    partition_per_seed: bool = False
    rows: tuple[Variant, ...] = ()

    def variants(self) -> list[Variant]:
        """Returns the rows: those given, or all methods at all points of the grid that they can use."""
        if self.rows:
            return list(self.rows)
        found = []
        for name, point in ((method, point) for method in self.methods for point in _points(self, method)):
            chosen = [f"{key.rpartition('.')[2]}={value}" for key, value in point.items()]
            method = assembly.find_method(name)
            folder = "-".join([assembly.method_name(method), *(text.replace("/", "_") for text in chosen)])
            found.append(Variant(" ".join([method.title, *chosen]), name, point, folder))
        return found

    def document(self) -> dict[str, Any]:
        """Returns all values that determine the results, for TOML."""
        kept = {n: v for n, v in self.values.items() if n not in NOT_IN_RESULTS or n == "rounds"}
        settings = convert(Settings, {n: v for n, v in kept.items() if n in SETTINGS}, [])
        texts = {name: str(settings.get(name, value)) for name, value in kept.items()}
        about = {"rows": {row.folder: _row_text(row) for row in self.rows}} if self.rows else {}
        return {
            **(about or {"methods": list(self.methods)}),
            "seeds": list(self.seeds),
            "preset": self.preset or "none",
            "partition_per_seed": self.partition_per_seed,
            "values": dict(sorted(texts.items())),
            "grid": {name: list(values) for name, values in sorted(self.grid.items())},
        }

    def refuse_other(self, file: Path) -> None:
        """Raises if ``file`` holds another comparison, naming every difference; writes the file if it is missing."""
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(file, tomli_w.dumps(self.document()))
            return
        earlier, document = tomllib.loads(file.read_text()), self.document()
        rows = {**earlier.get("rows", {}), **document.get("rows", {})}
        before, now = _flat(earlier), _flat(document)
        shared = [n for n in {**before, **now} if not n.startswith("rows.") or (n in before and n in now)]
        names = [name for name in shared if before.get(name) != now.get(name)]
        if names:
            shown = "\n".join(f"  {n}: was {before.get(n, 'not given')}, is {now.get(n, 'not given')}" for n in names)
            raise ConfigError(f"{file.parent} holds another comparison:\n{shown}\nchoose another --out")
        if len(rows) > len(earlier.get("rows", {})):
            atomic.write_text(file, tomli_w.dumps({**document, "rows": rows}))


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        label: method and grid values, such as ``"FedCP lam=5"``; the row of the table.
        seed: seed of the run.
        folder: run folder.
        resolved: settings and options.
        method: name of the method, or ``"file.py:Class"``.
    """

    label: str
    seed: int
    folder: Path
    resolved: assembly.Resolved
    method: str

    @property
    def protocol(self) -> Protocol:
        """Rules for the accuracy of the run."""
        return find_protocol(self.resolved.settings.protocol, self.resolved.settings.eval_at)


@dataclass(frozen=True)
class ComparisonPlan:
    """All runs of a comparison, those of the first seed first.

    Attributes:
        runs: the runs.
        dataset: data set of all runs.
        partitions: partition of each seed.
        partition: description of the partitions.
        protocol: rules for the accuracy of the runs.
        notes: settings that all methods take from the defaults of one.
    """

    runs: list[PlannedRun]
    dataset: Dataset
    partitions: dict[int, Partition]
    partition: str
    protocol: Protocol
    notes: list[str]


def make_plan(request: Request, out: Path, log: Callable[[str], None]) -> ComparisonPlan:
    """Checks a request, loads its data set, writes its partitions to ``out`` and returns its runs."""
    raise_config_errors(_errors(request))
    common, _ = _common_settings(request, str(request.values.get("model", "cnn")))
    settings = _base_settings(request, common)
    protocol = find_protocol(settings.protocol, settings.eval_at)
    dataset = assembly.load_named(settings, log)
    model = assembly.model_name(settings.model, dataset)
    common, notes = _common_settings(request, model)
    settings = _base_settings(request, common)
    protocol.check(
        settings.eval_at,
        validation=settings.validation > 0,
        domains=dataset.domain is not None,
        finetuned=True,
        server=settings.eval_global,
    )
    drawn = {seed: seed if request.partition_per_seed else request.seeds[0] for seed in request.seeds}
    folders = {seed: (out / f"partition-seed{drawn[seed]}").resolve() for seed in request.seeds}
    runs = []
    for seed, row in itertools.product(request.seeds, request.variants()):
        shared = {**common, "model": model, "seed": seed, "partition": str(folders[seed])}
        resolved = _resolve(request, row.method, row.values, shared)
        runs.append(PlannedRun(row.label, seed, out / "runs" / f"{row.folder}-seed{seed}", resolved, row.method))
    made = {seed: make_partition(dataset, replace(settings, seed=drawn[seed])) for seed in request.seeds}
    hashes = {partition.hash for partition in made.values()}
    if len(hashes) < len(set(drawn.values())):
        raise ConfigError("--partition-per-seed: this partition does not depend on the seed")
    request.refuse_other(out / "comparison.toml")
    for seed, partition in made.items():
        _save(partition, folders[seed])
    which = "one for each seed" if len(hashes) > 1 else f"one for all seeds, hash {''.join(hashes)[:12]}"
    about = f"{partition.rule}, {partition.clients} clients, {which}"
    return ComparisonPlan(runs, dataset, made, about, protocol, notes)


def _errors(request: Request) -> list[str]:
    """Returns a line for each value that no method of the comparison can use."""
    options = {name: {f.name for f in fields(assembly.find_method(name).Options)} for name in request.methods}
    everything = SETTINGS.union(*options.values())
    errors = []
    for key in [*request.values, *request.grid]:
        method, dot, name = key.rpartition(".")
        if dot and method not in options:
            errors.append(f"{key}: {method!r} is not one of the methods {', '.join(request.methods)}")
        elif name not in (SETTINGS | options[method] if dot else everything):
            errors.append(f"{unknown(name, sorted(options[method] if dot else everything))} ({', '.join(options)})")
        elif name == "seed":
            errors.append(f"{key}: the seeds of a comparison are given by --seeds")
        elif name in SHARED and (dot or key in request.grid):
            errors.append(f"{key}: all runs of a comparison share it; start a comparison for each value")
    errors += [f"{key}: given as a grid and as a value" for key in request.grid if key in request.values]
    if request.preset and not any(_preset(request, name) for name in request.methods):
        problem = assembly.no_preset(assembly.find_method(request.methods[0]), request.preset, _dataset(request))
        errors.append(
            problem if request.preset == "paper" else f"preset: none of {', '.join(options)} has {request.preset!r}"
        )
    bare = {key: key.rpartition(".")[2] for key in [*request.values, *request.grid] if "." in key}
    errors += [f"{key}: {name} is in the grid already" for key, name in bare.items() if name in request.grid]
    errors += [f"{key}: a value is given twice" for key, found in request.grid.items() if len(set(found)) < len(found)]
    return errors


def _points(request: Request, method: str) -> list[dict[str, str]]:
    """Returns the grid points of a method: all combinations of the values that it can use."""
    usable = SETTINGS | {f.name for f in fields(assembly.find_method(method).Options)}
    names = [n for n in request.grid if n in usable or n.startswith(f"{method}.")]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(request.grid[n] for n in names))]


def _common_settings(request: Request, model: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings that defaults or preset of a method ask for, which all methods take, and notes about them.

    Defaults of the data set are no wishes, unless they are from the method's own paper. Raises if two methods ask for
    different values.
    """
    dataset = _dataset(request)
    generic = Method.defaults(model, dataset)
    wishes: dict[str, dict[str, list[str]]] = {}
    values: dict[str, Any] = {}
    for method in request.methods:
        own = {**assembly.find_method(method).defaults(model, dataset), **(_preset(request, method) or {})}
        taken = {*request.values, *request.grid}
        for name in (n for n in {**generic, **own} if n in SETTINGS):
            value = own.get(name, getattr(Settings, name))
            free = name not in taken and f"{method}.{name}" not in taken
            if free and (_in_own_paper(method, dataset) or value != generic.get(name, getattr(Settings, name))):
                title = assembly.find_method(method).title
                wishes.setdefault(name, {}).setdefault(str(plain(value)), []).append(title)
                values[name] = value
    told = {n: "; ".join(f"{v} ({', '.join(who)})" for v, who in found.items()) for n, found in wishes.items()}
    raise_config_errors(
        [
            f"{name}: the methods have different defaults, {text}; choose one with --{name.replace('_', '-')}, or one "
            "for each method with --set METHOD.NAME=VALUE"
            for name, text in told.items()
            if len(wishes[name]) > 1
        ]
    )
    return values, [f"{name} {text}" for name, text in told.items()]


def _dataset(request: Request) -> str:
    return str(request.values.get("dataset", Settings.dataset))


def _in_own_paper(method: str, dataset: str) -> bool:
    """Returns whether the method's own paper has settings for the data set."""
    paper = assembly.find_method(method).own_paper
    return paper is not None and dataset in paper.datasets


def _preset(request: Request, method: str) -> Mapping[str, Any] | None:
    """Returns the values of the preset for a method, or None.

    Baselines take the paper's experiment from the methods whose own paper has the data set, if there are any.
    """
    dataset = _dataset(request)
    found = assembly.find_method(method)
    baseline = found.own_paper is None and (request.preset or "") not in found.presets
    if request.preset == "paper" and baseline and any(_in_own_paper(name, dataset) for name in request.methods):
        return None
    return assembly.find_method(method).preset(request.preset or "", dataset)


def _resolve(request: Request, method: str, point: Mapping[str, Any], common: Mapping[str, Any]) -> assembly.Resolved:
    """Returns settings and options of one run; common settings give way to grid and values."""
    usable = SETTINGS | {f.name for f in fields(assembly.find_method(method).Options)}
    given = {**request.values, **point}
    scoped = {n.partition(".")[2]: v for n, v in given.items() if n.startswith(f"{method}.")}
    chosen = {name: value for name, value in given.items() if name in usable}
    preset = None if _preset(request, method) is None else request.preset
    data = {name: common[name] for name in ("seed", "partition") if name in common}
    model = {} if {"model"} & {*point, *scoped} else {"model": common["model"]} if "model" in common else {}
    values = {**common, **chosen, **model, **scoped, **data}
    return assembly.resolve(assembly.find_method(method), values, str(values.get("model", "cnn")), preset)


def _base_settings(request: Request, common: Mapping[str, Any]) -> Settings:
    """Returns the settings of all methods, without grids and values of single methods."""
    errors: list[str] = []
    values = {**common, **{name: value for name, value in request.values.items() if name in SETTINGS}}
    settings = convert(Settings, values, errors)
    raise_config_errors(errors)
    return Settings(**settings)


def _save(partition: Partition, folder: Path) -> None:
    """Writes a partition, or checks that it is the one in ``folder``."""
    if not (folder / "partition.json").exists():
        partition.save(folder)
    elif (saved := Partition.load(folder)).hash != partition.hash:
        source = f"{partition.settings['dataset']}, {partition.settings['source']}"
        raise ConfigError(
            f"{folder}: hash {saved.hash}, but the data now gives {partition.hash} ({source}); choose another --out"
        )


def _row_text(row: Variant) -> str:
    return " ".join([row.method, *(f"{name}={plain(value)}" for name, value in sorted(row.values.items()))])


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat.update({f"{name}.{n}": v for n, v in value.items()} if isinstance(value, dict) else {name: value})
    return flat


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses ``--seeds``: numbers, separated by commas.

    >>> seeds_of("0,1,2")
    (0, 1, 2)
    """
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"seeds: must be integers separated by commas, got {text!r}") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds: must be different numbers from 0, got {text!r}")
    return seeds
