"""Data sets and partitions from the user's files: images in folders, tables, npz, Hugging Face's datasets."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from pfl_fast.data.load import load
from pfl_fast.data.partition import Partition, PartitionSpec, make_partition
from pfl_fast.errors import DataError, DataRequestError

COLOURS = {"cat": (200, 30, 30), "dog": (30, 30, 200)}


def picture(file, colour, size=(12, 10)):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


def photos(root, *folders, count=4):
    """Pictures of cats and dogs below each of the folders."""
    for folder in folders or ("",):
        for label, colour in COLOURS.items():
            for number in range(count):
                picture(root / folder / label / f"{number}.png", colour)
    return root


def opened(path, **options):
    lines = []
    return load(str(path), log=lines.append, **options), lines


def table(file, rows):
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_one_folder_per_class(tmp_path):
    data, lines = opened(photos(tmp_path / "pets"))
    assert (data.name, data.classes, data.input_shape, data.source) == ("pets", ("cat", "dog"), (3, 10, 10), "imported")
    assert data.y.tolist() == [0] * 4 + [1] * 4
    assert [tuple(x[0, 0]) for x in data.x] == [COLOURS["cat"]] * 4 + [COLOURS["dog"]] * 4
    assert data.files[5] == "dog/1.png"
    assert "reading" in lines[0]
    again, lines = opened(tmp_path / "pets")
    assert lines == []
    assert isinstance(again.x, np.memmap)
    picture(tmp_path / "pets" / "dog" / "9.png", (0, 0, 0))
    assert len(opened(tmp_path / "pets")[0]) == 9, "a folder is read again when it has changed"


def test_folders_of_training_and_test_images(tmp_path):
    data, _ = opened(photos(tmp_path / "pets", "train", "test"), size=8)
    assert data.test.tolist() == [True] * 8 + [False] * 8
    assert (data.classes, data.input_shape) == (("cat", "dog"), (3, 8, 8))


@pytest.mark.parametrize("folders", [("north", "south"), ("train/north", "train/south", "test/north", "test/south"),
                                     ("north/train", "north/test", "south/train", "south/test")])  # fmt: skip
def test_folders_of_domains_are_clients_with_names(tmp_path, folders):
    data, _ = opened(photos(tmp_path / "pets", *folders))
    assert (data.domains, data.classes) == (("north", "south"), ("cat", "dog"))
    made = make_partition(data, PartitionSpec(min_samples=1))
    assert (made.rule, made.names) == ("domain", ("north", "south"))
    made.save(tmp_path / "saved")
    assert Partition.load(tmp_path / "saved").names == made.names
    assert made.draw(1, seed=0).names[0] in made.names


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["1.png"], "is in no folder of a class"),
        (["train/1.png", "test/2.png"], "is in no folder of a class"),
        (["a/b/c/d/1.png"], "too deep"),
        (["a/1.png", "a/b/2.png"], "some images are in a folder of a domain and some are not"),
        (["train/a/1.png", "b/2.png"], "some images are in a folder of a train or test"),
        (["test/a/1.png"], "has test images only"),
        ([], "no images"),
    ],
)
def test_other_folders_are_refused_with_the_layouts(tmp_path, files, message):
    (tmp_path / "pets").mkdir()
    for file in files:
        picture(tmp_path / "pets" / file, (0, 0, 0))
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "pets")


def test_a_table_of_numbers(tmp_path):
    rows = [{"height": i / 2, "weight": i, "label": "ab"[i % 2], "client": "xyz"[i % 3]} for i in range(12)]
    for file in (table(tmp_path / "table.csv", rows), tmp_path / "table.json", tmp_path / "table.jsonl"):
        if file.suffix == ".json":
            file.write_text(json.dumps(rows))
        elif file.suffix == ".jsonl":
            file.write_text("\n".join(map(json.dumps, rows)))
        data, _ = opened(file)
        assert (data.name, data.classes, data.client_names) == ("table", ("a", "b"), ("x", "y", "z"))
        assert data.x.tolist() == [[i / 2, i] for i in range(12)]
        made = make_partition(data, PartitionSpec())
        assert (made.rule, made.names) == ("natural", ("x", "y", "z"))
        for client, both in enumerate(zip(made.train, made.test, strict=True)):
            assert sorted(np.concatenate(both)) == list(range(client, 12, 3))


def test_a_table_of_images(tmp_path):
    photos(tmp_path / "all")
    rows = [
        {"file": f"all/{k}/{i}.png", "label": k, "split": "test" if i == 0 else "train"}
        for k in COLOURS
        for i in range(4)
    ]
    data, _ = opened(table(tmp_path / "pets.csv", rows))
    assert data.test.tolist() == [True, False, False, False] * 2
    assert tuple(data.x[-1, 0, 0]) == COLOURS["dog"]
    picture(tmp_path / "all" / "dog" / "3.png", (9, 9, 9))
    assert tuple(opened(tmp_path / "pets.csv")[0].x[-1, 0, 0]) == (9, 9, 9), "read again when an image has changed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column label; it has a, b"),
        ("a,label\n1,x\nred,y\n", "column 'a' has 'red' in row 2, which is not a number"),
        ("a,label\n1,x,3\n", "line 2 has 3 values for 2 columns"),
        ("a,label\n1,\n", "row 1 has no label"),
        ("a,label\n", "no samples"),
        ("label\nx\n", "no columns besides the label"),
        ("a,label,split\n1,x,tset\n", "row 1 has the split 'tset'"),
        ("file,label\nmissing.png,x\n", "missing.png: cannot be read"),
    ],
)
def test_tables_with_mistakes_are_refused(tmp_path, text, message):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "table.csv")


def test_files_of_leaf(tmp_path):
    for split in ("train", "test"):
        users = {f"u{n}": {"x": [[n, 0.5], [n, 1.5]], "y": [0, 1]} for n in range(2)}
        (tmp_path / "leaf" / split).mkdir(parents=True)
        (tmp_path / "leaf" / split / "part.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    data, _ = opened(tmp_path / "leaf")
    made = make_partition(data, PartitionSpec())
    assert (made.names, [index.tolist() for index in made.test]) == (("u0", "u1"), [[4, 5], [6, 7]])
    assert len(opened(tmp_path / "leaf" / "train" / "part.json")[0]) == 4


def test_arrays_in_an_npz_file(tmp_path):
    x, y = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4), np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=["b", "b", "a", "a", "b", "a"], classes=["no", "yes"])
    data, _ = opened(tmp_path / "mine.npz")
    assert (data.input_shape, data.classes, data.client_names) == ((1, 4, 4), ("no", "yes"), ("a", "b"))
    assert np.concatenate(data.natural[0]).tolist() == [2, 3, 5]
    np.savez(tmp_path / "two.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    assert opened(tmp_path / "two.npz")[0].test.tolist() == [False] * 4 + [True] * 2
    np.savez(tmp_path / "wrong.npz", x=x, y=y[:2])
    with pytest.raises(DataError, match=r"x has shape .* expected 2 entries"):
        opened(tmp_path / "wrong.npz")


def test_a_folder_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "kind": datasets.ClassLabel(names=["dog", "cat"])})
    columns = {"image": [Image.new("RGB", (6, 6), COLOURS["dog"]), Image.new("L", (9, 9), 7)], "kind": [0, 1]}
    split = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "hub"))
    data, _ = opened(tmp_path / "hub", size=6)
    assert (data.classes, data.test.tolist()) == (("dog", "cat"), [False, False, True, True])
    assert [tuple(x[0, 0]) for x in data.x[:2]] == [COLOURS["dog"], (7, 7, 7)]
    numbers = datasets.Dataset.from_dict({"a": [0.5, 1.5], "b": [1, 2], "label": [3, 5]})
    numbers.save_to_disk(str(tmp_path / "numbers"))
    data, _ = opened(tmp_path / "numbers")
    assert (data.x.tolist(), data.classes) == ([[0.5, 1.0], [1.5, 2.0]], ("3", "5"))


def test_the_name_of_a_path_is_unlike_those_of_the_catalogue(tmp_path):
    assert opened(photos(tmp_path / "mnist"))[0].name == "own-mnist"
    with pytest.raises(DataRequestError, match="does not exist"):
        opened(tmp_path / "nowhere")


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_file_names_the_client_of_each_sample(tmp_path, suffix):
    data, _ = opened(photos(tmp_path / "pets"))
    splits = ["train", "train", "validation", "test"]
    rows = [{"file": name, "client": "ab"[i % 2], "split": splits[i // 2]} for i, name in enumerate(data.files)]
    file = tmp_path / f"split{suffix}"
    table(file, rows) if suffix == ".csv" else file.write_text(json.dumps(rows))
    made = make_partition(data, PartitionSpec(partition=str(file)))
    lists = [[index.tolist() for index in own] for own in (made.train, made.validation, made.test)]
    assert (made.names, lists) == (("a", "b"), [[[0, 2], [1, 3]], [[4], [5]], [[6], [7]]])


def test_lists_of_numbers_by_client(tmp_path):
    data, _ = opened(photos(tmp_path / "pets"))
    file = tmp_path / "split.json"
    file.write_text(json.dumps({"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}))
    made = make_partition(data, PartitionSpec(partition=str(file)))
    assert [len(index) for index in (*made.train, *made.test)] == [3, 3, 1, 1]
    file.write_text(json.dumps({"a": {"train": [0, 1], "test": ["cat/2.png"]}}))
    assert make_partition(data, PartitionSpec(partition=str(file))).test[0].tolist() == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"index": 99, "client": "a"}], "no sample '99'; expected files below its folder, or numbers from 0 to 7"),
        ([{"file": "cat/1.pgn", "client": "a"}], "no sample 'cat/1.pgn'.*did you mean 'cat/1.png'"),
        ([{"file": "cat/1.png"}], "needs the columns client, and file or index"),
        ([{"index": 1, "client": "a", "split": "tets"}], "no split 'tets'.*did you mean 'test'"),
        ([{"index": 1, "client": "a", "split": "train"}], "client a has no test samples"),
        ({"a": {"train": [1], "test": [1]}}, "trains on samples of its test"),
        ({"a": 3}, "client 'a' has no list of samples"),
    ],
)
def test_mistakes_in_a_file_of_clients_are_named(tmp_path, content, message):
    data, _ = opened(photos(tmp_path / "pets"))
    (tmp_path / "split.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        make_partition(data, PartitionSpec(partition=str(tmp_path / "split.json")))
