import numpy as np
import pytest
import torch
from torch import nn

from pfl_fast.data.synthetic import synthetic
from pfl_fast.randomness import torch_seed

MODALITIES = [
    ("images", (3, 16, 16)),
    ("images", (1, 9, 11)),
    ("text", (23,)),
    ("features", (5,)),
    ("features", (2, 3)),
]


@pytest.mark.parametrize(("modality", "shape"), MODALITIES)
@pytest.mark.parametrize("samples", [1, 2, 613])
@pytest.mark.parametrize("domains", [0, 3])
def test_shape_type_and_balance(modality, shape, samples, domains):
    data = synthetic(samples, shape, 7, modality=modality, domains=domains)
    assert (len(data), data.modality, data.input_shape) == (samples, modality, shape)
    assert np.ptp(np.bincount(data.y, minlength=7)) <= 1
    assert len(data.classes) == 7
    assert data.test.sum() == samples // 6
    assert data.source == "synthetic"
    if domains:
        assert np.ptp(np.bincount(data.domain, minlength=3)) <= 7
        pairs = {*zip(data.y.tolist(), data.domain.tolist(), strict=True)}
        assert len(pairs) == min(samples, 21)
    else:
        assert data.domain is None


@pytest.mark.parametrize(("modality", "shape"), MODALITIES)
def test_the_seed_decides(modality, shape):
    a, b, c = (synthetic(50, shape, 3, modality=modality, seed=seed, domains=2) for seed in (1, 1, 2))
    assert np.array_equal(a.x, b.x)
    assert np.array_equal(a.y, b.y)
    assert not np.array_equal(a.x, c.x)


def test_tokens_are_in_the_vocabulary():
    data = synthetic(300, (31,), 4, modality="text", vocabulary=97)
    assert (data.x.min(), data.x.max() < 97, data.vocabulary) == (0, True, 97)
    assert (data.x[:, 0] == 1).all()
    padding = data.x == 0
    assert (padding[:, 1:] >= padding[:, :-1]).all()


def test_large_images_are_drawn_in_squares():
    data = synthetic(3, (3, 131, 67), 2)
    assert data.x.shape == (3, 131, 67, 3)
    assert np.array_equal(data.x[:, 0, 0], data.x[:, 2, 2])


def accuracies(data, epochs=3):
    """Test accuracy of a small CNN after each epoch."""
    x = torch.from_numpy(data.x).permute(0, 3, 1, 2) / 127.5 - 1
    x = x.contiguous()
    y, test = torch.from_numpy(data.y), torch.from_numpy(data.test)
    train = torch.nonzero(~test).flatten()
    with torch_seed(0):
        model = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )
        model(x[:1])
        result = []
        for _ in range(epochs):
            for rows in train[torch.randperm(len(train))].split(50):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                parameters = list(model.parameters())
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.data -= 0.2 * gradient
            with torch.no_grad():
                result.append((model(x[test]).argmax(1) == y[test]).float().mean().item())
    return result


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("domains", [0, 4])
def test_images_are_learned_in_several_epochs(domains):
    found = accuracies(synthetic(2400, (3, 16, 16), 10, domains=domains))
    assert found[0] < 0.95
    assert found[-1] > 0.3
    assert found[-1] > found[0]


def test_features_can_be_learned():
    """The nearest class mean of the training part classifies better than chance, but not perfectly."""
    data = synthetic(1200, (20,), 4, modality="features")
    means = np.stack([data.x[~data.test & (data.y == c)].mean(0) for c in range(4)])
    distance = ((data.x[data.test, None] - means) ** 2).sum(2)
    assert 0.5 < (distance.argmin(1) == data.y[data.test]).mean() < 1


def test_texts_can_be_learned():
    """Word frequencies of the training classes classify better than chance, but not perfectly."""
    data = synthetic(1200, (40,), 4, modality="text", vocabulary=500)
    counts = np.stack([np.bincount(row, minlength=500) for row in data.x])
    uses = np.stack([counts[~data.test & (data.y == c)].sum(0) + 1 for c in range(4)])
    likelihood = counts[data.test] @ np.log(uses / uses.sum(1, keepdims=True)).T
    assert 0.5 < (likelihood.argmax(1) == data.y[data.test]).mean() < 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 0}, "must be positive"),
        ({"classes": 0}, "must be positive"),
        ({"shape": (3, 0, 4)}, "must be positive"),
        ({"shape": ()}, "must be positive"),
        ({"shape": (2, 4, 4)}, "1 or 3"),
        ({"shape": (4, 4)}, "1 or 3"),
        ({"modality": "image"}, "did you mean 'images'"),
        ({"modality": "text"}, "shape"),
        ({"modality": "text", "shape": (5,), "vocabulary": 5}, "at least 13 tokens"),
    ],
)
def test_impossible_requests(wrong, message):
    with pytest.raises(ValueError, match=message):
        synthetic(**{"samples": 10, **wrong})
