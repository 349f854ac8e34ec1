"""The published seed-1 splits, number for number."""

import numpy as np
import pytest

from pfl_fast.data.pfllib import read_client
from pfl_fast.errors import DataError
from tests.data.samples import labelled, partitioned

DIRICHLET = {
    "mnist": "2630 499 1630 2541 1917 6189 1256 1269 3600 4006 3116 3772 3613 2134 5730 5448 3628 5653 5266 6103",
    "cifar10": "1621 1814 1211 2080 5128 4264 1440 2622 2974 3236 1164 1964 5994 1527 3100 4325 4252 3175 5449 2660",
    "cifar100": "3020 3053 2753 3029 2640 2877 3120 3047 2807 3211 2761 3359 3290 2971 3301 3132 3345 2642 3035 2607",
    "tiny": "5092 3261 5001 5006 5162 5323 5067 4823 5144 5210 5465 4638 5132 5154 5099 5450 4596 5079 5074 5224",
}
PATHOLOGICAL = {
    "mnist": "2334 1318 3133 7995 1328 2061 1004 9738 3041 2910 1886 5300 1519 2335 1928 8387 1980 1906 1676 8221",
    "cifar10": "2266 1250 2243 6241 2009 952 1734 7305 1859 2514 2046 5581 1605 1114 1548 7733 2649 1442 2084 5825",
    "cifar100": "1816 4184 1941 4059 1426 4574 952 5048 1654 4346 2060 3940 1890 4110 1364 4636 1960 4040 1899 4101",
}
AG_NEWS = "410 1679 4416 772 158 670 132 4090 375 11583 127 9025 7932 15574 6956 11243 26692 7558 6293 11915"
MNIST = """
140 890 0 0 1 319 0 29 1067 184
5 0 27 0 0 19 335 0 6 107
3 0 0 143 0 0 1461 0 0 23
155 0 0 0 1 0 0 2381 4 0
71 13 0 207 0 1129 6 0 40 451
0 38 0 1 39 0 0 0 25 6086
0 873 176 46 0 0 42 0 13 106
0 21 5 11 0 787 0 4 441 0
1 3599 0 0 0 0 0 0 0 0
633 1997 89 0 519 0 768 0 0 0
920 2 1450 513 134 97 0 0 0 0
0 0 159 3055 0 558 0 0 0 0
8 180 3277 0 0 148 0 0 0 0
0 237 343 0 6 453 0 1095 0 0
0 0 0 0 0 2719 0 3011 0 0
31 0 0 1785 0 16 4 756 2856 0
3628 0 0 0 0 0 0 0 0 0
0 26 1463 1379 335 60 0 17 2373 0
998 0 0 0 0 8 4260 0 0 0
310 1 1 1 5789 0 0 0 0 1
"""


def labels(folder, name):
    if name == "mnist":
        with np.load(folder / "mnist.npz") as file:
            return np.concatenate([file["y_train"], file["y_test"]])
    with np.load(folder / "labels.npz") as file:
        parts = [file[f"{name}_{part}"] for part in ("train", "test") if f"{name}_{part}" in file]
    return np.concatenate(parts)


def totals(partition):
    return [len(train) + len(test) for train, test in zip(partition.train, partition.test, strict=True)]


def numbers(text):
    return list(map(int, text.split()))


@pytest.mark.parametrize("name", DIRICHLET)
def test_dirichlet_totals(real_data, name):
    dataset = labelled(labels(real_data, name))
    assert totals(partitioned(dataset, "dirichlet", clients=20, legacy_partition=True)) == numbers(DIRICHLET[name])


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_pathological_totals(real_data, name):
    classes = 10 if name == "cifar100" else 2
    dataset = labelled(labels(real_data, name))
    made = partitioned(dataset, "pathological", clients=20, legacy_partition=True, classes_per_client=classes)
    assert totals(made) == numbers(PATHOLOGICAL[name])


def test_ag_news_totals_take_twelve_tries():
    """Totals depend on the number of samples per class only, so no text is needed."""
    made = partitioned(labelled(np.repeat(np.arange(4), 31900)), "dirichlet", clients=20, legacy_partition=True)
    assert totals(made) == numbers(AG_NEWS)


def test_mnist_histogram(real_data):
    y = labels(real_data, "mnist")
    made = partitioned(labelled(y), "dirichlet", clients=20, legacy_partition=True)
    counts = [np.bincount(y[np.concatenate(both)], minlength=10) for both in zip(made.train, made.test, strict=True)]
    np.testing.assert_array_equal(counts, [numbers(row) for row in MNIST.strip().splitlines()])


@pytest.mark.parametrize("client", [1, 6, 7])
@pytest.mark.parametrize("split", ["train", "test"])
def test_published_clients_have_the_same_labels_in_the_same_order(real_data, client, split):
    """Their pool was in another order, so images within a class differ; everything that was drawn is the same."""
    y = labels(real_data, "mnist")
    made = partitioned(labelled(y), "dirichlet", clients=20, legacy_partition=True)
    _, theirs = read_client(real_data / "pfllib_sample" / split / f"{split}{client}_.npz")
    np.testing.assert_array_equal(y[getattr(made, split)[client]], theirs)


def test_the_split_is_that_of_scikit_learn():
    from sklearn.model_selection import train_test_split

    from pfl_fast.data.partition import legacy

    lots = [np.arange(n) for n in (2, 3, 5, 7, 40, 101)]
    train, test = legacy.split(lots, 0.25, np.random.RandomState(3))
    state = np.random.RandomState(3)
    for lot, ours, held in zip(lots, train, test, strict=True):
        theirs = train_test_split(lot, train_size=0.75, shuffle=True, random_state=state)
        np.testing.assert_array_equal(ours, theirs[0])
        np.testing.assert_array_equal(held, theirs[1])


def test_legacy_gives_up_instead_of_looping_for_ever():
    with pytest.raises(DataError, match=r"1000 tries.*raise beta"):
        partitioned(labelled([0] * 40), "dirichlet", clients=4, beta=0.001, min_samples=8, legacy_partition=True)


def test_legacy_refuses_classes_too_small_to_share():
    with pytest.raises(DataError, match="class 0 has 3 samples, too few for 4 clients"):
        partitioned(labelled(np.repeat([0, 1], 3)), "pathological", clients=4, legacy_partition=True)
