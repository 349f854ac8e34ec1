"""Small federations to test the engine with: a few hundred parameters, a few dozen samples."""

import itertools
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.experiment import Experiment
from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed

CLASSES = 3
# Five features are too few for five clients' subspaces and a generic one: some share theirs. The others
# are slow.
FITS = {
    "fedios": {"rank": 1, "overflow": "cycle"},
    "fedala": {"start_epochs": 2},
    "fedavg-ft": {"fine_tuning_epochs": 2},
    "fedbabu": {"fine_tuning_epochs": 2},
    "fedrep": {"personal_epochs": 2},
    "pfedme": {"k": 2},
    "pfedvem": {"head_epochs": 2, "samples": 2},
}
RAGGED = (11, 4, 7, 3, 9)  # with batches of 4: a last batch of 3, none, of 3, less than a batch, of 1


def partition_of(sizes, tests=3, validation=0):
    """Clients with these numbers of training samples, and as many test and validation samples each as asked for."""
    sizes = list(sizes)
    counts = [*sizes, *[tests] * len(sizes), *[validation] * len(sizes)]
    ends = np.cumsum([0, *counts])
    pieces = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    n = len(sizes)
    return Partition("by hand", {}, tuple(pieces[:n]), tuple(pieces[n : 2 * n]), tuple(pieces[2 * n :]))


def images(count, shape=(4, 4, 2), seed=0):
    """Random uint8 images with random labels."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 256, (count, *shape), dtype=np.uint8)
    return _dataset(x, draw, mean=(0.5,) * shape[-1], std=(0.25,) * shape[-1])


def features(count, width=6, seed=0):
    """Random float features with random labels."""
    draw = np.random.default_rng(seed)
    return _dataset(draw.normal(size=(count, width)).astype(np.float32), draw)


def _dataset(x, draw, **fields):
    y = draw.integers(0, CLASSES, len(x)).astype(np.int64)
    classes = tuple(f"class {k}" for k in range(CLASSES))
    return Dataset("toy", x, y, classes, np.zeros(len(y), dtype=bool), source="synthetic", **fields)


def plain(inputs=6, width=5):
    """A linear layer and ReLU under a linear head."""
    with torch_seed(1):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU())
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def with_batch_norm(inputs=6, width=5):
    """BatchNorm between the layers."""
    with torch_seed(2):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU())
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def with_dropout(inputs=6, width=5):
    """Dropout of half of the features, twice."""
    with torch_seed(3):
        extractor = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5))
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def convolutional(channels=2, size=4):
    """A convolution, for images."""
    with torch_seed(4):
        extractor = nn.Sequential(nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.Flatten())
        width = 3 * (size - 2) ** 2
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def experiment(method, sizes=RAGGED, model=None, dataset=None, tests=3, validation=0, **values):
    """An experiment on features, unless a data set is given; two rounds of batches of 4, in float64."""
    partition = partition_of(sizes, tests, validation)
    count = sum(len(i) for split in (partition.train, partition.test, partition.validation) for i in split)
    values = {**FITS.get(method, {}), **values}
    values = {"rounds": 2, "batch_size": 4, "lr": 0.1, "dtype": "float64", "executor": "sequential", **values}
    return Experiment(method, dataset=dataset or features(count), model=model or plain(), partition=partition, **values)


@contextmanager
def ran(method, **values):
    """An experiment after all its rounds."""
    running = experiment(method, **values)
    try:
        running.run()
        yield running
    finally:
        running.close()


def train_locally(running, client, view, phases=None):
    """Returns the tensors of a client after the local training of round 1, from the tensors ``view``."""
    worker, settings = running.round.executor.workers[0], running.round.step_settings(1)
    phases = phases or running.method.phases(1)
    tensors, write_buffers = worker.runner.load([view], phases, settings)
    worker.trainer.train([client], tensors, phases, settings, write_buffers)
    return tensors


def state_of(running):
    """Every tensor of the server and of every client, by name."""
    run = running.round
    found = {f"server {name}": tensor.clone() for name, tensor in run.state.server.items()}
    for client in range(running.data.clients):
        view = run.client_tensors(client)
        found.update({f"client {client} {name}": tensor.clone() for name, tensor in view.items()})
    return found


TIMES = ("seconds", "seconds_by_part", "samples_per_second")


def numbers_of(running):
    """The records without what depends on the clock."""
    return [{name: value for name, value in record.items() if name not in TIMES} for record in running.records]


def differences(mine, theirs, tolerance):
    """Names of tensors that differ by more than ``tolerance``, with by how much."""
    assert mine.keys() == theirs.keys()
    found = {}
    for name, value in mine.items():
        other = theirs[name]
        if not torch.allclose(value.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
            found[name] = float((value.double() - other.double()).abs().max())
    return found


def assert_same_records(mine, theirs, tolerance):
    """The same names, and numbers that are equal up to rounding."""
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, float):
                assert abs(value - other[name]) <= tolerance * max(1.0, abs(value)), (name, value, other[name])
            else:
                assert value == other[name], name
