import bz2
import pickle

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from pfl_fast.data.sources.mat import read_mat
from pfl_fast.errors import DataError
from tests.data.archives import pixels, write_mnist


def usps(labels, value=1.0):
    """LIBSVM's text: labels 1 to 10, values in [-1, 1]."""
    lines = [f"{label} " + " ".join(f"{i + 1}:{value}" for i in range(256)) for label in labels]
    return bz2.compress(("\n".join(lines) + "\n").encode())


def write_originals(raw):
    write_mnist(raw)
    svhn = pixels(1, 32, 32, 3, 4)
    savemat(raw / "train_32x32.mat", {"X": svhn, "y": np.array([[10], [1], [2], [9]])})
    savemat(raw / "test_32x32.mat", {"X": svhn[..., :1], "y": np.array([[10]])})
    (raw / "usps.bz2").write_bytes(usps([1, 10], 1.0))
    (raw / "usps.t.bz2").write_bytes(usps([3], -1.0))
    syn, one_hot = pixels(2, 3, 32, 32, 3), np.eye(10)[[4, 0]]
    content = {"train_data": syn[:2], "train_label": [[7, 8]], "test_data": syn[2:], "test_label": [[9]]}
    savemat(raw / "syn_number.mat", content)
    mnistm = pixels(3, 2, 28, 28, 3)
    content = {"train": mnistm, "label_train": one_hot, "test": mnistm[:1], "label_test": one_hot[:1]}
    savemat(raw / "mnistm_with_label.mat", content)
    return svhn, syn


def test_original_files(raw, load_real):
    svhn, syn = write_originals(raw)
    data = load_real("digits5")
    assert data.domains == ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
    assert np.bincount(data.domain).tolist() == [10, 5, 3, 3, 3]
    per_domain = {name: data.domain == i for i, name in enumerate(data.domains)}
    assert data.y[per_domain["SVHN"]].tolist() == [0, 1, 2, 9, 0]
    assert np.array_equal(data.x[per_domain["SVHN"]][3], svhn[..., 3])
    assert data.y[per_domain["USPS"]].tolist() == [0, 9, 2]
    assert data.x[per_domain["USPS"]].reshape(3, -1).mean(1).tolist() == [255, 255, 0]
    assert data.y[per_domain["SynthDigits"]].tolist() == [7, 8, 9]
    assert np.array_equal(data.x[per_domain["SynthDigits"]], syn)
    assert data.y[per_domain["MNIST_M"]].tolist() == [4, 0, 4]
    assert data.x.shape[1:] == (32, 32, 3)
    assert [int(data.test[rows].sum()) for rows in per_domain.values()] == [3, 1, 1, 1, 1]


def test_grey_is_repeated(raw, load_real):
    write_originals(raw)
    x = load_real("digits5", size=28).x[:10]
    assert np.array_equal(x[..., 0], x[..., 1])
    assert np.array_equal(x[..., 0], x[..., 2])


@pytest.mark.parametrize("in_parts", [False, True])
def test_fedbn_pickles(raw, load_real, said, in_parts):
    root = raw / "digit_dataset"
    shapes = {"USPS": (16, 16), "SVHN": (32, 32, 3)}
    for domain, shape in shapes.items():
        (root / domain / "partitions").mkdir(parents=True)
        for i in range(11):
            part = pickle.dumps((pixels(i, 2, *shape), np.full(2, i % 10)))
            (root / domain / "partitions" / f"train_part{i}.pkl").write_bytes(part)
        whole = pickle.dumps((pixels(1, 3, *shape), np.array([1, 2, 3])))
        if not in_parts:
            (root / domain / "train.pkl").write_bytes(whole)
        (root / domain / "test.pkl").write_bytes(whole)
    data = load_real("digits5")
    assert data.domains == ("SVHN", "USPS")
    expected = [i % 10 for i in range(11) for _ in range(2)] if in_parts else [1, 2, 3]
    assert data.y[(data.domain == 1) & ~data.test].tolist() == expected
    assert data.y[(data.domain == 1) & data.test].tolist() == [1, 2, 3]
    assert any("2 of 5 domains: SVHN, USPS" in line for line in said)


def test_synthdigits_in_svhns_format(raw, load_real):
    write_originals(raw)
    (raw / "syn_number.mat").unlink()
    for part in ("train", "test"):
        savemat(raw / f"synth_{part}_32x32.mat", {"X": pixels(9, 32, 32, 3, 2), "y": np.array([[3], [0]])})
    data = load_real("digits5")
    assert data.y[data.domain == 3].tolist() == [3, 0, 3, 0]


