import json
import pickle

import numpy as np
import pytest

from pfl_fast.data.fl_bench import read_fl_bench
from pfl_fast.errors import DataError
from tests.data.samples import labelled

CLIENTS = [{"train": np.array([0, 4]), "val": [1], "test": []}, {"train": [2], "test": np.array([5])}]


@pytest.fixture
def dataset():
    return labelled(np.arange(6), test=[True, False, False, True, False, False])


def write(folder, clients, **stats):
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": {}, "data_indices": clients}))
    (folder / "all_stats.json").write_text(json.dumps(stats))


def test_indices_count_training_samples_first(tmp_path, dataset):
    write(tmp_path, CLIENTS)
    made = read_fl_bench(tmp_path, dataset)
    assert [index.tolist() for index in (*made.train, *made.validation, *made.test)] == [[1, 0], [4], [2], [], [], [3]]
    assert read_fl_bench(tmp_path / "partition.pkl", dataset).hash == made.hash


def test_labels_are_compared_with_the_statistics(tmp_path, dataset):
    write(
        tmp_path,
        CLIENTS,
        **{"0": {"x": 3, "y": {"0": 1, "1": 1, "2": 1, "5": 0}}, "1": {"x": 2, "y": {"4": 1, "3": 1}}},
    )
    assert read_fl_bench(tmp_path, dataset).clients == 2
    write(tmp_path, CLIENTS, **{"1": {"x": 2, "y": {"4": 2}}})
    with pytest.raises(DataError, match=r"client 1 has labels {4: 2}, but .* another order"):
        read_fl_bench(tmp_path, dataset)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([{"train": [6]}], "outside the 6 samples"),
        ([], "expected a dict"),
        ([{"train": ["a"]}], "sample indices for 'train' are not real numbers"),
        ([{"train": [1]}, {"test": [2]}], "client 1 has no training samples"),
    ],
)
def test_unusable_partitions_are_refused(tmp_path, dataset, clients, message):
    write(tmp_path, clients)
    with pytest.raises(DataError, match=message):
        read_fl_bench(tmp_path, dataset)


def test_a_missing_file_is_named(tmp_path, dataset):
    with pytest.raises(DataError, match=r"partition.pkl: cannot be read"):
        read_fl_bench(tmp_path, dataset)
