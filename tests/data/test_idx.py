import gzip

import numpy as np
import pytest

from tests.data.archives import idx, pixels, write_mnist


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
def test_mnist(raw, load_real, zipped, place):
    x, y = write_mnist(raw / place, zipped=zipped)
    data = load_real("mnist")
    assert np.array_equal(data.x[..., 0], x)
    assert data.x.shape == (10, 28, 28, 1)
    assert data.y.tolist() == y.tolist()
    assert data.test.sum() == 3
    assert data.test[-3:].all()
    assert (data.mean, data.std) == ((0.5,), (0.5,))


def test_images_are_resized(raw, load_real):
    write_mnist(raw)
    assert load_real("mnist", size=31).x.shape == (10, 31, 31, 1)


def test_mnist_is_not_taken_for_fashion_mnist(raw, load_real, refuses):
    write_mnist(raw)
    refuses("fashion-mnist", "fashion-mnist: not found")
    write_mnist(raw / "fashion-mnist")
    assert load_real("fashion-mnist").classes[0] == "t-shirt"
    refuses("mnist", "mnist: not found", folder=raw / "fashion-mnist")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train_labels_idx1_ubyte": idx(np.arange(6))}, "7 images but 6 labels"),
        ({"train_labels_idx1_ubyte": idx(np.full(7, 10))}, r"7 labels outside 0 to 9 \(the first is 10, of sample 0\)"),
        ({"train_images_idx3_ubyte": idx(pixels(0, 7, 28, 28))[:-1]}, "truncated"),
        ({"train_images_idx3_ubyte": b""}, "not an idx file"),
        ({"t10k_images_idx3_ubyte": b"\0\0\x0d\x03" + b"\0" * 30}, "not an idx file of bytes"),
        ({"t10k_images_idx3_ubyte": idx(np.arange(3))}, r"images of shape \(3,\)"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_broken_files(raw, refuses, replaced, message, zipped):
    write_mnist(raw, zipped=zipped, **replaced)
    refuses("mnist", rf"{raw}.*{message}")


@pytest.mark.parametrize(
    "content", [b"", b"garbage", gzip.compress(bytes(999))[:-9]], ids=["empty", "garbage", "cut short"]
)
def test_broken_gzip(raw, refuses, content):
    write_mnist(raw)
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    refuses("mnist", r"t10k-images-idx3-ubyte\.gz: not")


def test_no_samples_at_all(raw, refuses):
    write_mnist(raw, 0, 0)
    refuses("mnist", "no samples")
