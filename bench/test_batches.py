"""One epoch of 20 clients at batch 10, against torch's DataLoader over the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from pfl_fast.data.dataset import Dataset as Samples
from pfl_fast.data.federated import FederatedData
from pfl_fast.data.partition import PartitionSpec, make_partition

SETS = {"20_mnist_clients": (70_000, (28, 28, 1)), "20_cifar_clients": (12_000, (32, 32, 3))}


class PerSample(Dataset):
    """A typical data set: one normalised image and its label per item."""

    def __init__(self, samples: Samples) -> None:
        self.x, self.y = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
        self.mean, self.std = (torch.tensor(value)[:, None, None] for value in (samples.mean, samples.std))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index].permute(2, 0, 1).float().div(255).sub(self.mean).div(self.std), self.y[index]


class Decoded(PerSample):
    """The same, with images normalised beforehand, in four times the memory."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples)
        self.x = self.x.permute(0, 3, 1, 2).float().div(255).sub(self.mean).div(self.std).contiguous()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def count_samples(*loaders) -> int:
    return sum(len(y) for loader in loaders for _, y, *_ in loader)


@pytest.mark.parametrize("name", SETS)
def test_batches(race, name):
    count, shape = SETS[name]
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    y = random.integers(0, 10, count)
    channels = (0.5,) * shape[-1]
    samples = Samples(name, x, y, tuple("0123456789"), np.zeros(count, dtype=bool), channels, channels)
    partition = make_partition(samples, PartitionSpec("dirichlet", clients=20, seed=0))
    data = FederatedData(samples, partition)

    def loaders(dataset):
        return [DataLoader(Subset(dataset, index.tolist()), batch_size=10, shuffle=True) for index in partition.train]

    per_sample, decoded = loaders(PerSample(samples)), loaders(Decoded(samples))
    race(
        {
            "one client after the other": lambda: count_samples(*(data.batches(client, 0, 0) for client in range(20))),
            "stacked": lambda: sum(g.y.numel() for groups in data.stacked_batches(range(20), 0, 0) for g in groups),
            "DataLoader": lambda: count_samples(*per_sample),
            "DataLoader, images normalised beforehand": lambda: count_samples(*decoded),
        },
        goals={"DataLoader": 20.0} if name == "20_mnist_clients" else {},
    )
