import json

import numpy as np
import pytest

from pfl_fast.data.cache import imported_folder, read_cache, save_dataset
from pfl_fast.data.load import load
from pfl_fast.errors import DataError
from tests.data.samples import cifar100_like, images, labelled


def everything():
    natural = ((np.array([0, 2]), np.array([1])), (np.array([3]), np.zeros(0, dtype=np.int64)))
    return images(
        np.arange(5) % 2, test=[0, 1, 0, 0, 0], domain=np.arange(5) % 3, domains=("a", "b", "c"),
        labels={"fine": np.arange(5)}, natural=natural, source="imported",
    )  # fmt: skip


@pytest.mark.parametrize("make", [everything, cifar100_like])
def test_saved_data_sets_can_be_loaded(tmp_path, make):
    dataset = make()
    save_dataset(dataset, tmp_path / "set")
    loaded, _ = read_cache(tmp_path / "set")
    for name, value in vars(dataset).items():
        back = getattr(loaded, name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(back, value)
            assert back.dtype == value.dtype
        elif name == "natural" and value:
            assert [[i.tolist() for i in both] for both in back] == [[i.tolist() for i in both] for both in value]
        elif name == "labels":
            assert {k: v.tolist() for k, v in back.items()} == {k: v.tolist() for k, v in value.items()}
        else:
            assert back == value, name
    assert isinstance(loaded.x, np.memmap)


@pytest.fixture
def saved(tmp_path):
    folder = imported_folder("set", tmp_path)
    save_dataset(everything(), folder)
    return folder


def edit(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def shorten_labels(folder):
    np.save(folder / "y.npy", np.zeros(4, np.int64))
    arrays = json.loads((folder / "manifest.json").read_text())["arrays"]
    edit(folder, arrays=arrays | {"y": {"shape": [4], "dtype": "int64"}})


DAMAGE = {
    "truncated": (lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes()[:-9]), "x.npy"),
    "array gone": (lambda f: (f / "y.npy").unlink(), "y.npy"),
    "another array": (lambda f: np.save(f / "y.npy", np.zeros(4)), r"y.npy holds float64 \[4\], expected int64 \[5\]"),
    "manifest cut": (lambda f: (f / "manifest.json").write_text('{"form'), "JSONDecodeError"),
    "format": (lambda f: edit(f, format=2), "it has format 2"),
    "no labels": (lambda f: edit(f, arrays={"x": {"shape": [5, 6, 5, 3], "dtype": "uint8"}}), "KeyError: 'test'"),
    "lengths": (shorten_labels, "differ in length"),
    "sizes": (lambda f: edit(f, natural=[[1, 1]]), "do not fit natural.npy"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(saved, damage):
    harm, message = DAMAGE[damage]
    harm(saved)
    with pytest.raises(DataError, match=rf"imported/set: cannot be used \(.*{message}"):
        load("set", folder=saved.parents[1])


def test_saving_does_not_overwrite_and_leaves_no_files_after_an_error(saved, monkeypatch):
    with pytest.raises(DataError, match="already exists"):
        save_dataset(everything(), saved)
    monkeypatch.setattr(np, "save", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_dataset(everything(), saved.parent / "other")
    assert [file.name for file in saved.parent.iterdir()] == ["set"]


def test_imports_of_version_0_1_are_read(saved):
    """They describe an array by a list, and call another labelling label_<name>."""
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "labels-fine.npy").rename(saved / "label_fine.npy")
    arrays = {k.replace("labels-", "label_"): [v["dtype"], *v["shape"]] for k, v in manifest["arrays"].items()}
    kept = ("format", "name", "classes", "mean", "std", "domains", "vocabulary", "source", "natural")
    (saved / "manifest.json").write_text(json.dumps({name: manifest[name] for name in kept} | {"arrays": arrays}))
    loaded = load("set", folder=saved.parents[1])
    assert loaded.labels["fine"].tolist() == [0, 1, 2, 3, 4]
    assert (loaded.mean, loaded.source, len(loaded.natural)) == ((0.5,) * 3, "imported", 2)


def test_an_empty_data_set_is_refused(tmp_path):
    with pytest.raises(DataError, match="toy: no samples in it"):
        save_dataset(labelled(np.zeros(0)), tmp_path / "set")


def test_names_stay_in_the_data_folder(tmp_path):
    assert imported_folder("mine", tmp_path) == tmp_path / "imported" / "mine"
    for name in ("", "..", "a/b", ".hidden"):
        with pytest.raises(DataError, match="cannot be the name"):
            imported_folder(name)
