"""Small runs to test with: two seconds of data, a model of a few hundred numbers."""

from itertools import pairwise

import numpy as np
from torch import nn

from pfl_fast.data.partition import Partition
from pfl_fast.data.synthetic import synthetic
from pfl_fast.experiment import Experiment
from pfl_fast.randomness import torch_seed


def samples(count=160, classes=4, shape=(1, 4, 4)):
    return synthetic(count, shape, classes, seed=3)


def ragged(sizes, tests=3):
    """Clients with these numbers of training samples."""
    ends = np.cumsum([0, *sizes])
    train = tuple(np.arange(a, b) for a, b in pairwise(ends))
    test = tuple(np.arange(ends[-1] + i * tests, ends[-1] + (i + 1) * tests) for i in range(len(sizes)))
    return Partition("by hand", {}, train, test, tuple(np.zeros(0, dtype=np.int64) for _ in sizes))


def objects(norm=False, sizes=(23, 10, 4, 20, 17, 11)):
    """Six uneven clients, one of them with less than a batch, and a model for them."""
    with torch_seed(0):
        layers = [nn.Flatten(), nn.Linear(16, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(8, 4))
    return {"dataset": samples(), "model": model, "partition": ragged(sizes)}


def small(method="fedcp", *, norm=False, **settings):
    """An experiment with those."""
    values = {"rounds": 3, "executor": "sequential", "lr": 0.1, "batch_size": 5, "report": lambda _: None, **settings}
    return Experiment(method, **{"head": "4" if norm else "3", **objects(norm), **values})


def resumed(folder, *, norm=False, report=lambda _: None, **changes):
    return Experiment.resume(folder, report=report, **objects(norm), **changes)


def everything(experiment):
    """All tensors of a run, by name."""
    run = experiment.round
    state = {f"server/{name}": t.clone() for name, t in run.state.server.items()}
    for client in range(experiment.data.clients):
        state.update({f"{client}/{name}": t.clone() for name, t in run.client_tensors(client).items()})
    return state


def numbers(experiment):
    """All records without what a clock says."""
    timed = ("seconds", "samples_per_second")
    return [{n: v for n, v in record.items() if not n.startswith(timed)} for record in experiment.records]
