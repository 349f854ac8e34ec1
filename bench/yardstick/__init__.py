"""The yardstick: a plain PyTorch trainer in the usual style of research code on personalized federated learning.

Every client has a deep copy of the model, a ``TensorDataset`` and a ``DataLoader``. Clients train one after another,
with eager losses and a new ``torch.optim.SGD`` in each round. The server averages parameter by parameter, client
by client, and sends clones. Every round ends with an evaluation of every client, with scikit-learn's AUC.

The comparison is fair: nothing is slower than in such code. Torch uses all threads; a frozen extractor runs without
gradients; the average does not clone its inputs; projections use low-rank bases; no round makes an extra pass over
the training samples; evaluation uses batches of 100, where such code often uses the training batch size. Samples are
normalised to floats before the first round. As usual in such code, only parameters are exchanged, no buffers. All
clients take part in every round.

The yardstick does not use the library, and its formulas come from the papers, so it is a second implementation too.
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
