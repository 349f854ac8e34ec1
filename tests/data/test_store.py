import json

import numpy as np
import pytest

from pfl_fast.data.store import imported_folder, load_dataset, save_dataset
from pfl_fast.errors import DataError
from tests.data.samples import cifar100_like, images, labelled


def everything():
    natural = ((np.array([0, 2]), np.array([1])), (np.array([3]), np.zeros(0, dtype=np.int64)))
    return images(
        np.arange(5) % 2, test=[0, 1, 0, 0, 0], domain=np.arange(5) % 3, domains=("a", "b", "c"),
        labels={"fine": np.arange(5)}, natural=natural, source="imported",
    )  # fmt: skip


@pytest.mark.parametrize("make", [everything, cifar100_like, lambda: labelled(np.zeros(0))])
def test_what_is_saved_is_loaded(tmp_path, make):
    dataset = make()
    save_dataset(dataset, tmp_path / "set")
    loaded = load_dataset(tmp_path / "set")
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
    assert len(dataset) == 0 or isinstance(loaded.x, np.memmap)


@pytest.fixture
def saved(tmp_path):
    save_dataset(everything(), tmp_path / "set")
    return tmp_path / "set"


def edit(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


DAMAGE = {
    "truncated": (lambda f: (f / "x.npy").write_bytes((f / "x.npy").read_bytes()[:-9]), "x.npy"),
    "array gone": (lambda f: (f / "y.npy").unlink(), "y.npy"),
    "another array": (lambda f: np.save(f / "y.npy", np.zeros(4)), r"it holds float64 \[4\], expected"),
    "manifest gone": (lambda f: (f / "manifest.json").unlink(), "holds no data set"),
    "manifest cut": (lambda f: (f / "manifest.json").write_text('{"form'), "manifest.json"),
    "format": (lambda f: edit(f, format=2), "format 1"),
    "no classes": (lambda f: edit(f, arrays={"x": ["uint8", 5, 6, 5, 3]}), "lacks or garbles"),
    "sizes": (lambda f: edit(f, natural=[[1, 1]]), "do not fit natural.npy"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(saved, damage):
    harm, message = DAMAGE[damage]
    harm(saved)
    with pytest.raises(DataError, match=message):
        load_dataset(saved)


def test_saving_does_not_overwrite_and_leaves_nothing_behind(saved, monkeypatch):
    with pytest.raises(DataError, match="is there already"):
        save_dataset(everything(), saved)
    monkeypatch.setattr(np, "save", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_dataset(everything(), saved.parent / "other")
    assert [file.name for file in saved.parent.iterdir()] == ["set"]


def test_names_stay_in_the_data_folder(tmp_path):
    assert imported_folder("mine", tmp_path) == tmp_path / "imported" / "mine"
    for name in ("", "..", "a/b", ".hidden"):
        with pytest.raises(DataError, match="cannot be the name"):
            imported_folder(name)
