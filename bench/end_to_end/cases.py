"""Measured cases: methods on data of the papers' shapes, with the papers' models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfl_fast import Experiment
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.load import load
from pfl_fast.data.partition import Partition, PartitionSpec, make_partition

BETA, TESTS_PER_SAMPLE = 0.1, 1 / 3  # the ratio of a whole client's samples, 75 to 25
QUICK = 200  # maximum number of training samples per client
BRIEF = 500  # the same, of cases besides the first two
QUICK_LR = 0.02  # for the CNN: four times the papers', so that both sides learn within a few rounds
STAND_IN = {"mnist": 70_000, "cifar10": 60_000}  # sizes of the real data sets
ROUNDS = 1000  # more than any run needs


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        method: name of the method.
        dataset: name of the data set; generated in its shape if it is not found.
        goal: target speed as a multiple of the yardstick's.
        avx2_goal: target without AVX-512; None for the same.
        model: name of the model.
        model_options: options of the model.
        clients: number of clients; all take part in every round.
        batch_size: training batch size.
        most: maximum number of training samples per client; None for all.
        lr: learning rate; None for the method's default.
        variant: end of the name, of a second case of the same method and data.
    """

    method: str
    dataset: str
    goal: float = 1.0
    avx2_goal: float | None = None
    model: str = "cnn"
    model_options: tuple[str, ...] = ()
    clients: int = 20
    batch_size: int = 10
    most: int | None = None
    lr: float | None = None
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.method}-{self.dataset}{self.variant}"

    def quick(self) -> Case:
        """Returns the case with few samples per client."""
        return replace(self, most=min(self.most or QUICK, QUICK), lr=QUICK_LR if self.model == "cnn" else self.lr)

    def brief(self) -> Case:
        """Returns the case with at most 500 samples per client, the first two cases as they are."""
        return self if self.name in FIRST else replace(self, most=min(self.most or BRIEF, BRIEF))


# FedPick: 4096 features, with the numbers of clients and samples of DomainNet.
PICK = {"model": "mlp", "model_options": ("hidden=[4096]",), "clients": 6, "batch_size": 64, "most": 500}
CASES = {
    case.name: case
    for case in (
        Case("fedcp", "mnist", goal=4.5, avx2_goal=4.0),
        Case("fedavg", "mnist", goal=3.8, avx2_goal=3.0),
        Case("fedcp", "cifar10"),
        Case("fedavg", "cifar10"),
        Case("fedper", "mnist"),
        Case("fedafk", "mnist"),
        Case("fedios", "mnist"),
        Case("fedcp", "mnist", goal=4.0, variant="-few", most=QUICK),
        Case("fedpick", "mnist", goal=2.5, **PICK),
    )
}
FIRST = ("fedcp-mnist", "fedavg-mnist")  # their operators are counted, and one worker is compared with two


def dataset_of(case: Case, folder: Path | None) -> Dataset:
    return load(
        case.dataset, folder=folder, download=False, stand_in_samples=STAND_IN[case.dataset], log=lambda _: None
    )


def experiment_of(case: Case, folder: Path | None = None, **settings: Any) -> Experiment:
    """Returns the library's experiment; like the yardstick it evaluates clients once per round and nothing else."""
    dataset = dataset_of(case, folder)
    tests = {"eval_at": "after_agg", "eval_global": False}
    values: dict[str, Any] = {**tests, "rounds": ROUNDS, "log": lambda _: None, **settings}
    if case.lr is not None:
        values["lr"] = case.lr
    return Experiment(
        case.method,
        dataset=dataset,
        partition=partition_of(case, dataset),
        model=case.model,
        model_options=case.model_options,
        batch_size=case.batch_size,
        **values,
    )


def partition_of(case: Case, dataset: Dataset) -> Partition:
    whole = make_partition(
        dataset, PartitionSpec("dirichlet", clients=case.clients, beta=BETA, batch_size=case.batch_size)
    )
    if case.most is None:
        return whole
    tests = max(1, round(case.most * TESTS_PER_SAMPLE))
    train, test = tuple(i[: case.most] for i in whole.train), tuple(i[:tests] for i in whole.test)
    return replace(whole, train=train, test=test)
