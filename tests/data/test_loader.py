"""The loader yields what torch's DataLoader yields."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from pfl_fast.data import Loader

X, Y = torch.randn(103, 4, 5), torch.arange(103)
TENSORS = TensorDataset(X, Y)


class Doubled(Dataset):
    """A map-style data set with a transform."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return 2 * X[index], index


def batches(loader, epochs=2):
    torch.manual_seed(3)
    return [batch for _ in range(epochs) for batch in loader], torch.rand(1)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (TENSORS, {"batch_size": 10}),
        (TENSORS, {"batch_size": 10, "shuffle": True}),
        (TENSORS, {"batch_size": 10, "shuffle": True, "drop_last": True}),
        (TENSORS, {"batch_size": 200, "shuffle": True, "drop_last": True}),
        (TENSORS, {"batch_size": 7, "shuffle": True, "seeded": True}),
        (Subset(Subset(TENSORS, range(5, 60)), [3, 1, 4, 15, 9]), {"batch_size": 2, "shuffle": True}),
        (TENSORS, {"batch_size": 10, "sampler": WeightedRandomSampler([1.0] * 103, 20)}),
        (TENSORS, {"batch_size": 10, "collate_fn": len}),
        (TENSORS, {"batch_size": None}),
        (Doubled(), {"batch_size": 4, "shuffle": True}),
    ],
    ids=["ordered", "shuffled", "drop last", "one batch", "generator", "subset", "sampler", "collate", "items", "own"],
)
def test_batches_equal_those_of_dataloader(dataset, options):
    options, found = dict(options), []
    seeded = options.pop("seeded", False)
    for loader in (Loader, DataLoader):
        generator = {"generator": torch.Generator().manual_seed(5)} if seeded else {}
        made = loader(dataset, **options, **generator)
        found.append((len(made), *batches(made)))
    (count, own, noise), (expected_count, expected, expected_noise) = found
    assert count == expected_count
    assert len(own) == len(expected)
    assert torch.equal(noise, expected_noise)  # as many random numbers were drawn
    for one, two in zip(own, expected, strict=True):
        assert type(one) is type(two)
        for a, b in zip(one, two, strict=True) if isinstance(one, list) else [(one, two)]:
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_arrays_are_taken_as_they_are_and_workers_are_not_started():
    loader = Loader((X.numpy(), Y), 50, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert loader.num_workers == 0
    assert torch.equal(torch.cat([x for x, _ in loader]), X)


def test_images_are_normalised():
    images = np.random.default_rng(0).integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
    loader = Loader((images, Y[:30]), 8, shuffle=True, normalise=([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    expected = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    expected = (expected - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    seen = 0
    for x, y in loader:
        torch.testing.assert_close(x, expected[y])
        seen += len(y)
    assert seen == 30


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="uint8 images"):
        Loader((X, Y), 8, normalise=([0.5], [0.5]))
    with pytest.raises(ValueError, match="a number for each of 3 channels"):
        Loader((np.zeros((4, 2, 2, 3), np.uint8), Y[:4]), 8, normalise=([0.5], [0.5]))
    with pytest.raises(TypeError, match="transform of the data set"):
        Loader(Doubled(), 8, normalise=([0.5], [0.5]))


def test_streams_are_read_by_dataloader():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    assert [batch.tolist() for batch in Loader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
