"""Data sets from arrays, tensors and samples."""

import numpy as np
import pytest
import torch

from pfl_fast import Dataset, Partition
from pfl_fast.data.own_data import as_dataset, description
from pfl_fast.errors import DataError

LABELS = np.array([0, 2, 1])
GREY = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (GREY, GREY[..., None]),
        (np.stack([GREY, GREY], -1), np.stack([GREY, GREY], -1)),
        (torch.from_numpy(np.stack([GREY, GREY], 1)), np.stack([GREY, GREY], -1)),
        (list(torch.from_numpy(np.stack([GREY, GREY], 1))), np.stack([GREY, GREY], -1)),
    ],
    ids=["grey", "channels last", "tensor", "tensors"],
)
def test_images_have_their_channels_last(x, expected):
    samples = list(zip(x, LABELS.tolist(), strict=True)) if isinstance(x, list) else (x, LABELS)
    data = as_dataset(samples)
    assert np.array_equal(data.x, expected)
    assert data.modality == "images"
    assert data.mean == data.std == (0.5,) * expected.shape[-1]
    assert data.classes == ("0", "1", "2")


def test_rows_of_whole_numbers_are_tokens():
    data = as_dataset((np.array([[1, 2, 0], [7, 0, 0], [3, 3, 3]]), LABELS))
    assert (data.modality, data.vocabulary, data.x.dtype) == ("text", 8, np.int32)


def test_numbers_become_float32():
    data = as_dataset((torch.rand(3, 2, 4, 4, dtype=torch.float64), torch.tensor([[0], [1], [1]])))
    assert (data.modality, data.x.dtype, data.input_shape) == ("features", np.float32, (2, 4, 4))
    assert data.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (GREY, [0.5, 1, 1], "labels .y. are not whole numbers"),
        (GREY, [[1, 0], [0, 1], [1, 0]], "one-hot"),
        (GREY, [0, 1], "x has 3 samples, but y has 2 labels"),
        (GREY, [0, -1, 1], "labels from 0"),
        (GREY, [0, 1, 10**9], "claims 1000000001 classes"),
        (GREY[:0], [], "it has no samples"),
        (GREY.astype(complex), LABELS, "samples of complex128"),
        (GREY[:, 0], LABELS, "samples of uint8"),
        (np.array([[1], [-1], [2]]), LABELS, "tokens from -1 to 2"),
        (np.array([[1.0], [np.nan], [2.0]]), LABELS, "NaN"),
    ],
)
def test_values_that_do_not_fit_are_refused(x, y, message):
    with pytest.raises(DataError, match=message):
        as_dataset((x, np.array(y)))


def test_samples_of_different_shapes_are_refused():
    with pytest.raises(DataError, match="one shape"):
        as_dataset([(np.zeros(3), 0), (np.zeros(4), 1)])


def test_the_description_changes_with_samples_and_labels():
    texts = {description(as_dataset(pair)) for pair in ((GREY, LABELS), (GREY + 1, LABELS), (GREY, LABELS[::-1]))}
    assert len(texts) == 3
    assert all(text.startswith("own object: own data, 3 samples, hash ") for text in texts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"y": [0, 1]}, "x has 3 samples, but y has 2 labels"),
        ({"classes": ["cat", "dog"]}, "y has the label 2, but classes has 2 names"),
        ({"test": [0, 1]}, r"test has shape \[2\].*expected 3 booleans"),
        ({"domain": [0, 0, 3], "domains": ["a"]}, "domain has numbers from 0 to 3, but domains has 1 names"),
        ({"x": np.zeros((3, 3, 32, 32), np.uint8)}, r"channels first; expected \[H, W, C\]"),
        ({"x": np.zeros((3, 8, 8, 3), np.uint8), "std": [0.5]}, "std is .*each of the 3 channels"),
        ({"x": [[1.0], [2.0, 3.0], [4.0]]}, "different shapes"),
        ({"files": ["a.png"]}, "files has 1 names for 3 samples"),
    ],
)
def test_a_data_set_checks_its_arguments(fields, message):
    with pytest.raises(DataError, match=f"^mine: .*{message}"):
        Dataset(**{"name": "mine", "x": [[0.5], [1.5], [2.5]], "y": [0, 2, 1], **fields})


def test_a_data_set_takes_lists():
    data = Dataset("mine", [[0.5], [1.5]], [1, 0], test=[False, True])
    assert (data.x.dtype, data.y.dtype, data.test.tolist()) == (np.float32, np.int64, [False, True])
    assert Dataset("mine", GREY, LABELS).mean == (0.5,)
    assert Dataset("mine", [[1, 7], [2, 0]], [0, 1]).vocabulary == 8


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"train": [[0, 1]], "test": [[2], [3]]}, "train has 1, test has 2, validation has 1 clients"),
        ({"train": [[0, 1]], "test": [[2, 1]]}, "test and train of client 0 both have sample 1"),
        ({"train": [[0], [4, 4]], "test": [[2], [3]]}, "train of client 1 repeats sample 4"),
        ({"train": [[0], [2**62, 2**62]], "test": [[2], [3]]}, f"train of client 1 repeats sample {2**62}"),
        ({"train": [[0, -1]], "test": [[2]]}, "train of client 0 is no list of sample numbers"),
        ({"train": [["a"]], "test": [[2]]}, "train of client 0 is no list of sample numbers"),
        ({"train": 3, "test": [[2]]}, "train is int"),
        ({"train": [[0], [1]], "test": [[2], [3]], "names": ["a", "a"]}, "names has 'a' twice"),
    ],
)
def test_a_partition_checks_its_arguments(lists, message):
    with pytest.raises(DataError, match=message):
        Partition(**lists)


def test_numbers_of_any_size_are_compared():
    """Products of client and sample would overflow."""
    wide = [[2**62, 2**62 + 1], [0, 1], [2**62, 5], [0, 7], [2**62 + 1, 9]]
    assert Partition(train=wide, test=[[3]] * 5).clients == 5
