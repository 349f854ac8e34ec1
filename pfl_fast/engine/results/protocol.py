"""Protocols: the rules by which a paper turns the tests of a run into one number.

A protocol has three parts: the evaluation point (which model of a client is tested), the reduction over clients, and
the selection of rounds. :func:`measure` applies a protocol to the tests of a run, which :func:`read_tests` reads.

A run with a final fine-tune is measured after it, whatever the evaluation point: models of earlier rounds are not
what the method delivers.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from sys import intern
from typing import Any

from pfl_fast.errors import ConfigError, did_you_mean

POINTS = {
    "after_agg": "after aggregation",
    "after_local": "after local training",
    "after_finetune": "after the final fine-tune",
    "global": "server's model",
}
REDUCTIONS = {"samples": "by samples", "clients": "by clients", "domains": "by domains"}
SELECTIONS = {
    "best": "best round",
    "last": "last evaluated round",
    "last5": "mean of the last 5 evaluated rounds",
    "best_per_client": "each client's best round",
    "validation": "round with the best validation accuracy",
}


@dataclass(frozen=True)
class Protocol:
    """Rules for the accuracy of a run.

    Attributes:
        name: name of the protocol.
        point: tested model, a key of :data:`POINTS`.
        reduction: over clients, a key of :data:`REDUCTIONS`: ``"samples"`` (correct / all samples), ``"clients"`` (mean
            of the clients' accuracies) or ``"domains"`` (mean of the domains' accuracies; by samples in a domain).
        selection: of rounds, a key of :data:`SELECTIONS`; ties take the earliest round.
    """

    name: str
    point: str
    reduction: str
    selection: str

    def __str__(self) -> str:
        """Returns the three parts in words."""
        return f"{POINTS[self.point]}, {REDUCTIONS[self.reduction]}, {SELECTIONS[self.selection]}"

    def check(self, eval_at: str, validation: bool, domains: bool, finetuned: bool, server: bool = True) -> None:
        """Raises unless a run makes the tests that the protocol needs.

        Args:
            eval_at: setting of the run.
            validation: True if clients hold validation samples.
            domains: True if the data set has domains.
            finetuned: True if the run ends with a final fine-tune.
            server: True if the server's model is tested.
        """
        missing = {
            "methods with a final fine-tune": self.point == "after_finetune" and not finetuned,
            f'eval_at="both" or eval_at="{self.point}"': self.point in ("after_agg", "after_local")
            and eval_at not in ("both", self.point)
            and not finetuned,
            'eval_global=True, eval_at="both" or eval_at="after_agg", and reduction samples': self.point == "global"
            and (not server or eval_at == "after_local" or self.reduction != "samples"),
            "a data set with domains": self.reduction == "domains" and not domains,
            "validation samples (validation=0.2)": self.selection == "validation" and not validation,
        }
        for needed in (name for name, is_missing in missing.items() if is_missing):
            raise ConfigError(f"protocol {self.name} ({self}) needs {needed}")


# Section and table of each paper are in docs/comparison.md.
PROTOCOLS = {
    "default": ("after_agg", "samples", "last5"),
    "fedpick": ("after_agg", "domains", "best_per_client"),
    "fedcp": ("after_agg", "samples", "best"),
    "fedcp-text": ("after_agg", "clients", "best_per_client"),
    "fedafk": ("after_local", "samples", "best"),
    "fedios": ("after_local", "clients", "last5"),
    "partialfed": ("after_finetune", "domains", "last"),
}


def find_protocol(name: str, eval_at: str = "both") -> Protocol:
    """Returns a protocol by its name, or from three words ``"POINT,REDUCTION,SELECTION"``.

    The default protocol tests after local training if a run has no other tests (``eval_at``).

    >>> print(find_protocol("fedios"))
    after local training, by clients, mean of the last 5 evaluated rounds
    """
    if name in PROTOCOLS:
        found = Protocol(name, *PROTOCOLS[name])
        only_local = name == "default" and eval_at == "after_local"
        return replace(found, point="after_local") if only_local else found
    words = [word.strip() for word in name.split(",")]
    parts = (POINTS, REDUCTIONS, SELECTIONS)
    if len(words) != len(parts):
        raise ConfigError(
            f"protocol: no protocol {name!r}{did_you_mean(name, PROTOCOLS)}; there is {', '.join(PROTOCOLS)}, "
            "or POINT,REDUCTION,SELECTION such as after_agg,clients,best"
        )
    for word, known in zip(words, parts, strict=True):
        if word not in known:
            raise ConfigError(f"protocol: {word!r} in {name!r} must be one of {', '.join(known)}")
    return Protocol(",".join(words), *words)


@dataclass(frozen=True)
class Measurement:
    """Accuracy of a run by a protocol.

    Attributes:
        accuracy: the number of the protocol.
        round: selected round; None if several rounds count.
        domains: accuracy of each domain, in the selected rounds; empty without domains.
        after_finetune: True if measured after the final fine-tune.
        curve: pairs of round and reduced accuracy, of every evaluated round.
    """

    accuracy: float
    round: int | None
    domains: dict[str, float]
    after_finetune: bool
    curve: list[tuple[int, float]]

    def entry(self, protocol: Protocol) -> dict[str, Any]:
        """Returns the entry ``protocol`` of ``summary.json``."""
        measured = asdict(self)
        del measured["curve"]
        return {**asdict(protocol), **measured}


@dataclass(frozen=True, slots=True)
class ClientAccuracy:
    """Accuracy of one client in the test of one round."""

    client: str
    domain: str
    samples: int
    accuracy: float


def measure(protocol: Protocol, rows: Iterable[Mapping[str, str]], rounds: int) -> Measurement | None:
    """Applies a protocol to the tests of a run.

    Args:
        protocol: the protocol.
        rows: rows of ``clients.csv``, with text values, or what :func:`read_tests` yields.
        rounds: number of communication rounds; the final fine-tune is recorded as the round after them.

    Returns:
        The accuracy, or None without tests.
    """
    tests, validated = _tests_by_round(rows, protocol.point, rounds)
    finetuned = any(number > rounds for number in tests)
    if protocol.point == "after_finetune" and not finetuned:
        return None
    candidates = {number: found for number, found in tests.items() if number > rounds or not finetuned}
    at: list[int] = []
    if protocol.selection == "best_per_client":
        by_client = _by(lambda test: test.client, [test for found in candidates.values() for test in found])
        selected = [[max(found, key=lambda test: test.accuracy) for found in by_client.values()]]
    else:
        guide = validated if protocol.selection == "validation" else candidates
        at = _select(protocol, {number: guide[number] for number in candidates if number in guide})
        selected = [candidates[number] for number in at]
    if not any(selected):
        return None
    domains = [_domains(found) for found in selected]
    return Measurement(
        accuracy=fmean(_reduce(found, protocol.reduction) for found in selected),
        round=at[0] if len(at) == 1 else None,
        domains={name: fmean(d[name] for d in domains if name in d) for each in domains for name in each},
        after_finetune=finetuned,
        curve=[(number, _reduce(found, protocol.reduction)) for number, found in tests.items()],
    )


def read_tests(folder: Path, protocol: Protocol) -> Iterator[dict[str, str]]:
    """Yields the tests in a run folder that a protocol needs: rows of ``clients.csv``, or tests of the server's model.

    The server's model, tested on the samples of all clients, is a single client of :func:`measure`.
    """
    if protocol.point != "global":
        yield from read_client_rows(folder / "clients.csv")
        return
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        accuracy = record.get("test_accuracy_global")
        if accuracy is not None:
            about = {"round": str(record["round"]), "client": "server", "domain": "", "test_samples": "1"}
            yield {**about, "test_accuracy_after_agg": repr(accuracy)}


def read_client_rows(file: Path) -> Iterator[dict[str, str]]:
    """Yields the rows of a ``clients.csv``."""
    with file.open(newline="") as handle:
        yield from csv.DictReader(handle)


def _tests_by_round(
    rows: Iterable[Mapping[str, str]], point: str, rounds: int
) -> list[dict[int, list[ClientAccuracy]]]:
    """Returns the tests on test and on validation samples, by round.

    Tests of the final fine-tune have the columns of those after local training.
    """
    splits = ("test", "validation")
    result: list[dict[int, list[ClientAccuracy]]] = [{} for _ in splits]
    for row in rows:
        number = int(row["round"])
        when = "after_local" if point == "after_local" or number > rounds else "after_agg"
        for split, found in zip(splits, result, strict=True):
            accuracy = row.get(f"{split}_accuracy_{when}")
            if accuracy and number > 0:
                client, domain = intern(row["client"]), intern(row["domain"])
                test = ClientAccuracy(client, domain, int(row[f"{split}_samples"]), float(accuracy))
                found.setdefault(number, []).append(test)
    return result


def _select(protocol: Protocol, tests: Mapping[int, Sequence[ClientAccuracy]]) -> list[int]:
    numbers = list(tests)
    if protocol.selection in ("last", "last5"):
        return numbers[-1:] if protocol.selection == "last" else numbers[-5:]
    return sorted(numbers, key=lambda number: (-_reduce(tests[number], protocol.reduction), number))[:1]


def _reduce(tests: Sequence[ClientAccuracy], reduction: str) -> float:
    if len(tests) == 1:
        return tests[0].accuracy
    if reduction == "samples":
        return sum(round(test.accuracy * test.samples) for test in tests) / sum(test.samples for test in tests)
    return fmean([test.accuracy for test in tests] if reduction == "clients" else _domains(tests).values())


def _domains(tests: Sequence[ClientAccuracy]) -> dict[str, float]:
    groups = _by(lambda test: test.domain, [test for test in tests if test.domain])
    return {name: _reduce(found, "samples") for name, found in groups.items()}


def _by(group: Callable[[ClientAccuracy], str], tests: Iterable[ClientAccuracy]) -> dict[str, list[ClientAccuracy]]:
    result: dict[str, list[ClientAccuracy]] = {}
    for test in tests:
        result.setdefault(group(test), []).append(test)
    return result
