"""Experiments with a few hundred parameters and at most 160 samples, for tests."""

import itertools
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.data.synthetic import synthetic
from pfl_fast.experiment import Experiment
from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed

CLASSES = 3
# FedIOS: five features are too few for a subspace per client and a generic one, so clients share subspaces.
# Other methods: fewer epochs and samples, for speed.
METHOD_SETTINGS = {
    "fedios": {"rank": 1, "overflow": "cycle"},
    "fedala": {"start_epochs": 2},
    "fedavg-ft": {"fine_tuning_epochs": 2},
    "fedbabu": {"fine_tuning_epochs": 2},
    "fedrep": {"personal_epochs": 2},
    "pfedme": {"k": 2},
    "pfedvem": {"head_epochs": 2, "draws": 2},
}
DEVICE = "cpu"  # default of experiments; tests/methods/conftest.py changes it
RAGGED = (11, 4, 7, 3, 9)  # last of the batches of 4: 3 samples, 4, 3, 3 (the only batch), 1


def partition_of(sizes, tests=3, validation=0):
    """Partition by training ``sizes``, with ``tests`` test and ``validation`` validation samples per client."""
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
    """Linear layer and ReLU, then a linear head."""
    with torch_seed(1):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU())
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def with_batch_norm(inputs=6, width=5):
    """Like :func:`plain`, with BatchNorm before the ReLU."""
    with torch_seed(2):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU())
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def with_dropout(inputs=6, width=5):
    """Like :func:`plain`, with dropout of inputs and features."""
    with torch_seed(3):
        extractor = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5))
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def convolutional(channels=2, size=4):
    """Convolution and ReLU, then a linear head, for images."""
    with torch_seed(4):
        extractor = nn.Sequential(nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.Flatten())
        width = 3 * (size - 2) ** 2
        return Backbone(extractor, nn.Linear(width, CLASSES), width)


def experiment(method, sizes=RAGGED, model=None, dataset=None, tests=3, validation=0, **values):
    """Experiment on :func:`features` by default: two rounds with batches of 4, in float64."""
    partition = partition_of(sizes, tests, validation)
    count = sum(len(i) for split in (partition.train, partition.test, partition.validation) for i in split)
    values = {**METHOD_SETTINGS.get(method, {}), **values}
    values = {
        "rounds": 2,
        "batch_size": 4,
        "lr": 0.1,
        "dtype": "float64",
        "executor": "sequential",
        "device": DEVICE,
        **values,
    }
    return Experiment(method, dataset=dataset or features(count), model=model or plain(), partition=partition, **values)


def synthetic_images():
    """Data set of 160 synthetic images in 4 classes."""
    return synthetic(160, (1, 4, 4), 4, seed=3)


def image_inputs(norm=False):
    """Data set, model and partition of :func:`image_experiment`: six clients, one with less than a batch."""
    with torch_seed(0):
        layers = [nn.Flatten(), nn.Linear(16, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(8, 4))
    return {"dataset": synthetic_images(), "model": model, "partition": partition_of((23, 10, 4, 20, 17, 11))}


def image_experiment(method="fedcp", *, norm=False, **settings):
    """Experiment on synthetic images: three rounds with batches of 5."""
    values = {"rounds": 3, "executor": "sequential", "lr": 0.1, "batch_size": 5, "log": lambda _: None, **settings}
    return Experiment(method, **{"head": "4" if norm else "3", **image_inputs(norm), **values})


def resume_image_experiment(folder, *, norm=False, log=lambda _: None, **changes):
    """Resumes an :func:`image_experiment` from its run folder."""
    return Experiment.resume(folder, log=log, **image_inputs(norm), **changes)


@contextmanager
def trained(method, **values):
    """Runs all rounds of an experiment, yields the experiment and closes it."""
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
    """Copies on the CPU of the tensors of the server and of all clients, by name."""
    run = running.round
    found = {f"server {name}": tensor.cpu().clone() for name, tensor in run.state.server.items()}
    for client in range(running.data.clients):
        view = run.client_tensors(client)
        found.update({f"client {client} {name}": tensor.cpu().clone() for name, tensor in view.items()})
    return found


def untimed_records(running):
    """Records of the rounds without their timings."""
    timed = ("seconds", "seconds_by_part", "samples_per_second")
    return [{name: value for name, value in record.items() if name not in timed} for record in running.records]


def differences(mine, theirs, tolerance):
    """Largest difference of each tensor that differs by more than ``tolerance``, by name."""
    assert mine.keys() == theirs.keys()
    found = {}
    for name, value in mine.items():
        other = theirs[name]
        if not torch.allclose(value.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
            found[name] = float((value.double() - other.double()).abs().max())
    return found


def assert_same_records(mine, theirs, tolerance):
    """Asserts equal names, and values equal up to ``tolerance``."""
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, float):
                assert abs(value - other[name]) <= tolerance * max(1.0, abs(value)), (name, value, other[name])
            else:
                assert value == other[name], name
