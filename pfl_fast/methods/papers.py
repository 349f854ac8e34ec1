"""Settings that a paper uses for every method of its tables, by data set.

Settings of local training are defaults of every method on the data set: those of the method's own paper if it uses the
data set, else those of the first paper that does. ``--preset paper`` adds the rest of an experiment: sizes of the data,
rounds, clients, model, protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """Settings of a paper's tables.

    Attributes:
        training: settings of local training, by data set.
        experiment: further settings of ``--preset paper``, for any data set.
        experiments: the same for one data set, on top of ``experiment``.
        lr: learning rates by model, ``""`` for other models; empty: those of the method.
    """

    training: Mapping[str, Values] = field(default_factory=dict)
    experiment: Values = field(default_factory=dict)
    experiments: Mapping[str, Values] = field(default_factory=dict)
    lr: Mapping[str, float] = field(default_factory=dict)

    @property
    def datasets(self) -> set[str]:
        """Names of the paper's data sets."""
        return {*self.training, *self.experiments}


_FEDPICK_SGD = {"lr": 0.01, "momentum": 0.5, "batch_size": 64, "local_epochs": 1}
_FEDPICK_TABLE = {"protocol": "fedpick", "eval_at": "after_agg"}
FEDPICK = Paper(
    training={
        "digits5": _FEDPICK_SGD,
        "office-caltech10": _FEDPICK_SGD,
        "domainnet": _FEDPICK_SGD,
    },
    experiment={**_FEDPICK_SGD, "rounds": 300, "join_ratio": 1.0},
    experiments={
        "digits5": {**_FEDPICK_TABLE, "per_domain": 1000},
        "office-caltech10": {**_FEDPICK_TABLE, "per_domain": 125},
        "domainnet": {**_FEDPICK_TABLE, "per_domain": 500},
    },
)
FEDCP = Paper(
    experiment={"rounds": 2000, "clients": 20, "join_ratio": 1.0, "batch_size": 10, "local_epochs": 1},
    experiments={name: {"protocol": "fedcp"} for name in ("mnist", "cifar10", "cifar100", "tiny", "agnews")},
)
FEDAFK = Paper(
    experiment={**FEDCP.experiment, "rounds": 1000, "eval_at": "after_local"},
    experiments={
        "mnist": {"protocol": "fedafk"},
        "cifar10": {"protocol": "fedafk"},
        "cifar100": {"protocol": "fedafk", "model": "resnet18"},
    },
)
# Batch sizes are from the public code whose settings the paper follows (FedBN, pFedVEM), and so are the sizes per
# domain: 5 % of DomainNet's smallest domain are 105 samples.
FEDIOS = Paper(
    training={
        "office-caltech10": {"momentum": 0.9, "batch_size": 32, "local_epochs": 5},
        "domainnet": {"momentum": 0.9, "weight_decay": 1e-4, "batch_size": 32, "local_epochs": 5},
        "digits5": {"momentum": 0.9, "batch_size": 32, "local_epochs": 1},
        "cifar100-coarse": {"momentum": 0.9, "batch_size": 50, "local_epochs": 2},
    },
    experiment={"join_ratio": 1.0, "train_all": True, "eval_at": "both"},
    experiments={
        "office-caltech10": {"protocol": "fedios", "rounds": 120, "model": "resnet18", "per_domain": 62},
        "domainnet": {"protocol": "fedios", "rounds": 200, "model": "resnet18", "per_domain": 105},
        "digits5": {"protocol": "fedios", "rounds": 50, "image_size": 28, "per_domain": 743},
        "cifar100-coarse": {"protocol": "fedios", "rounds": 100, "clients": 5},
    },
    lr={"resnet18": 0.1, "": 0.01},
)  # fmt: skip
_PARTIALFED_SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 64}
PARTIALFED = Paper(
    training={"office-home": _PARTIALFED_SGD},
    experiment={
        **_PARTIALFED_SGD,
        "rounds": 100,
        "local_epochs": 1,
        "join_ratio": 1.0,
        "finetune_epochs": 5,
        "model_options": ("pretrained=True",),
    },
    experiments={"office-home": {"protocol": "partialfed"}},
)
# The paper whose settings are the defaults on a data set.
FIRST: Mapping[str, Paper] = {
    name: paper for paper in (FEDAFK, FEDIOS, PARTIALFED, FEDCP, FEDPICK) for name in paper.datasets
}


def paper_for(own: Paper | None, dataset: str) -> Paper | None:
    """Returns the paper whose settings a method takes on a data set.

    Args:
        own: the method's own paper, or None for a baseline.
        dataset: name of the data set.
    """
    return own if own is not None and dataset in own.datasets else FIRST.get(dataset)


def training(own: Paper | None, model: str, dataset: str) -> dict[str, Any]:
    """Returns the settings of local training and the sizes of the data, by the paper of the data set."""
    paper = paper_for(own, dataset)
    if paper is None or dataset not in paper.training:
        return {}
    lr = {"lr": paper.lr.get(model, paper.lr[""])} if paper.lr else {}
    # FedPick's encoder ends before the linear layers of the digits CNN, for all methods of its table.
    cut = {"model_options": ("cut=conv",)} if paper is FEDPICK and model == "digits-cnn" else {}
    return {**lr, **paper.training[dataset], **cut}


def experiment(own: Paper | None, dataset: str) -> dict[str, Any]:
    """Returns the further settings of ``--preset paper``; empty if no paper uses the data set."""
    paper = paper_for(own, dataset) or own
    return {} if paper is None else {**paper.experiment, **paper.experiments.get(dataset, {})}
