"""Options of phases and parts: same results with every executor, and as documented."""

import pytest
import torch
from torch import nn

from pfl_fast.methods.base import Method, Phase, personal, shared
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


class Example(Method):
    """Shared extractor and personal head; subclasses define the phases."""

    title, paper, summary = "Example", "", ""

    def parts(self, backbone):
        return {"extractor": shared(backbone.extractor, "extractor"), "head": personal(backbone.head)}


class Adam(Example):
    """Trains the head by Adam, the extractor by SGD."""

    def phases(self, _round):
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, adam={"head": 0.05})]


class AlternatingAdam(Example):
    """Alternates steps of the extractor by SGD and steps of the head by Adam."""

    def phases(self, _round):
        rotation = (("extractor",), ("head",))
        return [
            Phase(("extractor", "head"), self.loss, self.context.local_epochs, rotation=rotation, adam={"head": 0.05})
        ]


class TwoPhases(Example):
    """Trains the head, then the extractor by Adam."""

    def phases(self, round):
        return [
            Phase(("head",), self.loss, self.context.local_epochs),
            Phase(("extractor",), self.loss, round, adam={"extractor": 0.02}),
        ]


class Hooks(Example):
    """Halves gradients, freezes parameters at random, clips values after steps and rounds them after the phase."""

    def phases(self, _round):
        return [
            Phase(
                ("extractor", "head"),
                self.loss,
                self.context.local_epochs,
                edit_gradients=lambda _, gradients: {name: g / 2 for name, g in gradients.items()},
                update_mask=lambda _, seed: {"head.weight": seed % 2 == 0, "extractor.1.bias": seed % 3 == 0},
                after_step=lambda client: {"head.bias": client["head.bias"].clamp(-0.1, 0.1)},
                after=lambda client, _: {"extractor.1.weight": (client["extractor.1.weight"] * 64).round() / 64},
            )
        ]


class WithFinalRound(Example):
    """Fine-tunes all parameters in a final round."""

    def final_phases(self):
        return [Phase(("extractor", "head"), self.loss, 2)]


class UploadOnly(Example):
    """Uploads the bias of the extractor, but does not receive it."""

    def parts(self, backbone):
        extractor = shared(backbone.extractor, "extractor", upload_only=["1.bias"])
        return {"extractor": extractor, "head": personal(backbone.head)}


METHODS = [Adam, AlternatingAdam, TwoPhases, Hooks, WithFinalRound, UploadOnly]
CASES = {
    "plain": {},
    "two epochs, some clients, momentum": {
        "local_epochs": 2,
        "join_ratio": 0.6,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "keep_momentum": True,
    },
}
EXECUTORS = [{"executor": "threads", "workers": 2}, {"executor": "batched"}, {"executor": "batched", "stack": 2}]


def outcome(method, values):
    with small.trained(method, **values) as running:
        return small.state_of(running), small.untimed_records(running)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_executor_has_the_same_results(method, case):
    expected = outcome(method, CASES[case])
    for executor in EXECUTORS:
        got = outcome(method, {**CASES[case], **executor})
        assert small.differences(got[0], expected[0], 1e-9) == {}, executor
        small.assert_same_records(got[1], expected[1], 1e-9)


def by_torch(running, client, steps, epochs):
    """Trains one client for one round; ``steps(epoch, batch)`` names the torch optimizers that step."""
    model = running.part_table.new_client(torch.device("cpu")).train()
    optimizers = {
        "extractor": torch.optim.SGD(model.extractor.parameters(), 0.1),
        "head": torch.optim.SGD(model.head.parameters(), 0.1),
        "head by adam": torch.optim.Adam(model.head.parameters(), 0.05),
        "extractor by adam": torch.optim.Adam(model.extractor.parameters(), 0.02),
    }
    for epoch in range(epochs):
        for number, (x, y, _) in enumerate(running.data.batches(client, 1, epoch)):
            model.zero_grad()
            nn.functional.cross_entropy(model.head(model.extractor(x)), y).backward()
            for name in steps(epoch, number):
                optimizers[name].step()
    return model.state_dict()


@pytest.mark.parametrize(
    ("method", "steps", "epochs"),
    [
        (Adam, lambda _epoch, _batch: ["extractor", "head by adam"], 2),
        (AlternatingAdam, lambda _epoch, batch: ["head by adam"] if batch % 2 else ["extractor"], 2),
        (TwoPhases, lambda epoch, _batch: ["extractor by adam"] if epoch == 2 else ["head"], 3),
    ],
)
def test_steps_equal_those_of_torchs_optimizers(method, steps, epochs):
    running = small.experiment(method, local_epochs=2, rounds=1)
    run = running.round
    for client in range(5):
        expected = by_torch(running, client, steps, epochs)
        view = run.state.clients.view(client, run.state.server)
        trained = small.train_locally(running, client, view)
        mine = {name: trained[name].clone() for name in expected}
        assert small.differences(mine, expected, 1e-9) == {}
    running.close()


def test_masked_parameters_and_their_momentum_do_not_change():
    class Masked(Example):
        def phases(self, _round):
            frozen = torch.tensor(False)
            update_mask = lambda _client, _seed: {"head.weight": frozen}  # noqa: E731
            return [Phase(("extractor", "head"), self.loss, 1, update_mask=update_mask)]

    values = {"momentum": 0.9, "weight_decay": 0.1, "keep_momentum": True}
    with small.trained(Masked, **values) as running:
        state = small.state_of(running)
        common = running.part_table.common
        for client in range(5):
            assert torch.equal(state[f"client {client} head.weight"], common["head.weight"])
            assert not torch.equal(state[f"client {client} head.bias"], common["head.bias"])
            assert (state[f"client {client} momentum.head.weight"] == 0).all()


@pytest.mark.parametrize("values", [{}, {"join_ratio": 0.6}, {"join_ratio": 0.4, "broadcast_to_all": True}])
def test_in_the_final_round_all_clients_train_and_nothing_is_averaged(values):
    with small.trained(Example, **values) as running:
        plain = small.state_of(running)
    with small.trained(WithFinalRound, tests=11, **values) as running:
        state, last = small.state_of(running), running.records[-1]
        assert [r["round"] for r in running.records] == [1, 2, 3]
        assert last["clients_trained"] == 5
        assert (last["uploaded_values"], last["samples"]) == (0, 2 * sum(small.RAGGED))
        assert last["test_accuracy_after_agg"] is None
        correct = 0
        for client in range(5):
            assert not torch.equal(state[f"client {client} head.weight"], plain[f"client {client} head.weight"])
            x, y = running.data.take(running.data.indices("test", client))
            correct += int((running.client(client)(x).argmax(1) == y).sum())
        assert last["test_accuracy_after_local"] == pytest.approx(correct / (5 * 11)), "the stored models were tested"
        assert not torch.equal(state["client 0 extractor.1.weight"], state["client 1 extractor.1.weight"])


def test_upload_only_tensors_are_averaged_but_not_received():
    with small.trained(UploadOnly) as running:
        state = small.state_of(running)
        biases = [state[f"client {client} extractor.1.bias"] for client in range(5)]
        sizes = torch.tensor(small.RAGGED, dtype=torch.float64)
        mean = (torch.stack(biases) * (sizes / sizes.sum())[:, None]).sum(0)
        assert torch.allclose(state["server extractor.1.bias"], mean)
        assert len({tuple(bias.tolist()) for bias in biases}) == 5
        assert torch.equal(state["client 3 extractor.1.weight"], state["server extractor.1.weight"])
