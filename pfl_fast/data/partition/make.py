"""Makes a partition from a data set and its options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import legacy, rules, splits
from pfl_fast.data.partition.record import Partition
from pfl_fast.data.partition.rules import ClientIndices
from pfl_fast.data.partition.split_file import is_split_file, partition_from_file
from pfl_fast.data.partition_spec import PartitionSpec, default_test_fraction
from pfl_fast.errors import ConfigError, DataError, did_you_mean, raise_config_errors
from pfl_fast.options import convert

RULES = ("iid", "dirichlet", "pathological", "domain", "domain-split", "superclass", "natural")
BY_DOMAIN = ("domain", "domain-split")
SHARED_TESTS = (*BY_DOMAIN, "superclass")  # clients of one domain or subclass share its test samples
UNCHANGED = ("beta", "per_client", "per_domain", "validation", "batch_size")
LATER = ("per_domain", "test_by_class")  # options that enter the hash only if they are used
LEGACY_SEED = 1  # seed of the published partitions


@dataclass(frozen=True)
class ResolvedSpec:
    """Options of a partition with every default filled in.

    They are saved with the partition and enter its hash: renaming a field changes the hash of every partition.
    """

    rule: str
    clients: int
    seed: int
    beta: float
    classes_per_client: int
    per_client: int | None
    test_fraction: float
    validation: float
    test: str
    legacy: bool
    batch_size: int
    least: int
    cuts: str
    per_domain: int | None
    test_by_class: bool

    def options(self) -> dict[str, Any]:
        """Returns the options by the names under which they are saved."""
        return {name: value for name, value in asdict(self).items() if value or name not in LATER}


def can_be_made(name: str) -> bool:
    """Returns whether a setting names a rule or the folder of a saved partition."""
    return name in (*RULES, "auto") or (Path(name) / "partition.json").is_file()


def make_partition(dataset: Dataset, spec: PartitionSpec) -> Partition:
    """Distributes the samples of a data set over clients, or loads a saved partition.

    A ``.csv`` or ``.json`` file lists the samples of each client, see :mod:`pfl_fast.data.partition.split_file`.

    Rules: ``"iid"``, ``"dirichlet"``, ``"pathological"`` (few classes per client), ``"domain"`` (one client per
    domain), ``"domain-split"`` (several clients per domain), ``"superclass"`` (one CIFAR-100 subclass of each
    superclass per client), ``"natural"`` (the clients of imported data).

    With ``test="split"``, official training and test parts are pooled and ``test_fraction`` of each client's samples is
    held out. With ``test="official"``, clients train on the official training part only; test samples are distributed
    in proportion to the classes of each client, or each client is tested on all test samples of its domain or
    subclasses.

    Args:
        dataset: data set to distribute.
        spec: options of the partition.

    Returns:
        The partition. A sample occurs once, except that clients of one domain or subclass share test samples.
    """
    if (Path(spec.partition) / "partition.json").is_file():
        saved = Partition.load(spec.partition)
        saved.check_fits(dataset)
        return saved
    if is_split_file(spec.partition):
        return partition_from_file(Path(spec.partition), dataset, spec)
    resolved = _resolve(dataset, spec)
    train, tests = _shared_tests(dataset, resolved) if resolved.rule in SHARED_TESTS else _own_tests(dataset, resolved)
    train, valid = splits.split_validation(train, resolved.validation, resolved.seed)
    if resolved.per_client is not None:
        train = splits.limit(train, resolved.per_client, resolved.seed)
    _refuse_empty(resolved, train, tests)
    options = resolved.options()
    options["kind"] = options.pop("rule")  # the name that entered the hash of every partition so far
    settings = {"dataset": dataset.name, "source": dataset.source, "samples": len(dataset), **options}
    names = _client_names(dataset, resolved)
    result = Partition(resolved.rule, settings, tuple(train), tuple(tests), tuple(valid), names)
    return result if spec.draw_clients is None else result.draw(spec.draw_clients, resolved.seed)


def _client_names(dataset: Dataset, spec: ResolvedSpec) -> tuple[str, ...]:
    """Returns the names of the clients, or nothing if they have numbers only."""
    if spec.rule == "domain-split":
        each = spec.clients // len(dataset.domains)
        return tuple(f"{domain} {number}" for domain in dataset.domains for number in range(1, each + 1))
    return {"domain": dataset.domains, "natural": dataset.client_names}.get(spec.rule, ())


def _resolve(dataset: Dataset, spec: PartitionSpec) -> ResolvedSpec:
    _check_ranges(spec)
    entry, rule = DATASETS.get(dataset.name), spec.partition
    if rule == "auto":
        usual = "natural" if dataset.natural else "domain" if dataset.domains else "dirichlet"
        rule = entry.partition if entry and entry.partition and dataset.labels else usual
    if rule not in RULES:
        there = f"there is {', '.join(RULES)}, folders of saved partitions, and .csv and .json files"
        raise ConfigError(f"no partition {rule!r} ({there}){did_you_mean(rule, RULES)}")
    test = _test_mode(dataset, rule, spec.test)
    clients = _client_count(dataset, rule, spec.clients)
    samples = len(_pool(dataset, test))
    held_out = default_test_fraction(rule) if spec.test_fraction is None else spec.test_fraction
    by_class = spec.test_by_class
    if by_class is None:
        by_class = entry is not None and entry.test_by_class and test == "split" and rule in BY_DOMAIN
    default = int(min(spec.batch_size / (held_out or 1.0), samples / max(1, clients) / 2))
    seed = LEGACY_SEED if spec.legacy_partition else spec.seed
    floor = 0 if spec.legacy_partition else 2 if test == "split" and held_out else 1
    resolved = ResolvedSpec(
        rule=rule,
        clients=clients,
        seed=seed if spec.partition_seed is None else spec.partition_seed,
        test=test,
        test_fraction=held_out,
        test_by_class=by_class,
        classes_per_client=spec.classes_per_client or max(2, len(dataset.classes) // 10),
        legacy=spec.legacy_partition,
        least=max(floor, default if spec.min_samples is None else spec.min_samples),
        cuts=spec.superclass_cuts or "equal",
        **{name: getattr(spec, name) for name in UNCHANGED},
    )
    if resolved.legacy and (rule not in ("dirichlet", "pathological") or test != "split"):
        raise ConfigError("legacy_partition: only for partitions 'dirichlet' and 'pathological' with test='split'")
    if resolved.per_domain is not None and rule not in BY_DOMAIN:
        raise ConfigError(f"per_domain: only for partitions {' and '.join(BY_DOMAIN)}, got {rule!r}; use per_client")
    if by_class and (test != "split" or rule not in BY_DOMAIN):
        raise ConfigError(f"test_by_class: only for partitions {' and '.join(BY_DOMAIN)} with test='split'")
    if rule == "superclass" and not {"fine", "coarse"} <= set(dataset.labels):
        raise DataError(f"{dataset.name} has no labellings 'fine' and 'coarse', which 'superclass' needs; use cifar100")
    if rule != "natural":
        rules.check_enough_samples(clients, max(1, resolved.least), samples)
    return resolved


def _check_ranges(spec: PartitionSpec) -> None:
    errors: list[str] = []
    convert(PartitionSpec, {f.name: getattr(spec, f.name) for f in fields(PartitionSpec)}, errors)
    errors += [] if spec.beta else ["beta: must be positive, got 0"]
    errors += [f"{n}: must be below 1, got 1" for n in ("test_fraction", "validation") if getattr(spec, n) == 1]
    raise_config_errors(errors)


def _test_mode(dataset: Dataset, rule: str, test: str | None) -> str:
    if rule == "natural" and (test or any(len(own) for _, own in dataset.natural or ())):
        return test or "official"
    if test == "official" and not dataset.test.any():
        raise DataError(f"{dataset.name} has no official test part; use test='split'")
    return test or ("official" if rule in SHARED_TESTS and dataset.test.any() else "split")


def _client_count(dataset: Dataset, rule: str, clients: int | None) -> int:
    if rule in ("domain", "domain-split") and dataset.domain is None:
        raise DataError(f"{dataset.name} has no domains, which partition {rule!r} needs; use 'dirichlet', for example")
    if rule == "natural" and dataset.natural is None:
        raise DataError(f"{dataset.name} has no clients of its own; use 'dirichlet', for example")
    fixed = {"domain": len(dataset.domains), "natural": len(dataset.natural or ())}.get(rule)
    if fixed is not None and clients not in (None, fixed):
        raise DataError(
            f"partition {rule!r} of {dataset.name} has {fixed} clients, not {clients}; for fewer, set draw_clients"
        )
    if rule == "domain-split" and clients is not None and clients % len(dataset.domains):
        raise DataError(f"domain-split needs a multiple of the {len(dataset.domains)} domains, not {clients} clients")
    default = 2 * len(dataset.domains) if rule == "domain-split" else 20
    return clients if clients is not None else fixed if fixed is not None else default


def _shared_tests(dataset: Dataset, spec: ResolvedSpec) -> tuple[ClientIndices, ClientIndices]:
    groups = dataset.labels["fine"] if spec.rule == "superclass" else dataset.domain
    assert groups is not None
    official = spec.test == "official"
    cells = groups * len(dataset.classes) + dataset.y if spec.test_by_class else groups
    mask = dataset.test if official else splits.test_mask(cells, spec.test_fraction, spec.seed)
    pool, tests = np.flatnonzero(~mask), np.flatnonzero(mask)
    if spec.per_domain is not None:
        pool = splits.limit_groups(pool, groups, spec.per_domain, spec.seed)
    if spec.rule == "superclass":
        fine, coarse = dataset.labels["fine"], dataset.labels["coarse"]
        indices, owned = rules.superclass(fine[pool], coarse[pool], spec.clients, spec.seed, spec.cuts)
    else:
        domains = len(dataset.domains)
        each = spec.clients // domains
        whole = spec.rule == "domain"
        indices = rules.by_domain(groups[pool], domains) if whole else rules.split_domains(
            groups[pool], domains, each, spec.seed
        )  # fmt: skip
        owned = [{client // each} for client in range(spec.clients)]
    return [pool[index] for index in indices], [tests[np.isin(groups[tests], list(own))] for own in owned]


def _own_tests(dataset: Dataset, spec: ResolvedSpec) -> tuple[ClientIndices, ClientIndices]:
    official = spec.test == "official"
    if dataset.natural is not None and spec.rule == "natural":
        if official:
            return [train for train, _ in dataset.natural], [test for _, test in dataset.natural]
        return splits.split([np.concatenate(both) for both in dataset.natural], spec.test_fraction, spec.seed)
    pool = _pool(dataset, spec.test)
    if spec.legacy:
        state = np.random.RandomState(spec.seed)
        train, tests = legacy.split(_client_indices(dataset.y[pool], spec, state), spec.test_fraction, state)
        return [pool[index] for index in train], [pool[index] for index in tests]
    indices = [pool[index] for index in _client_indices(dataset.y[pool], spec, None)]
    if official:
        return indices, splits.proportional(dataset.y, indices, np.flatnonzero(dataset.test), spec.seed)
    return splits.split(indices, spec.test_fraction, spec.seed)


def _pool(dataset: Dataset, test: str) -> NDArray[np.int64]:
    """Returns the samples to distribute: all, or without the official test part."""
    without_test = test == "official" or not dataset.pools_test
    return np.flatnonzero(~dataset.test) if without_test else np.arange(len(dataset))


def _client_indices(y: NDArray[np.int64], spec: ResolvedSpec, state: np.random.RandomState | None) -> ClientIndices:
    draws: dict[str, Any] = {"min_samples": spec.least}
    module: Any = rules if state is None else legacy
    draws |= {"seed": spec.seed} if state is None else {"state": state}
    if spec.rule == "iid":
        return rules.iid(len(y), spec.clients, spec.seed)
    if spec.rule == "dirichlet":
        return list(module.dirichlet(y, spec.clients, spec.beta, **draws))
    return list(module.pathological(y, spec.clients, spec.classes_per_client, **draws))


def _refuse_empty(spec: ResolvedSpec, train: ClientIndices, tests: ClientIndices) -> None:
    for what, indices, wanted in (("training", train, True), ("test", tests, spec.test_fraction > 0)):
        empty = [client for client, index in enumerate(indices) if len(index) == 0]
        if empty and wanted:
            raise DataError(
                f"partition {spec.rule!r}: client {empty[0]} of {spec.clients} has no {what} samples "
                f"({len(empty)} such clients); take fewer clients, or another seed"
            )
