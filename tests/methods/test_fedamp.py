import math

import numpy as np
import pytest
import torch

from tests.engine import small_experiments as small
from tests.methods.compare import LONGER, assert_equals_naive, assert_same, distance, final, initial, model_of
from tests.methods.naive_servers import FedAMP

SETTINGS = {"alpha_k": 1.0, "sigma": 2.0}
CASES = {
    **LONGER,
    "strong": {"lam": 5.0, "rounds": 3, "join_ratio": 0.6},
    "weights with a sum above 1": {"alpha_k": 10.0, "sigma": 0.5, "rounds": 3},
    "hardly any attention": {"alpha_k": 0.1, "sigma": 5.0, "rounds": 3, "local_epochs": 2},
    "sigma of the round": {"sigma": None, "rounds": 3, "join_ratio": 0.6},
    "sigma of the round, little attention": {"sigma": None, "alpha_k": 0.1, "rounds": 3, "client_dropout": 0.4},
    "some clients, some lost": {"join_ratio": 0.8, "client_dropout": 0.5, "rounds": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedamp", {**SETTINGS, **CASES[case]}, FedAMP)


def test_without_the_proximal_term_it_is_local_to_the_bit():
    values = {"momentum": 0.9, "join_ratio": 0.6}
    alone = model_of(final("local", **values))
    assert_same(model_of(final("fedamp", lam=0, **SETTINGS, **values)), alone)
    assert distance(model_of(final("fedamp", lam=1, **SETTINGS, **values)), alone) > 1e-2


def vector(state, client, before=""):
    return torch.cat([t.flatten() for t in model_of(state, before, f"client {client}").values()])


def two_alike():
    """Clients 0 and 1 have nearly the same samples, client 2 has others."""
    dataset = small.features(12 + 9)
    dataset.x[4:8], dataset.y[4:8] = dataset.x[:4] + np.float32(0.1), dataset.y[:4]
    return {"sizes": (4, 4, 4), "dataset": dataset, "rounds": 1, "local_epochs": 8, "lr": 0.3}


def attention(**options):
    """Returns the weights of the others in client 0's cloud model, their squared distances, and the mean distance."""
    state = final("fedamp", lam=0, **options, **two_alike())
    w = [vector(state, i) for i in range(3)]
    towards = torch.stack([w[1] - w[0], w[2] - w[0]], dim=1)
    weights = torch.linalg.lstsq(towards, (vector(state, 0, "cloud_") - w[0])[:, None]).solution.flatten()
    squares = (towards**2).sum(0)
    return weights.tolist(), squares.tolist(), (squares.sum() + ((w[1] - w[2]) ** 2).sum()).item() / 3


def test_the_cloud_model_attends_to_similar_clients():
    weights, squares, _ = attention(alpha_k=0.2, sigma=1.0)
    assert squares[0] < squares[1]
    assert weights == pytest.approx([0.2 * math.exp(-square) for square in squares], rel=1e-6)
    assert weights[0] > weights[1] > 0


def test_sigma_is_the_mean_squared_distance_if_none_is_given():
    weights, squares, mean = attention(alpha_k=0.01)
    assert weights == pytest.approx([0.01 / mean * math.exp(-square / mean) for square in squares], rel=1e-6)


def test_weights_with_a_sum_above_1_are_normalised():
    weights, squares, _ = attention(alpha_k=50.0, sigma=1.0)
    assert sum(weights) == pytest.approx(1)
    assert weights[0] / weights[1] == pytest.approx(math.exp(squares[1] - squares[0]), rel=1e-6)


def test_the_proximal_term_pulls_towards_the_cloud_model():
    """In the first round the cloud model is the common initial model."""
    start = model_of(initial("fedamp", **SETTINGS))
    distances = [
        distance(model_of(final("fedamp", lam=lam, rounds=1, local_epochs=3, **SETTINGS)), start) for lam in (0, 1, 5)
    ]
    assert distances[0] > distances[1] > distances[2]


@pytest.mark.parametrize("sigma", [2.0, None])
def test_the_cloud_model_of_a_single_client_is_its_own_model(sigma):
    state = final("fedamp", sizes=(9,), sigma=sigma)
    assert_same(model_of(state, "cloud_"), model_of(state))