def test_indices_of_libsvm_are_honoured(raw, load_real):
    write_originals(raw)
    (raw / "usps.bz2").write_bytes(bz2.compress(b"3 2:1 256:-1\n"))
    data = load_real("digits5", size=16)
    image = data.x[(data.domain == 2) & ~data.test][0, ..., 0]
    assert (image[0, 1], image[15, 15]) == (255, 0)
    assert np.unique(np.delete(image.ravel(), [1, 255])).tolist() == [128], "an index that is not there means 0"


@pytest.mark.parametrize("values", [(0.0, 0.5, 1.0), (0, 100, 255.0)])
def test_float_images_are_converted(raw, load_real, said, values):
    write_originals(raw)
    train = np.array(values * (28 * 28)).reshape(1, 28, 28, 3)
    content = {"train": train, "label_train": [[1]], "test": pixels(3, 1, 28, 28, 3), "label_test": [[2]]}
    savemat(raw / "mnistm_with_label.mat", content)
    data = load_real("digits5", size=28)
    image = data.x[(data.domain == 4) & ~data.test][0]
    assert image[3, 4].tolist() == ([0, 128, 255] if max(values) == 1 else [0, 100, 255])
    assert ("multiplied by 255" in said[-1]) == (max(values) == 1)


@pytest.mark.parametrize("value", [-1.0, 0.5 + 2, np.nan])
def test_float_images_of_unknown_scale_are_refused(raw, refuses, value):
    write_originals(raw)
    train = np.full((1, 28, 28, 3), value)
    content = {"train": train, "label_train": [[1]], "test": pixels(3, 1, 28, 28, 3), "label_test": [[2]]}
    savemat(raw / "mnistm_with_label.mat", content)
    refuses("digits5", r"mnistm_with_label\.mat: images with values")


def test_ten_labels_per_row_must_be_one_hot(raw, refuses):
    write_originals(raw)
    content = {"train": pixels(3, 1, 28, 28, 3), "label_train": np.full((1, 10), 0.1)}
    savemat(raw / "mnistm_with_label.mat", content | {"test": content["train"], "label_test": content["label_train"]})
    refuses("digits5", "not one-hot")


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_files_are_read_as_scipy_reads_them(tmp_path, compressed):
    kinds = ("u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8")
    content = {f"v_{kind}": np.arange(24).reshape(2, 3, 4).astype(kind) for kind in kinds} | {"one": np.array([[7]])}
    others = {"text": "abc", "cell": np.array([1, "a"], object), "complex": np.array([1j]), "struct": {"a": 1}}
    savemat(tmp_path / "a.mat", others | content, do_compression=compressed)
    theirs = loadmat(tmp_path / "a.mat")
    for name, ours in zip(content, read_mat(tmp_path / "a.mat", tuple(content)), strict=True):
        np.testing.assert_array_equal(ours, theirs[name])
    for name in others:
        with pytest.raises(DataError, match=f"no variable {name} of numbers"):
            read_mat(tmp_path / "a.mat", (name,))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train_32x32.mat", b"", "not a readable .mat"),
        ("train_32x32.mat", b"garbage" * 99, "not a readable .mat"),
        ("usps.bz2", b"garbage", "not a readable file of USPS"),
        ("usps.bz2", usps([1])[:-5], "not a readable file of USPS"),
        ("usps.bz2", bz2.compress(b"1 257:0.5\n"), "not a readable file of USPS"),
        ("usps.t.bz2", usps([11]), r"labels outside 0 to 9"),
    ],
)
def test_broken_files(raw, refuses, file, content, message):
    write_originals(raw)
    (raw / file).write_bytes(content)
    refuses("digits5", message)


def test_a_mat_file_with_other_variables_is_refused(raw, refuses):
    write_originals(raw)
    savemat(raw / "test_32x32.mat", {"Z": np.zeros(3)})
    refuses("digits5", r"test_32x32\.mat: no variable X")


def test_pickles_that_are_no_pair(raw, refuses):
    for domain in ("MNIST", "SVHN"):
        (raw / domain).mkdir()
        for name in ("train", "test"):
            (raw / domain / f"{name}.pkl").write_bytes(pickle.dumps([1]))
    refuses("digits5", r"train\.pkl: expected a pair")
