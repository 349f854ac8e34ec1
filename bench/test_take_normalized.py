"""``take_normalized`` at the papers' batch sizes: MNIST, Tiny-ImageNet, stacked CIFAR clients, evaluation."""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

BATCHES = {
    "10_of_28x28x1": ((10,), (28, 28, 1)),
    "10_of_64x64x3": ((10,), (64, 64, 3)),
    "20x10_of_32x32x3": ((20, 10), (32, 32, 3)),
    "200_of_32x32x3": ((200,), (32, 32, 3)),
}


def by_hand(images, index, mean, std):
    """Common practice after decoding: index, convert to float, normalise, channels_last."""
    x = images[index.flatten()].permute(0, 3, 1, 2).float().div(255).sub(mean[:, None, None]).div(std[:, None, None])
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("batch", BATCHES)
def test_take_normalized(race, batch):
    shape, image = BATCHES[batch]
    images = torch.randint(0, 256, (2000, *image), dtype=torch.uint8)
    index = torch.randint(0, 2000, shape)
    mean, std = torch.full((image[-1],), 0.45), torch.full((image[-1],), 0.2)
    given = (images, index, mean, std)
    pixel = images[:, :1, :1].contiguous()
    compiled = torch.compile(reference.take_normalized)
    race(
        {
            "native": lambda: ops.take_normalized(*given),
            "native, channels first": lambda: ops.take_normalized(*given, channels_last=False),
            "native, images of one pixel": lambda: ops.take_normalized(pixel, *given[1:]),  # the cost of a call
            "indexing, float, normalise": lambda: by_hand(*given),
            "reference": lambda: reference.take_normalized(*given, True, torch.float32),
            "torch.compile of the reference": lambda: compiled(*given, True, torch.float32),
        },
        bytes_moved=5 * index.numel() * images[0].numel(),
        goals={"indexing, float, normalise": 5.0},
    )
