"""Rounds of the threads executor with twice as many workers as cores, for ThreadSanitizer.

``python -m tests.sanitize.threads race`` lets two threads update the same tensors, which must be reported.
"""

from __future__ import annotations

import os
import sys
import threading

import torch

from pfl_fast import ops
from pfl_fast.models.cnn import cnn
from tests.engine import small_experiments as small

METHODS = ["fedcp", "fedios", "fedpick", "fedafk", "fedprox"]  # together they use every operator on floats
IMAGE = (1, 16, 16)


def rounds() -> None:
    """Trains all methods on vectors, and one on images with convolutions."""
    workers = 2 * (os.cpu_count() or 1)
    sizes = tuple(3 + i % 5 for i in range(2 * workers))
    count = sum(sizes) + 3 * len(sizes)
    images = {"dataset": small.images(count, (*IMAGE[1:], IMAGE[0])), "model": cnn(IMAGE, small.CLASSES)}
    for method, values in [*((method, {}) for method in METHODS), ("fedavg", images)]:
        with small.trained(method, executor="threads", workers=workers, sizes=sizes, **values) as running:
            assert len(running.round.executor.workers) == workers


def race() -> None:
    """Updates the same parameters in two threads."""
    params, grads = [torch.zeros(1 << 20)], [torch.ones(1 << 20)]

    def update() -> None:
        for _ in range(20):
            ops.sgd_(params, grads, lr=0.1)

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    assert ops.NATIVE.available, ops.NATIVE.problem
    torch.set_num_threads(1)
    race() if sys.argv[1:] == ["race"] else rounds()
