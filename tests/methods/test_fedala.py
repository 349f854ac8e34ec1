import pytest
import torch

from tests.engine import small_experiments as small
from tests.engine.test_executors import EXECUTORS, outcome
from tests.methods.compare import LONGER, assert_equals_naive, assert_same, distance, final, model_of, part_of
from tests.methods.naive_servers import FedALA

SHORT = {"start_epochs": 3}
CASES = {
    **{case: {**SHORT, **values} for case, values in LONGER.items()},
    "two layers": {"layer_idx": 2, "rounds": 4, **SHORT},
    "all layers, batch norm": {"layer_idx": 3, "rounds": 3, "model": small.with_batch_norm(), **SHORT},
    "until the loss converges": {"start_epochs": 15, "rounds": 3, "threshold": 0.05},
    "never converges": {"start_epochs": 13, "rounds": 3, "threshold": 0.0},
    "small steps": {"eta": 0.1, "rounds": 3, "local_epochs": 2, **SHORT},
    "some batches": {"rand_percent": 40, "rounds": 3, "batch_size": 2, **SHORT},
    "all batches": {"rand_percent": 100, "rounds": 4, "join_ratio": 0.6, **SHORT},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedala", CASES[case], FedALA)


def test_the_first_round_equals_fedavg_to_the_bit():
    server = [model_of(final(m, rounds=1, momentum=0.9), owner="server") for m in ("fedala", "fedavg")]
    assert_same(*server)


def test_weights_fixed_at_1_take_the_global_model():
    """Without shuffling: epochs after the training of the weights have other numbers."""
    values = {"shuffle": False, "momentum": 0.9, "rounds": 3}
    mine, theirs = final("fedala", eta=0, **SHORT, **values), final("fedavg", **values)
    assert_same(model_of(mine, owner="server"), model_of(theirs, owner="server"), 1e-9)
    adapted = final("fedala", **SHORT, **values)
    assert distance(model_of(adapted, owner="server"), model_of(theirs, owner="server")) > 1e-3


def test_a_single_client_equals_local():
    values = {"shuffle": False, "momentum": 0.9, "sizes": (9,), "rounds": 3}
    assert_same(model_of(final("fedala", **SHORT, **values)), model_of(final("local", **values)), 1e-9)


@pytest.mark.parametrize("layers", [1, 2])
def test_weights_belong_to_the_last_layers_and_stay_between_0_and_1(layers):
    weights = part_of(final("fedala", layer_idx=layers, rounds=4, eta=20.0, **SHORT), "ala.weights", "client 0")
    shapes = {tuple(w.shape) for w in weights.values()}
    assert shapes == {(3, 5), (3,)} | ({(5, 6), (5,)} if layers == 2 else set())
    values = torch.cat([w.flatten() for w in weights.values()])
    assert values.min() >= 0
    assert values.max() <= 1
    assert (values < 1).any()


def test_adapting_lowers_the_loss():
    """Compares the mixture with the global model."""
    with small.trained("fedala", rounds=3, start_epochs=12) as running:
        mine = theirs = 0.0
        for i in range(running.data.clients):
            x, y = running.data.take(running.data.indices("train", i))
            client = running.client(i)
            mine += torch.nn.functional.cross_entropy(client(x), y).item()
            logits = client.client.global_head(client.client.global_extractor(x))
            theirs += torch.nn.functional.cross_entropy(logits, y).item()
    assert mine < theirs - 1e-2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_client_stops_training_weights_when_its_own_loss_has_converged(executor):
    """Under every executor; some clients stop early, others continue."""
    values = {"start_epochs": 15, "threshold": 0.05, "join_ratio": 0.8}
    sequential = outcome("fedala", values)
    mine = outcome("fedala", {**values, **EXECUTORS[executor]})
    assert small.differences(mine[0], sequential[0], 1e-9) == {}
    small.assert_same_records(mine[1], sequential[1], 1e-9)
