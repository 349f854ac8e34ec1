"""A plain PyTorch loop for FedCP, before and after replacing functions by fused operators: same losses, less time.

    python examples/operators.py

The library's trainer is not used. PLAIN holds five functions in plain torch; FUSED replaces them by ``pfl_fast.ops``.
"""

import argparse
import copy
import time
from statistics import median
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops import reference

FEATURES, CLASSES = 512, 10


def plain_route(h, a, norm):
    r, s = torch.relu(norm(a)).unflatten(-1, (2, FEATURES)).softmax(-2).unbind(-2)
    return r * h, s * h


def plain_step(parameters, gradients, lr):
    for p, g in zip(parameters, gradients, strict=True):
        p.data.add_(g, alpha=-lr)


def plain_average(states, weights):
    return {k: sum(w * s[k] for w, s in zip(weights, states, strict=True)) for k in states[0]}


PLAIN = SimpleNamespace(
    batch=lambda images, index: (images[index].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5,
    route=plain_route,
    mmd=lambda x, y: reference.mmd_rbf(x, y, (10.0, 15.0, 20.0, 50.0)),  # as in FedCP's code
    step=plain_step,
    average=plain_average,
)
FUSED = SimpleNamespace(
    batch=lambda images, index: ops.take_normalized(images, index, [0.5], [0.5]),
    route=lambda h, a, norm: ops.cpn_route(h, a, norm.weight, norm.bias),
    mmd=lambda x, y: ops.mmd_rbf(x, y),
    step=lambda parameters, gradients, lr: ops.sgd_(parameters, gradients, lr=lr),
    average=ops.aggregate_state_dicts,
)


def train(functions, images, labels, clients, rounds, batch=10, lr=0.05, lam=1.0):
    """Trains every client with FedCP's local step, averages, and returns the loss of every round."""
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), FEATURES), nn.ReLU())
    policy, norm = nn.Linear(FEATURES, 2 * FEATURES), nn.LayerNorm(2 * FEATURES)
    server = nn.ModuleList([extractor, policy, norm, nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)])
    losses = []
    for _ in range(rounds):
        states, total = [], 0.0
        for samples in clients:
            extract, policy, norm, global_head, head = copy.deepcopy(server)
            frozen = copy.deepcopy(extract).requires_grad_(False)
            parameters = [*extract.parameters(), *policy.parameters(), *norm.parameters(), *head.parameters()]
            context = functional.normalize(head.weight.detach().sum(0), dim=0)
            for index in samples.split(batch):
                x = functions.batch(images, index)
                h = extract(x)
                to_global, to_personal = functions.route(h, policy(context * h), norm)
                logits = global_head(to_global) + head(to_personal)
                loss = functional.cross_entropy(logits, labels[index]) + lam * functions.mmd(h, frozen(x))
                functions.step(parameters, torch.autograd.grad(loss, parameters), lr)
                total += loss.item()
            states.append(nn.ModuleList([extract, policy, norm, global_head, head]).state_dict())
        server.load_state_dict(functions.average(states, torch.full((len(clients),), 1 / len(clients))))
        losses.append(total)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (2000,), generator=generator)
    prototypes = torch.randint(256, (CLASSES, 28, 28, 1), generator=generator)
    noise = torch.randint(256, (2000, 28, 28, 1), generator=generator)
    images = ((prototypes[labels] + 2 * noise) // 3).to(torch.uint8)
    clients = labels.argsort().view(10, 200)  # mostly one class per client
    times, losses = {"plain": [], "fused": []}, {}
    for _ in range(rounds):  # in turn, so that other load affects both alike
        for name, functions in (("plain", PLAIN), ("fused", FUSED)):
            before = time.perf_counter()
            losses[name] = train(functions, images, labels, clients, rounds=2)
            times[name].append(time.perf_counter() - before)
    for name in times:
        print(f"{name}: losses {[round(v, 4) for v in losses[name]]}, {median(times[name]):.2f} s (median)")
    print(f"fused is {median(times['plain']) / median(times['fused']):.2f} times as fast")


if __name__ == "__main__":
    main()
