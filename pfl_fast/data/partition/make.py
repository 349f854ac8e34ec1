"""From a data set and the name of a rule to a partition."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import legacy, rules, splits
from pfl_fast.data.partition.record import Partition
from pfl_fast.data.partition.rules import Lots
from pfl_fast.errors import ConfigError, DataError, did_you_mean

KINDS = ("iid", "dirichlet", "pathological", "domain", "domain-split", "superclass", "natural")
SHARED_TESTS = ("domain", "domain-split", "superclass")  # the test part is set aside first, then given to all it fits


@dataclass(frozen=True)
class Request:
    """What :func:`make_partition` was asked for; goes into the partition's settings."""

    kind: str
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


def make_partition(
    dataset: Dataset,
    kind: str,
    *,
    clients: int | None = None,
    seed: int = 0,
    beta: float = 0.1,
    classes_per_client: int = 2,
    per_client: int | None = None,
    draw: int | None = None,
    test_fraction: float = 0.25,
    validation: float = 0.0,
    test: str | None = None,
    legacy: bool = False,
    batch_size: int = 10,
    least: int | None = None,
    cuts: str = "equal",
) -> Partition:
    """Shares a data set out over clients.

    Args:
        dataset: what to share out.
        kind: ``"iid"``, ``"dirichlet"``, ``"pathological"`` (few classes per client), ``"domain"`` (one per client),
            ``"domain-split"`` (several clients per domain), ``"superclass"`` (one CIFAR-100 subclass of each superclass
            per client) or ``"natural"`` (as the data was imported).
        clients: how many; by default 20, as many as there are domains, or as many as were imported.
        seed: everything random follows from it.
        beta: of ``dirichlet``: small is skewed.
        classes_per_client: of ``pathological``.
        per_client: keep only a client's first so many training samples.
        draw: keep only so many clients, drawn at random.
        test_fraction: of a client's samples (of a domain's, of a subclass's) that are for testing.
        validation: fraction of the training samples set aside for validation.
        test: ``"split"`` pools the official parts and cuts by ``test_fraction``; ``"official"`` trains on the official
            training part only: clients share out the test samples of their classes in proportion, or are tested on all
            those of their domain or their subclasses. By default official for domains, superclass and natural.
        legacy: the draws of published code (``dirichlet`` and ``pathological``; its seed is 1).
        batch_size: a client should fill one batch of tests and three of training; see ``least``.
        least: fewest samples per client; by default ``min(batch_size / test_fraction, samples / clients / 2)``.
        cuts: of ``superclass``: ``"equal"`` or ``"random"``.

    Returns:
        The partition. No sample is in two of its lists, except that clients of one domain or subclass share tests.
    """
    if kind not in KINDS:
        raise ConfigError(f"no partition {kind!r} (there is {', '.join(KINDS)}){did_you_mean(kind, KINDS)}")
    where = _test_mode(dataset, kind, test)
    count = _client_count(dataset, kind, clients)
    samples = len(_pool(dataset, where))
    formula = int(min(batch_size / (test_fraction or 1.0), samples / max(1, count) / 2))
    floor = 0 if legacy else 2 if where == "split" and test_fraction else 1
    request = Request(
        kind, count, seed, beta, classes_per_client, per_client, test_fraction, validation, where, legacy, batch_size,
        max(floor, formula if least is None else least), cuts,
    )  # fmt: skip
    _check(request, dataset, samples)
    train, tests = _shared_tests(dataset, request) if kind in SHARED_TESTS else _own_tests(dataset, request)
    train, valid = splits.validated(train, validation, seed)
    train = [lot[:per_client] for lot in train]
    _refuse_empty(request, train, tests)
    settings = {"dataset": dataset.name, "source": dataset.source, "samples": len(dataset), **asdict(request)}
    result = Partition(kind, settings, *(tuple(lots) for lots in (train, tests, valid)))
    return result if draw is None else result.draw(draw, seed)


def _test_mode(dataset: Dataset, kind: str, test: str | None) -> str:
    if test not in (None, "split", "official"):
        raise ConfigError(
            f"test must be 'split' or 'official', not {test!r}{did_you_mean(test, ('split', 'official'))}"
        )
    if kind == "natural":
        return test or "official"
    if test == "official" and not dataset.test.any():
        raise DataError(f"{dataset.name} has no official test part; use test='split'")
    return test or ("official" if kind in SHARED_TESTS and dataset.test.any() else "split")


def _client_count(dataset: Dataset, kind: str, clients: int | None) -> int:
    if kind in ("domain", "domain-split") and dataset.domain is None:
        raise DataError(f"{dataset.name} has no domains, which partition {kind!r} needs; use 'dirichlet', say")
    if kind == "natural" and dataset.natural is None:
        raise DataError(f"{dataset.name} was not imported with clients of its own; use 'dirichlet', say")
    there = {"domain": len(dataset.domains), "natural": len(dataset.natural or ())}.get(kind)
    if there is not None and clients not in (None, there):
        raise DataError(
            f"partition {kind!r} of {dataset.name} has {there} clients, not {clients}; to get fewer, set draw"
        )
    if kind == "domain-split" and clients is not None and (clients < 1 or clients % len(dataset.domains)):
        raise DataError(f"domain-split needs a multiple of the {len(dataset.domains)} domains, not {clients} clients")
    default = 2 * len(dataset.domains) if kind == "domain-split" else 20
    return clients if clients is not None else there if there is not None else default


