"""The server of the yardstick, with timed rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import label_binarize
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bench.yardstick.fedavg import FedAvg

TEST_BATCH = 100


class Server:
    """Trains, averages, sends and evaluates.

    Args:
        clients: clients with their initial values.
        train: training batches of each client, which can be iterated over repeatedly.
        test: test batches of each client, likewise.
        samples: number of training samples of each client, its weight in the average.
        classes: number of classes.
        lr: learning rate.
        momentum: SGD momentum.
    """

    def __init__(
        self,
        clients: Sequence[FedAvg],
        train: Sequence[Iterable],
        test: Sequence[Iterable],
        samples: Sequence[int],
        classes: int,
        lr: float,
        momentum: float = 0.0,
    ) -> None:
        self.clients, self.samples, self.classes = clients, samples, classes
        self.train_batches, self.test_batches = [Timed(batches) for batches in train], test
        self.lr, self.momentum = lr, momentum
        self.averages = [value.clone() for value in clients[0].upload()]

    def round(self) -> dict:
        """Runs one round and returns accuracy, AUC and seconds per step of the round."""
        begin = perf_counter()
        self.train()
        trained = perf_counter()
        self.aggregate()
        averaged = perf_counter()
        self.send()
        sent = perf_counter()
        scores = self.evaluate()
        tested = perf_counter()
        data = sum(batches.take_seconds() for batches in self.train_batches)
        parts = {
            "data": data,
            "local": trained - begin - data,
            "aggregate": averaged - trained,
            "distribute": sent - averaged,
            "test_aggregated": tested - sent,
        }
        return {**scores, "seconds_by_part": parts}

    def train(self) -> None:
        for client, batches in zip(self.clients, self.train_batches, strict=True):
            client.fit(batches, self.lr, self.momentum)

    def aggregate(self) -> None:
        for average in self.averages:
            average.zero_()
        for client, samples in zip(self.clients, self.samples, strict=True):
            weight = samples / sum(self.samples)
            for average, value in zip(self.averages, client.upload(), strict=True):
                average += value * weight

    def send(self) -> None:
        for client in self.clients:
            client.receive(self.averages)

    def evaluate(self) -> dict[str, float]:
        """Returns accuracy over all test samples and the average AUC of clients weighted by their test samples."""
        tested = [self.test(client, batches) for client, batches in zip(self.clients, self.test_batches, strict=True)]
        total = sum(samples for samples, _, _ in tested)
        return {
            "accuracy": sum(correct for _, correct, _ in tested) / total,
            "auc": sum(samples * auc for samples, _, auc in tested) / total,
        }

    def test(self, client: FedAvg, batches: Iterable) -> tuple[int, int, float]:
        """Returns the number of samples, the number of correct predictions and the AUC."""
        scores, labels, correct = [], [], 0
        client.eval()
        with torch.no_grad():
            for x, y in batches:
                logits = client(x)
                correct += (logits.argmax(dim=1) == y).sum().item()
                scores.append(F.softmax(logits, dim=1).numpy())
                labels.append(label_binarize(y.numpy(), classes=np.arange(self.classes)))
        expected, given = np.concatenate(labels), np.concatenate(scores)
        return len(given), correct, float(roc_auc_score(expected, given, average="micro"))


class Timed:
    """Batches, with the time spent on loading them."""

    def __init__(self, batches: Iterable) -> None:
        self.batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator:
        batches = iter(self.batches)
        while True:
            begin = perf_counter()
            batch = next(batches, None)
            self.seconds += perf_counter() - begin
            if batch is None:
                return
            yield batch

    def take_seconds(self) -> float:
        """Returns the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def loaders(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    batch_size: int,
    loader: type[DataLoader] = DataLoader,
) -> tuple[DataLoader, DataLoader]:
    """Returns a client's training and test loaders, of a class with DataLoader's arguments."""
    return loader(TensorDataset(*train), batch_size, shuffle=True), loader(TensorDataset(*test), TEST_BATCH)
