import torch

from pfl_fast.engine.updates import adam_
from pfl_fast.methods.base import Method, Part, Phase, personal
from tests.engine import toys


def test_adam_is_that_of_torch():
    """Also for a stack in which one client began a step earlier."""
    torch.manual_seed(0)
    clients = [torch.randn(3, 2, dtype=torch.float64) for _ in range(2)]
    expected = [c.clone().requires_grad_() for c in clients]
    optimizers = [torch.optim.Adam([c], lr=0.1) for c in expected]
    stack, mean, square = torch.stack(clients), torch.zeros(2, 3, 2).double(), torch.zeros(2, 3, 2).double()
    steps = torch.zeros(2, dtype=torch.int64)
    for number in range(4):
        rows = slice(0, 1 if number == 0 else 2)
        gradients = torch.randn(2, 3, 2, dtype=torch.float64)
        adam_(stack[rows], gradients[rows], mean[rows], square[rows], steps[rows], lr=0.1)
        for row in range(*rows.indices(2)):
            expected[row].grad = gradients[row]
            optimizers[row].step()
    assert steps.tolist() == [4, 3]
    torch.testing.assert_close(stack, torch.stack([c.detach() for c in expected]), rtol=1e-12, atol=1e-12)


class Turning(Method):
    """Adam on the head in every second batch, SGD on the extractor in the others; at last all clients alone."""

    title = paper = summary = "test"

    def parts(self, backbone):
        return {
            "extractor": Part(backbone.extractor, receives="extractor", uploads="extractor"),
            "head": personal(backbone.head),
        }

    def phases(self, round):  # noqa: ARG002 called by name
        return [Phase(("extractor", "head"), self.loss, 2, turns=(("extractor",), ("head",)), adam={"head": 0.05})]

    def final_phases(self):
        return [Phase(("extractor",), self.loss, 1)]


def test_adam_counts_its_own_steps_whoever_trains_with_whom():
    with toys.ran(Turning, momentum=0.5) as alone, toys.ran(Turning, momentum=0.5, executor="batched") as stacked:
        assert toys.differences(toys.state_of(alone), toys.state_of(stacked), 1e-9) == {}


def test_what_a_client_makes_of_the_received_at_last_is_kept():
    for values in ({}, {"broadcast_to_all": True, "join_ratio": 0.4}):
        with toys.ran(Turning, **values) as running:
            server = running.server.tensors["extractor.1.weight"]
            own = [running.client(i).client.extractor[1].weight for i in range(running.data.clients)]
            assert all(not torch.equal(weight, server) for weight in own)
            assert [r["round"] for r in running.records] == [1, 2, 3]
