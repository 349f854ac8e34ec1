"""Sources read real files."""

import numpy as np
import pytest


@pytest.fixture
def load_shared(real_data, load_real):
    return lambda name, **more: load_real(name, folder=real_data, **more)


def test_tiny_imagenet(load_shared, said):
    data = load_shared("tiny")
    assert data.x.shape == (10000, 64, 64, 3)
    assert np.bincount(data.y[~data.test]).tolist() == [150] * 50
    assert np.bincount(data.y[data.test]).tolist() == [50] * 50
    assert data.classes[0] == "goldfish"
    # goldfish are orange: more red than blue
    red, _, blue = data.x[data.y == 0].reshape(-1, 3).mean(0)
    assert red > blue + 40
    assert any("50 of 200 classes" in line for line in said)


def test_ag_news(load_shared):
    data = load_shared("agnews")
    assert data.x.shape == (18248, 200)
    assert np.bincount(data.y[data.test]).tolist() == [1900] * 4
    assert data.x.max() == data.vocabulary - 1
    assert (data.x[:, 0] == 1).all()
    assert 30 < (data.x != 0).sum(1).mean() < 60


def test_mnist(load_shared):
    data = load_shared("mnist")
    assert data.x.shape == (70000, 28, 28, 1)
    assert np.bincount(data.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(data.x[~data.test].mean() / 255 - 0.1307) < 1e-4


def test_cifar10(load_shared):
    data = load_shared("cifar10")
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test.sum() == 4000


def test_digits_of_four_domains(load_shared):
    data = load_shared("digits5", size=28)
    assert data.domains == ("mnist", "mnist_m", "usps", "svhn")
    assert np.bincount(data.domain).tolist() == [9298] * 4
    colour = [np.ptp(data.x[data.domain == d][:500].astype(int), axis=3).mean() for d in range(4)]
    assert colour[0] == colour[2] == 0
    assert min(colour[1], colour[3]) > 5


def test_office_caltech10(load_shared):
    data = load_shared("office-caltech10", size=64)
    assert np.bincount(data.domain).tolist() == [958, 1123, 157, 295]
    # Amazon's pictures have a white background
    corner = [data.x[data.domain == d, 0, 0].mean() for d in range(4)]
    assert corner[0] > 240
    assert corner[3] < 220
