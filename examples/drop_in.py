"""A plain PyTorch trainer before and after three changed lines: same losses, less time.

    python examples/drop_in.py

The trainer is bench/yardstick: FedAvg with DataLoader, torch's layers and torch.optim.SGD, on generated images of
MNIST's shape. Plain and changed rounds take turns, so that other load affects both alike. --threads 1 is what several
processes side by side would use.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is no package of the installation

from bench import machine
from bench.yardstick import FedAvg, Server, loaders
from pfl_fast.data import Loader
from pfl_fast.nn import accelerate
from pfl_fast.optim import SGD


class FastFedAvg(FedAvg):  # noqa: D101
    optimizer = SGD  # the first changed line


def extractor():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
    )


def federation(fast, samples, clients=4, classes=10):
    """Returns a server and its clients, whose samples are mostly of a few classes."""
    torch.manual_seed(0)
    client, loader = (FastFedAvg, Loader) if fast else (FedAvg, DataLoader)  # the second
    labels = torch.randint(classes, (clients * samples,)).sort().values
    images = (torch.rand(classes, 1, 28, 28)[labels] + torch.rand(len(labels), 1, 28, 28)) - 1
    features, head = extractor(), nn.Linear(512, classes)
    if fast:
        accelerate(features)  # the third
    halves = [torch.randperm(len(labels)).split(samples)[i].split(samples * 3 // 4) for i in range(clients)]
    pairs = [loaders(*((images[half], labels[half]) for half in split), 10, loader) for split in halves]
    members = [client(features, head, 512) for _ in range(clients)]
    return Server(members, *zip(*pairs, strict=True), [len(train) for train, _ in halves], classes, lr=0.05)


def losses(server):
    """Returns each client's loss on all its test samples."""
    with torch.no_grad():
        pairs = zip(server.clients, server.test_batches, strict=True)
        return [sum(client.loss(x, y).item() * len(y) for x, y in batches) for client, batches in pairs]


def timed_round(server, number):
    torch.manual_seed(number)  # the order of the samples
    begin, work = time.perf_counter(), time.process_time()
    server.round()
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    return seconds, work, sum(losses(server))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=1000, help="training and test samples of each of 4 clients")
    parser.add_argument("--threads", type=int, help="threads of torch; default: all cores")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    servers = {"plain": federation(False, options.samples), "changed": federation(True, options.samples)}
    results = {name: [] for name in servers}
    for number in range(options.rounds + 1):
        for name, server in servers.items():
            results[name].append(timed_round(server, number))
    for name, rounds in results.items():
        seconds, work = (median(values[1:]) for values in list(zip(*rounds, strict=True))[:2])
        shown = ", ".join(f"{loss:.2f}" for *_, loss in rounds)
        print(f"{name:8} {seconds:.2f} s per round, {work:.2f} s of processor time (medians); losses {shown}")
    pairs = list(zip(results["plain"][1:], results["changed"][1:], strict=True))
    ratios, work = ([plain[i] / changed[i] for plain, changed in pairs] for i in (0, 1))
    spread = f"rounds: {min(ratios):.2f} to {max(ratios):.2f}; processor time: {median(work):.2f}"
    print(f"the changed trainer is {median(ratios):.2f} times as fast ({spread})")
    print(machine.heading())


if __name__ == "__main__":
    main()
