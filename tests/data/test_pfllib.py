import json
import os
import shutil

import numpy as np
import pytest

from pfl_fast.data.federated import FederatedData
from pfl_fast.data.pfllib import export_pfllib, import_pfllib
from pfl_fast.errors import DataError
from tests.data.samples import images, labelled, partitioned


def text(lengths=(5, 0, 3, 7, 1, 2, 4, 6)):
    x = np.zeros((len(lengths), 7), dtype=np.int32)
    for row, length in zip(x, lengths, strict=True):
        row[:length] = np.arange(1, length + 1)
    return labelled(np.arange(len(lengths)) % 2, x=x, vocabulary=8)


DATASETS = {
    "colour images": lambda: images(np.arange(40) % 3),
    "grey images": lambda: images(np.arange(41) % 3, shape=(5, 7, 1)),
    "features": lambda: labelled(
        np.arange(30) % 2, x=np.random.default_rng(0).normal(size=(30, 3, 4, 4)).astype(np.float32)
    ),
    "flat features": lambda: labelled(np.arange(30) % 2),
    "text": text,
}


@pytest.mark.parametrize("name", DATASETS)
def test_exported_data_can_be_imported(tmp_path, name):
    dataset = DATASETS[name]()
    partition = partitioned(dataset, "iid", clients=3)
    export_pfllib(dataset, partition, tmp_path / "out")
    back = import_pfllib(tmp_path / "out")
    assert (back.modality, back.name, back.source, back.classes) == (
        dataset.modality, "out", "imported", tuple(map(str, range(len(dataset.classes)))),
    )  # fmt: skip
    natural = partitioned(back, "natural")
    for split in ("train", "test"):
        for ours, theirs in zip(getattr(partition, split), getattr(natural, split), strict=True):
            np.testing.assert_array_equal(back.x[theirs], dataset.x[ours][..., : back.x.shape[-1]])
            np.testing.assert_array_equal(back.y[theirs], dataset.y[ours])
    assert back.test.sum() == sum(map(len, partition.test))
    assert FederatedData(back, natural, batch_size=4).take(FederatedData(back, natural).union("test")).y.ndim == 1


def test_numpy_reads_what_was_exported_as_pfllib_does(tmp_path):
    dataset = images(np.arange(40) % 3)
    partition = partitioned(dataset, "dirichlet", clients=2)
    export_pfllib(dataset, partition, tmp_path / "out")
    with np.load(tmp_path / "out" / "train" / "1.npz", allow_pickle=True) as file:
        data = file["data"].tolist()
    assert (data["x"].dtype, data["x"].shape) == (np.float32, (len(partition.train[1]), 3, 6, 5))
    expected = dataset.x[partition.train[1]].transpose(0, 3, 1, 2) / 127.5 - 1
    np.testing.assert_allclose(data["x"], expected, atol=1e-6)
    np.testing.assert_array_equal(data["y"], dataset.y[partition.train[1]])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [config[k] for k in ("num_clients", "num_classes", "partition", "alpha", "non_iid")] == [
        2,
        3,
        "dir",
        0.1,
        True,
    ]
    counts = config["Size of samples for labels in clients"]
    assert sum(count for client in counts for _, count in client) == 40


def test_text_is_exported_as_pairs(tmp_path):
    dataset = text()
    export_pfllib(dataset, partitioned(dataset, "iid", clients=2), tmp_path / "out")
    with np.load(tmp_path / "out" / "train" / "0.npz", allow_pickle=True) as file:
        pairs = file["data"].tolist()["x"]
    assert all(len(tokens) == 7 and sum(t > 0 for t in tokens) == length for tokens, length in pairs)


@pytest.mark.parametrize("as_table", [False, True])
def test_both_forms_of_text_pairs_are_read(tmp_path, as_table):
    pairs = np.empty((2, 2) if as_table else 2, dtype=object)
    for place, (tokens, length) in enumerate([([3, 4, 5], 3), ([9], 1)]):
        if as_table:
            pairs[place, 0], pairs[place, 1] = tokens, length
        else:
            pairs[place] = (tokens, length)
    for split in ("train", "test"):
        write(tmp_path / split / "0.npz", {"x": pairs, "y": np.array([0, 1])})
    assert import_pfllib(tmp_path).x.tolist() == [[3, 4, 5], [9, 0, 0]] * 2


def test_the_published_sample(real_data):
    dataset = import_pfllib(real_data / "pfllib_sample", "mnist-sample")
    assert (dataset.name, dataset.modality, dataset.x.shape[1:], len(dataset.classes)) == (
        "mnist-sample",
        "images",
        (28, 28, 1),
        10,
    )
    assert [(len(train), len(test)) for train, test in dataset.natural] == [(374, 125), (942, 314), (951, 318)]
    with np.load(real_data / "mnist.npz") as file:
        originals = {image.tobytes() for part in ("x_train", "x_test") for image in file[part]}
    assert all(image.tobytes() in originals for image in dataset.x), "pixels come back exactly"


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, data=content)


@pytest.fixture
def exported(tmp_path):
    dataset = images(np.arange(40) % 3)
    export_pfllib(dataset, partitioned(dataset, "iid", clients=2), tmp_path / "out")
    return tmp_path / "out"


def test_config_may_be_absent_or_lack_the_number_of_classes(exported):
    (exported / "config.json").write_text('{"num_clients": 2}')
    assert len(import_pfllib(exported).classes) == 3
    (exported / "config.json").write_text('{"num_classes": 12}')
    assert len(import_pfllib(exported).classes) == 12
    (exported / "config.json").unlink()
    assert len(import_pfllib(exported).classes) == 3


