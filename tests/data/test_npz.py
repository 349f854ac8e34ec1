import numpy as np
import pytest

from pfl_fast.data.sources.names import COARSE_OF_FINE
from tests.data.archives import pixels


def arrays(n=5, shape=(28, 28), prefix="", classes=10):
    return {
        f"{prefix}x_train": pixels(1, n, *shape),
        f"{prefix}y_train": np.arange(n) % classes,
        f"{prefix}x_test": pixels(2, 2, *shape),
        f"{prefix}y_test": np.arange(2).reshape(-1, 1),
    }


def test_one_data_set(raw, load_real):
    content = arrays()
    np.savez(raw / "mnist.npz", **content)
    data = load_real("mnist")
    assert np.array_equal(data.x[..., 0], np.concatenate([content["x_train"], content["x_test"]]))
    assert data.y.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert data.test.tolist() == [False] * 5 + [True] * 2


def test_cifar10_is_not_taken_for_cifar100(raw, load_real, refuses):
    np.savez(raw / "cifar100.npz", **arrays(7, (32, 32, 3)))
    refuses("cifar10", "cifar10: not found")
    assert load_real("cifar100-coarse").y.tolist() == [COARSE_OF_FINE[i] for i in [*range(7), 0, 1]]


def test_groups_of_domains(raw, load_real, said):
    np.savez(raw / "digits5.npz", **arrays(3, (28, 28, 3), "usps_"), **arrays(1, (32, 32), "mnist_m_"))
    data = load_real("digits5")
    assert data.domains == ("usps", "mnist_m")
    assert data.domain.tolist() == [0] * 5 + [1] * 3
    assert data.x.shape == (8, 32, 32, 3)
    assert any("2 of 5 domains" in line for line in said)


def test_one_group_of_all_domains(raw, load_real):
    x, domain = pixels(1, 7, 256, 256, 3), np.array([0, 1, 0, 1, 1, 0, 1])
    names = {"domains": np.array(["dslr", "webcam"]), "classes": np.array(list("abc"))}
    np.savez(raw / "office_caltech10_small.npz", x=x, y=np.arange(7) % 3, domain=domain, **names)
    data = load_real("office-caltech10")
    assert data.domains == ("dslr", "webcam")
    assert np.array_equal(data.x, x[np.argsort(domain, kind="stable")])
    assert data.y.tolist() == [0, 2, 2, 1, 0, 1, 0]
    assert data.classes == ("a", "b", "c")
    assert not data.test.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": pixels(1, 4, 28, 28)}, "4 images but 5 labels"),
        ({"y_test": np.array([0, -1])}, "1 labels outside 0 to 9"),
        ({"y_test": np.array([0, np.nan])}, "not (whole|real) numbers"),
        ({"y_test": np.array(["a", "b"])}, "not (whole|real) numbers"),
        ({"x_test": np.zeros((2, 28, 28))}, r"x_test\): the images are float64"),
        ({"x_test": np.full((2, 28, 28), np.nan)}, "hold NaN"),
        ({"x_test": np.zeros((2, 784), np.uint8)}, "images of shape"),
        ({"x_test": np.array([print, print])}, "not a readable npz file of plain arrays"),
    ],
)
def test_bad_arrays(raw, refuses, change, message):
    np.savez(raw / "mnist.npz", **arrays() | change)
    refuses("mnist", rf"mnist\.npz.*{message}")


@pytest.mark.parametrize("missing", ["x_train", "y_test"])
def test_missing_arrays(raw, refuses, missing):
    content = arrays()
    del content[missing]
    np.savez(raw / "mnist.npz", **content)
    refuses("mnist", f"no {missing} in it; it has")


@pytest.mark.parametrize("keep", [0, 50, 3000])
def test_truncated(raw, refuses, keep):
    np.savez(raw / "mnist.npz", **arrays())
    (raw / "mnist.npz").write_bytes((raw / "mnist.npz").read_bytes()[:keep])
    refuses("mnist", r"mnist\.npz: not a readable (npz|zip)")


@pytest.mark.parametrize(
    "change",
    [{"domain": np.array([0, 2])}, {"domain": np.array([0])}, {"y": np.arange(3)}, {"test": np.array([True])}],
)
def test_bad_domains(raw, refuses, change):
    content = {"x": pixels(1, 2, 9, 9, 3), "y": np.arange(2), "domain": np.arange(2)}
    names = {"domains": np.array(["a", "b"]), "classes": np.array(["c", "d"])}
    np.savez(raw / "office_caltech10.npz", **content | names | change)
    refuses("office-caltech10", r"office_caltech10\.npz", size=9)
