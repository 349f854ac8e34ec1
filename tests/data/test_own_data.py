"""Data sets from arrays, tensors and samples."""

import numpy as np
import pytest
import torch

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
        (GREY, [0.5, 1, 1], "labels are not whole numbers"),
        (GREY, [[1, 0], [0, 1], [1, 0]], "one-hot"),
        (GREY, [0, 1], "3 samples with 2 labels"),
        (GREY, [0, -1, 1], "labels from 0"),
        (GREY, [0, 1, 10**9], "claims 1000000001 classes"),
        (GREY[:0], [], "0 samples with 0 labels"),
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
