"""Default options and settings of the baselines: the papers' values, by model, data set and preset."""

from dataclasses import fields

import pytest

from pfl_fast.assembly import resolve
from pfl_fast.config import Settings
from pfl_fast.methods import METHODS

# method, user's values, preset, expected values
VALUES = [
    ("fedavg-ft", {}, None, {"fine_tuning_epochs": 5}),
    ("fedprox", {}, None, {"mu": 0.01}),
    ("scaffold", {}, None, {"server_lr": 1}),
    ("feddyn", {}, None, {"alpha": 0.01, "compat": "paper"}),
    ("feddyn", {"model": "resnet18"}, None, {"alpha": 0.1}),
    ("moon", {}, None, {"mu": 1, "tau": 0.5, "projection": False}),
    ("moon", {}, "paper", {"mu": 5, "tau": 0.5, "projection": True}),
    ("fedproto", {}, None, {"lam": 1, "inference": "prototype", "compat": "paper"}),
    ("per-fedavg", {}, None, {"alpha": None, "hessian": "first-order", "compat": "paper"}),
    ("pfedme", {}, None, {"lam": 15, "k": 5, "personal_lr": 0.01, "server_step": 1, "compat": "paper"}),
    ("fedamp", {}, None, {"lam": 1, "alpha_k": 1, "sigma": None}),
    ("ditto", {}, None, {"lam": 1, "personal_epochs": 1}),
    ("fedrep", {}, None, {"personal_epochs": 4}),
    ("fedfomo", {}, None, {"m": 5, "validation": 0.2}),
    ("fedphp", {}, None, {"mu": 0.9, "lam": 0.05, "inference": "inherited"}),
    ("apfl", {}, None, {"alpha": 0.5, "adaptive": True, "compat": "paper"}),
    ("fedala", {}, None, {"layer_idx": 1, "rand_percent": 80, "eta": 1, "threshold": 0.1, "start_epochs": 20}),
    ("lg-fedavg", {}, None, {"warmup": 0}),
    ("lg-fedavg", {"dataset": "domainnet"}, None, {"warmup": 20}),
    ("lg-fedavg", {"dataset": "office-caltech10"}, None, {"warmup": 20}),
    ("fedbabu", {}, None, {"fine_tuning_epochs": 5, "tune": "full"}),
    ("pfedvem", {}, None, {"draws": 5, "head_epochs": 20, "train_all": True, "broadcast_to_all": True}),
    ("pfedvem", {}, "official", {"head_lr": 0.001, "lr": 0.01, "local_epochs": 5, "batch_size": 50}),
    *[(method, {"model": "resnet18"}, None, {"lr": 0.1}) for method in ("ditto", "fedamp", "scaffold", "pfedme")],
]


@pytest.mark.parametrize(("method", "given", "preset", "expected"), VALUES)
def test_default_values(method, given, preset, expected):
    resolved = resolve(METHODS[method], given, given.get("model", "cnn"), preset)
    found = {**vars(resolved.settings), **vars(resolved.options)}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("method", METHODS)
def test_options_are_not_called_like_settings(method):
    """Values are sorted by name: pFedMe's beta was the partition's, and pFedVEM's samples those of the data set."""
    assert not {f.name for f in fields(METHODS[method].Options)} & {f.name for f in fields(Settings)}