class Evil:
    def __reduce__(self):
        return os.system, ("false",)


def cut(file):
    file.write_bytes(file.read_bytes()[:-200])


def content(**changes):
    """Writes a client of two images, changed."""
    return lambda f: write(f, {"x": np.zeros((2, 3, 6, 5), np.float32), "y": np.array([0, 1])} | changes)


def pairs(*rows):
    table = np.empty(len(rows), dtype=object)
    for place, row in enumerate(rows):
        table[place] = (row, len(row))
    return table


ALTERED = {
    "float labels": (content(y=np.array([0.5, 1])), "labels are not whole numbers"),
    "NaN labels": (content(y=np.array([np.nan, 1])), "labels are not whole numbers"),
    "one-hot labels": (content(y=np.eye(2)), r"labels of shape \(2, 2\), one-hot\?; expected \[n\]"),
    "complex x": (content(x=np.zeros((2, 3, 6, 5), complex)), "x are not real numbers"),
    "NaN x": (content(x=np.full((2, 3, 6, 5), np.nan)), "x has NaN"),
    "x beyond float32": (content(x=np.full((2, 3, 6, 5), 1e300)), "very large numbers"),
    "images beyond float32": (content(x=np.full((2, 3, 6, 5), 2**25 + 1)), "float32 cannot hold"),
    "tokens beyond int32": (content(x=np.full((2, 9), 2**40)), "tokens from 1099511627776"),
    "tokens of pairs beyond int32": (content(x=pairs([2**40], [1])), "tokens from 1 to 1099511627776"),
    "one label of 10^9": (content(y=np.array([0, 10**9])), "1000000001 classes; with 24 values it may have 10000"),
    "one long text": (content(x=pairs([1] * 10_000, *[[]] * 40_000), y=np.zeros(40_001)), "bytes of padded tokens"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_values_that_an_import_would_alter_are_refused(exported, name):
    harm, message = ALTERED[name]
    harm(exported / "train" / "1.npz")
    if name == "one label of 10^9":
        shutil.copy(exported / "train" / "1.npz", exported / "test" / "1.npz")
    with pytest.raises(DataError, match=message):
        import_pfllib(exported)


def test_a_token_of_10_9_is_refused(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / split / "0.npz", {"x": np.array([[10**9]]), "y": np.array([0])})
    with pytest.raises(DataError, match="1000000001 tokens; with 2 values it may have 1000000"):
        import_pfllib(tmp_path)


def test_whole_numbers_in_other_dtypes_are_converted_exactly(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / split / "0.npz", {"x": np.full((2, 1, 2, 2), 200, np.uint8), "y": np.array([[1.0], [0.0]])})
    data = import_pfllib(tmp_path)
    assert (data.x.dtype, data.x.max(), data.modality, data.y.tolist()) == (np.float32, 200, "features", [1, 0] * 2)


DAMAGE = {
    "code": (
        lambda f: write(f, {"x": Evil(), "y": np.zeros(1)}),
        r"train/1.npz: refused, its pickle asks for posix\.system",
    ),
    "truncated": (cut, r"train/1.npz: not a readable zip archive"),
    "empty": (lambda f: f.write_bytes(b""), "train/1.npz: not a readable zip archive"),
    "no dict": (lambda f: write(f, [1, 2]), "train/1.npz"),
    "no labels": (lambda f: write(f, {"x": np.zeros(2)}), "expected a dict with 'x' and 'y'"),
    "too few labels": (lambda f: write(f, {"x": np.zeros((2, 3, 6, 5)), "y": [1]}), "2 samples with 1 labels"),
    "words": (lambda f: write(f, {"x": np.array(["a"]), "y": [1]}), "x are not real numbers"),
    "plain array": (lambda f: np.savez(f, data=np.zeros(3)), "not a pickled dict"),
    "no member": (lambda f: np.savez(f, x=np.zeros(3)), "data.npy"),
    "another shape": (lambda f: write(f, {"x": np.zeros((2, 3, 4, 5)), "y": [1, 1]}), "different shapes"),
    "tokens": (lambda f: write(f, {"x": np.zeros((2, 9), dtype=int), "y": [1, 1]}), "some clients have tokens"),
    "gone": (lambda f: f.unlink(), "client 1 is in only one of train and test"),
    "config": (lambda f: (f.parents[1] / "config.json").write_text("{"), "config.json: not readable"),
    "many classes": (lambda f: (f.parents[1] / "config.json").write_text('{"num_classes": 1000000000}'), "refused"),
    "few classes": (lambda f: (f.parents[1] / "config.json").write_text('{"num_classes": 2}'), "there is a label 2"),
    "no folder": (lambda f: shutil.rmtree(f.parent), "no client's files there"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(exported, damage):
    harm, message = DAMAGE[damage]
    harm(exported / "train" / "1.npz")
    with pytest.raises(DataError, match=message):
        import_pfllib(exported)


def test_export_does_not_overwrite_and_leaves_no_files_after_an_error(exported, monkeypatch):
    dataset = images(np.arange(40) % 3)
    partition = partitioned(dataset, "iid", clients=2)
    with pytest.raises(DataError, match="already exists"):
        export_pfllib(dataset, partition, exported)
    monkeypatch.setattr("pfl_fast.data.pfllib._config", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_pfllib(dataset, partition, exported.parent / "other")
    assert [file.name for file in exported.parent.iterdir()] == ["out"]
