import os
import pickle

import numpy as np
import pytest

from pfl_fast.data.sources.names import CIFAR100_COARSE, CIFAR100_FINE, COARSE_OF_FINE
from tests.data.archives import cifar10_members, pixels, write_folder, write_tar

TEN, HUNDRED = "cifar-10-python.tar.gz", "cifar-100-python.tar.gz"


def hundred_members(fine=(0, 99, 37, 5, 6)):
    x, coarse = pixels(3, len(fine), 3072), [COARSE_OF_FINE[label] for label in fine]
    batch = pickle.dumps({"data": x, "fine_labels": list(fine), "coarse_labels": coarse}, 2)
    return {"cifar-100-python/train": batch, "cifar-100-python/test": batch}, x


@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar10_python(raw, load_real, unpacked):
    members, x, y = cifar10_members()
    write_folder(raw, members) if unpacked else write_tar(raw / "cifar10" / TEN, members)
    data = load_real("cifar10")
    assert np.array_equal(data.x, x)
    assert data.y.tolist() == y.tolist()
    assert data.test.tolist() == [False] * 15 + [True] * 3
    assert data.classes[3] == "cat"


def test_cifar10_binary(raw, load_real):
    x, y = pixels(5, 6, 3072), np.arange(6, dtype=np.uint8)
    rows = np.concatenate([y[:, None], x], axis=1)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    write_tar(raw / "cifar-10-binary.tar.gz", {f"d/{name}": rows[i].tobytes() for i, name in enumerate(names)})
    data = load_real("cifar10")
    assert np.array_equal(data.x, x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5]


def test_cifar100_has_both_labellings_in_one_cache(raw, load_real, said):
    members, x = hundred_members()
    write_tar(raw / HUNDRED, members)
    fine, coarse = load_real("cifar100"), load_real("cifar100-coarse")
    assert fine.y.tolist() == [0, 99, 37, 5, 6] * 2
    assert coarse.y.tolist() == fine.labels["coarse"].tolist() == [COARSE_OF_FINE[label] for label in fine.y]
    assert coarse.labels["fine"].tolist() == fine.y.tolist()
    assert (fine.classes, coarse.classes) == (CIFAR100_FINE, CIFAR100_COARSE)
    assert np.array_equal(coarse.x[:5], x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert sum("preparing" in line for line in said) == 1


def test_cifar100_binary(raw, load_real):
    row = bytes([3, 9]) + bytes(3072)
    write_tar(raw / "cifar-100-binary.tar.gz", {"a/train.bin": row * 2, "a/test.bin": row})
    data = load_real("cifar100")
    assert data.labels["coarse"].tolist() == [3, 3, 3]
    assert data.y.tolist() == [9, 9, 9]


def test_superclasses_agree_with_the_real_labels(real_data):
    labels = np.load(real_data / "labels.npz")
    assert labels["fine_names"].tolist() == list(CIFAR100_FINE)
    assert labels["coarse_names"].tolist() == list(CIFAR100_COARSE)
    assert (np.array(COARSE_OF_FINE)[labels["cifar100_train"]] == labels["cifar100_coarse_train"]).all()


class Runs:
    def __reduce__(self):
        return os.system, ("touch owned",)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pickle.dumps({"data": Runs(), "labels": []}, 2), r"test_batch: refused, its pickle asks for .*system"),
        (b"garbage", "test_batch: not a readable pickle"),
        (b"", "test_batch: not a readable pickle"),
        (pickle.dumps([1], 2), "not a batch of CIFAR-10"),
        (pickle.dumps({"data": pixels(0, 2, 3071), "labels": [0, 1]}, 2), "data of shape"),
        (pickle.dumps({"data": pixels(0, 2, 3072), "labels": [0]}, 2), "2 images but 1 labels"),
        (pickle.dumps({"data": pixels(0, 2, 3072), "labels": [0, 10]}, 2), "1 labels outside 0 to 9"),
        (pickle.dumps({"data": pixels(0, 2, 3072), "labels": [0, float("nan")]}, 2), "not whole numbers"),
        (pickle.dumps({"data": np.full((2, 3072), np.nan), "labels": [0, 1]}, 2), "hold NaN"),
    ],
)
def test_bad_batches(raw, refuses, batch, message, monkeypatch):
    monkeypatch.chdir(raw)
    members, *_ = cifar10_members()
    write_tar(raw / TEN, members | {"cifar-10-batches-py/test_batch": batch})
    refuses("cifar10", message)
    assert not (raw / "owned").exists(), "the pickle was executed"


def test_missing_member_and_truncated_tar(raw, refuses):
    members, *_ = cifar10_members()
    members.pop("cifar-10-batches-py/data_batch_4")
    write_tar(raw / TEN, members)
    refuses("cifar10", rf"{TEN}: data_batch_4 is not in it")
    data = (raw / TEN).read_bytes()
    for keep in (0, 10, len(data) // 2):
        (raw / TEN).write_bytes(data[:keep])
        refuses("cifar10", rf"{TEN}: not a readable tar")


def test_odd_binary_length(raw, refuses):
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    write_tar(raw / "cifar-10-binary.tar.gz", {f"d/{name}": bytes(3072) for name in names})
    refuses("cifar10", "not whole images")
