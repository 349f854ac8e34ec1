"""Models used in tests: the clients' after local training, and the server's."""

import pytest
import torch.nn.functional as F  # noqa: N812

from tests.engine import small_experiments as small
from tests.methods import naive_personal, naive_regularised, naive_servers
from tests.methods.compare import part_of
from tests.methods.naive import Federation

FEDERATIONS = {
    "fedprox": naive_regularised.FedProx,
    "scaffold": naive_regularised.Scaffold,
    "feddyn": naive_regularised.FedDyn,
    "moon": naive_regularised.Moon,
    "fedproto": naive_regularised.FedProto,
    "fedphp": naive_regularised.FedPHP,
    "per-fedavg": naive_personal.PerFedAvg,
    "pfedme": naive_personal.PFedMe,
    "ditto": naive_personal.Ditto,
    "fedrep": naive_personal.FedRep,
    "fedrod": naive_personal.FedRoD,
    "apfl": naive_personal.APFL,
    "lg-fedavg": naive_personal.LGFedAvg,
    "fedamp": naive_servers.FedAMP,
    "fedfomo": naive_servers.FedFomo,
    "fedala": naive_servers.FedALA,
    "pfedvem": naive_servers.PFedVEM,
}
SHARED = ["fedavg-ft", "fedprox", "scaffold", "feddyn", "moon", "per-fedavg", "pfedme", "ditto", "fedrod", "fedphp"]
SHARED += ["apfl", "fedala", "pfedvem"]


@pytest.mark.parametrize("method", FEDERATIONS)
def test_after_local_tests_use_the_locally_trained_models(method):
    values = {"eval_at": "after_local", "join_ratio": 0.6, "model": small.with_batch_norm(), "lr_decay": 0.5}
    tests = {}

    class Tested(FEDERATIONS[method]):
        def train(self, client, number):
            super().train(client, number)
            x, y = self.data.take(self.data.indices("test", client.number))
            # FedALA adapts only before tests after aggregation.
            predict = Federation.predict if method == "fedala" else type(self).predict
            if number == self.settings.rounds:
                tests[client.number] = F.cross_entropy(predict(self, client.number, x), y).item()

    untrained = small.experiment(method, **values)
    Tested(method, untrained).rounds()
    with small.trained(method, **values) as running:
        assert running.records[-1]["test_loss_after_local"] == pytest.approx(sum(tests.values()) / len(tests), rel=1e-6)


@pytest.mark.parametrize("method", SHARED)
def test_global_accuracy_uses_the_servers_extractor_and_head(method):
    values = {"tests": 9, "lr": 0.5}
    with small.trained(method, **values) as running:
        record = next(r for r in running.records if r["round"] == running.settings.rounds)
        x, y = running.data.take(running.data.union("test"))
        state = small.state_of(running)
    server = {
        f"{part}.{name.removeprefix('server ')}": t
        for part in ("extractor", "head")
        for name, t in part_of(state, part, "server").items()
    }
    model = small.plain().double()
    model.load_state_dict(server)
    assert record["test_accuracy_global"] == (model(x).argmax(1) == y).double().mean().item()


@pytest.mark.parametrize("method", ["fedproto", "fedamp", "fedrep", "fedfomo", "lg-fedavg", "fedbabu"])
def test_global_accuracy_is_none_if_the_server_has_no_whole_model(method):
    with small.trained(method) as running:
        assert running.records[0]["test_accuracy_global"] is None
