"""The yardstick: a plain PyTorch trainer in the prevailing style of research code on personalized federated learning.

Every client has a deep copy of the model, a ``TensorDataset`` and a ``DataLoader``; clients train one after another,
with eager losses and a ``torch.optim.SGD`` made anew in each round; the server averages parameter by parameter, client
by client, and hands out clones; every round ends with a test of every client, AUC by scikit-learn.

It is honest: nothing is slower than in such code. Torch has all its threads; a frozen extractor runs without gradients;
the average takes no clones of what it reads; projections are applied through their low-rank bases; no round has another
pass over the training samples; tests come in batches of 100, where such code often takes the training batch. Samples
are normalised floats before the first round. As usual in such code only parameters are exchanged, no buffers, and here
all clients take part in every round.

It uses nothing of the library, and its formulas are written from the papers: it is a reference as well.
"""

from bench.yardstick.fedafk import FedAFK
from bench.yardstick.fedavg import FedAvg, FedPer
from bench.yardstick.fedcp import FedCP
from bench.yardstick.fedios import FediOS
from bench.yardstick.fedpick import FedPick
from bench.yardstick.server import Server, loaders

CLIENTS = {
    "fedavg": FedAvg,
    "fedper": FedPer,
    "fedcp": FedCP,
    "fedpick": FedPick,
    "fedafk": FedAFK,
    "fedios": FediOS,
}

__all__ = ["CLIENTS", "FedAFK", "FedAvg", "FedCP", "FedPer", "FedPick", "FediOS", "Server", "loaders"]
