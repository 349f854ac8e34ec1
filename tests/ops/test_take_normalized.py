"""Tests specific to ``take_normalized``: bitwise equality with the formula, memory format, memory-mapped files."""

import numpy as np
import pytest
import torch

from pfl_fast import ops
from pfl_fast.testing import same_bits
from tests.ops.operators import both_implementations
from tests.ops.take_normalized_entry import image_set

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]


@both_implementations
@pytest.mark.parametrize("channels_last", [True, False])
def test_equals_the_plain_formula_to_the_bit(implementation, channels_last):
    images, index = image_set(50, 32, 32, 3), torch.randint(0, 50, (20,))
    images[0, :, :, 0].view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    expected = ((images[index].float() / 255 - mean) / std).permute(0, 3, 1, 2)
    with ops.use(implementation):
        assert same_bits(ops.take_normalized(images, index, mean, std, channels_last=channels_last), expected)
        assert same_bits(ops.take_normalized(images, index, MEAN, STD, channels_last=channels_last), expected)


@both_implementations
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_round_once(implementation, dtype):
    images, index = image_set(5, 9, 7, 3), torch.tensor([4, 4, 0])
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    mean, std = torch.tensor(MEAN, dtype=wide), torch.tensor(STD, dtype=wide)
    expected = ((images[index].to(wide) / 255 - mean) / std).to(dtype).permute(0, 3, 1, 2)
    with ops.use(implementation):
        assert same_bits(ops.take_normalized(images, index, MEAN, STD, dtype=dtype), expected)


@both_implementations
def test_memory_format(implementation):
    images = image_set(6, 8, 10, 3)
    with ops.use(implementation):
        last = ops.take_normalized(images, torch.tensor([5, 0]), MEAN, STD)
        first = ops.take_normalized(images, torch.tensor([5, 0]), MEAN, STD, channels_last=False)
        stacked = ops.take_normalized(images, torch.tensor([[5, 0], [1, 2]]), MEAN, STD)
    assert last.shape == first.shape == (2, 3, 8, 10)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()
    assert stacked[1].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, first)


def test_images_may_be_memory_mapped(tmp_path):
    file = tmp_path / "images.npy"
    np.save(file, image_set(7, 4, 4, 3).numpy())
    mapped = torch.from_numpy(np.load(file, mmap_mode="c"))
    actual = ops.take_normalized(mapped, torch.tensor([6, 2]), MEAN, STD)
    assert same_bits(actual, ops.take_normalized(image_set(7, 4, 4, 3), torch.tensor([6, 2]), MEAN, STD))


@both_implementations
def test_vmap_over_images(implementation):
    images, index = image_set(3, 6, 4, 4, 3), torch.tensor([[0, 5], [1, 1], [4, 2]])
    with ops.use(implementation):
        actual = torch.vmap(lambda x, i: ops.take_normalized(x, i, MEAN, STD))(images, index)
    for n in range(3):
        assert same_bits(actual[n], ops.take_normalized(images[n], index[n], MEAN, STD))