def _check(request: Request, dataset: Dataset, samples: int) -> None:
    def expect(condition: bool, name: str, what: str) -> None:
        if not condition:
            raise ConfigError(f"{name} must be {what}, not {getattr(request, name)!r}")

    expect(request.clients >= 1, "clients", "at least 1")
    expect(0 < request.beta < float("inf"), "beta", "positive")
    expect(request.classes_per_client >= 1, "classes_per_client", "at least 1")
    expect(request.per_client is None or request.per_client >= 1, "per_client", "at least 1")
    expect(0 <= request.test_fraction < 1, "test_fraction", "in [0, 1)")
    expect(0 <= request.validation < 1, "validation", "in [0, 1)")
    expect(request.batch_size >= 1, "batch_size", "at least 1")
    expect(request.cuts in ("equal", "random"), "cuts", "'equal' or 'random'")
    if request.legacy and (request.kind not in ("dirichlet", "pathological") or request.test != "split"):
        raise ConfigError("legacy is defined for partitions 'dirichlet' and 'pathological' with test='split' only")
    if request.kind == "superclass" and not {"fine", "coarse"} <= set(dataset.labels):
        raise DataError(f"{dataset.name} has no labellings 'fine' and 'coarse', which 'superclass' needs; use cifar100")
    if request.kind != "natural":
        rules.demand(request.clients, max(1, request.least), samples)


def _shared_tests(dataset: Dataset, request: Request) -> tuple[Lots, Lots]:
    groups = dataset.labels["fine"] if request.kind == "superclass" else dataset.domain
    assert groups is not None
    official = request.test == "official"
    mask = dataset.test if official else splits.held_out(groups, request.test_fraction, request.seed)
    pool, tests = np.flatnonzero(~mask), np.flatnonzero(mask)
    if request.kind == "superclass":
        fine, coarse = dataset.labels["fine"], dataset.labels["coarse"]
        lots, owned = rules.superclass(fine[pool], coarse[pool], request.clients, request.seed, request.cuts)
    else:
        domains = len(dataset.domains)
        each = request.clients // domains
        whole = request.kind == "domain"
        lots = rules.by_domain(groups[pool], domains) if whole else rules.split_domains(
            groups[pool], domains, each, request.seed
        )  # fmt: skip
        owned = [{client // each} for client in range(request.clients)]
    return [pool[lot] for lot in lots], [tests[np.isin(groups[tests], list(own))] for own in owned]


def _own_tests(dataset: Dataset, request: Request) -> tuple[Lots, Lots]:
    official = request.test == "official"
    if dataset.natural is not None and request.kind == "natural":
        if official:
            return [train for train, _ in dataset.natural], [test for _, test in dataset.natural]
        return splits.split([np.concatenate(both) for both in dataset.natural], request.test_fraction, request.seed)
    pool = _pool(dataset, request.test)
    if request.legacy:
        state = np.random.RandomState(request.seed)
        train, tests = legacy.split(_lots(dataset.y[pool], request, state), request.test_fraction, state)
        return [pool[lot] for lot in train], [pool[lot] for lot in tests]
    lots = [pool[lot] for lot in _lots(dataset.y[pool], request, None)]
    if official:
        return lots, splits.proportional(dataset.y, lots, np.flatnonzero(dataset.test), request.seed)
    return splits.split(lots, request.test_fraction, request.seed)


def _pool(dataset: Dataset, test: str) -> NDArray[np.int64]:
    """The samples that are shared out: all, unless test samples are set aside."""
    aside = test == "official" or not dataset.pools_test
    return np.flatnonzero(~dataset.test) if aside else np.arange(len(dataset))


def _lots(y: NDArray[np.int64], request: Request, state: np.random.RandomState | None) -> Lots:
    draws: dict[str, Any] = {"least": request.least}
    module: Any = rules if state is None else legacy
    draws |= {"seed": request.seed} if state is None else {"state": state}
    if request.kind == "iid":
        return rules.iid(len(y), request.clients, request.seed)
    if request.kind == "dirichlet":
        return list(module.dirichlet(y, request.clients, request.beta, **draws))
    return list(module.pathological(y, request.clients, request.classes_per_client, **draws))


def _refuse_empty(request: Request, train: Lots, tests: Lots) -> None:
    for what, lots, wanted in (("training", train, True), ("test", tests, request.test_fraction > 0)):
        empty = [client for client, lot in enumerate(lots) if len(lot) == 0]
        if empty and wanted:
            raise DataError(
                f"partition {request.kind!r}: client {empty[0]} of {request.clients} has no {what} samples "
                f"({len(empty)} such clients); take fewer clients, or another seed"
            )
