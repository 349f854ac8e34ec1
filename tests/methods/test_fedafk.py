import math
from copy import deepcopy

import pytest
import torch

from pfl_fast.assembly import resolve
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Batch, PerSampleCache, Phase, RunContext
from pfl_fast.methods.fedafk import FedAFK, FedAFKOptions
from pfl_fast.methods.local import Local
from tests.engine import small_experiments as small
from tests.engine.test_resume import same
from tests.methods.compare import COMMON, assert_equals_naive
from tests.methods.naive_fedafk import AFKFederation

ALL_AT_ONCE = {"model": small.with_batch_norm(), "local_epochs": 2, "momentum": 0.9, "join_ratio": 0.6}
SWITCHES = {
    "everything at once": ALL_AT_ONCE,
    "no mixing": {"afa": False, **ALL_AT_ONCE},
    "no transfer": {"kt": False, **ALL_AT_ONCE},
    "neither": {"afa": False, "kt": False, **ALL_AT_ONCE},
    "another lam": {"lam": 0.7},
    "only transfer": {"lam": 1},
    "mostly global": {"mu_init": 0.1, "lr": 0.01},
    "all global": {"mu_init": 0},
    "all local": {"mu_init": 1},
    "two points": {"mu_grad": "two_point", **ALL_AT_ONCE},
    "two points, phased": {"mu_grad": "two_point", "schedule": "phased", "model": small.with_batch_norm()},
    "reused gradients": {"mu_grad": "reuse", **ALL_AT_ONCE},
    "the other direction": {"kl": "global_local"},
    "squared difference": {"kl": "none_softmax"},
    "phased": {"schedule": "phased", **ALL_AT_ONCE},
    "phased, no batch norm": {"schedule": "phased", "local_epochs": 2},
    "phased, no mixing": {"schedule": "phased", "afa": False, "local_epochs": 2},
    "phased, no transfer": {"schedule": "phased", "kt": False, "model": small.with_batch_norm()},
    "head once": {"head_phase": "per_round", "local_epochs": 3},
    "mu not clipped": {"mu_clip": False, "lr": 1.0},
    "own random heads": {"random_head": "per_client", "join_ratio": 0.6},
    "own initial models": {"client_init": "own", "join_ratio": 0.6, "model": small.with_batch_norm()},
    "global head": {"global_head": True, **ALL_AT_ONCE, "weight_decay": 0.05},
    "global head, no mixing": {"global_head": True, "afa": False, "head_phase": "per_round", "local_epochs": 2},
}


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedafk", COMMON[case], AFKFederation)


@pytest.mark.parametrize("case", SWITCHES)
def test_two_rounds_equal_the_naive_implementation_under_every_switch(case):
    assert_equals_naive("fedafk", SWITCHES[case], AFKFederation)


def test_mu_is_recorded():
    running, expected = assert_equals_naive("fedafk", {"local_epochs": 2}, AFKFederation)
    pairs = [pair for client in expected.clients for pair in client.mus]
    recorded = sum(r["mu"] * r["samples"] for r in running.records)
    assert recorded == pytest.approx(sum(n * mu for n, mu in pairs))
    assert all(0 < r["mu"] < 1 and r["mu"] != 0.5 for r in running.records)


@pytest.fixture
def client():
    """A client with two different extractors, its method and a batch."""
    running = small.experiment("fedafk", model=small.with_batch_norm())
    client = deepcopy(running.part_table.client)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for part in (client.extractor, client.global_extractor):
            for parameter in part.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        client.mixing.mu.fill_(0.3)
    x, y = running.data.take(running.data.indices("train", 0))
    yield client, running.method, Batch(x, y, torch.tensor(0))
    running.close()


def derivative(function, parameter, place, step=1e-6):
    """Returns a derivative by finite differences."""
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            parameter.view(-1)[place] += sign * step
            values.append(function().item())
            parameter.view(-1)[place] -= sign * step
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("options", [{}, {"mu_grad": "two_point"}])
def test_the_gradient_of_mu_is_the_derivative_of_the_loss_at_the_mixture(client, options):
    module, method, batch = client
    method.options = FedAFKOptions(**options)
    (gradient,) = torch.autograd.grad(method.both_losses(module, batch)[0], [module.mixing.mu])
    expected = derivative(lambda: method.both_losses(module, batch)[0], module.mixing.mu, 0)
    assert abs(gradient) > 1e-3
    assert gradient.item() == pytest.approx(expected)


def test_the_gradient_of_the_personal_extractor_is_mu_times_the_gradient_at_the_mixture(client):
    module, method, batch = client
    weight = module.extractor[1].weight
    (gradient,) = torch.autograd.grad(method.both_losses(module, batch)[0], [weight])
    for place in (0, 7, 29):
        expected = derivative(lambda: method.both_losses(module, batch)[0], weight, place)
        assert gradient.view(-1)[place].item() == pytest.approx(expected, abs=1e-8)
    method.options = FedAFKOptions(afa=False)
    mu, other = module.mixing.mu.detach(), module.global_extractor.state_dict()
    bar = deepcopy(module)
    for name, parameter in bar.extractor.named_parameters():
        parameter.data = mu * parameter.data + (1 - mu) * other[name]
    (at_mixture,) = torch.autograd.grad(method.both_losses(bar, batch)[0], [bar.extractor[1].weight])
    torch.testing.assert_close(gradient, mu * at_mixture)


def test_only_the_random_heads_loss_trains_the_global_extractor(client):
    module, method, batch = client
    weights = list(module.global_extractor.parameters())
    mine = torch.autograd.grad(method.both_losses(module, batch)[0], weights)
    theirs = torch.autograd.grad(method.global_loss(module, batch)[0], weights)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_the_gradient_of_mu_from_both_extractors(client):
    """``<theta_i - theta_G, mu g_i + (1 - mu) g_G>`` for one parameter of two numbers."""
    _, method, _ = client
    method.extractor_parameters = ["extractor.w"]
    tensors = {"extractor.w": torch.tensor([3.0, 1]), "global_extractor.w": torch.tensor([1.0, 2])}
    gradients = {"extractor.w": torch.tensor([4.0, 8]), "global_extractor.w": torch.tensor([8.0, 4])}
    got = method.mu_from_both_gradients({**tensors, "mixing.mu": torch.tensor(0.25)}, gradients)
    assert got.pop("mixing.mu").item() == 2 * (0.25 * 4 + 0.75 * 8) - 1 * (0.25 * 8 + 0.75 * 4)
    assert got == gradients


def test_both_directions_of_the_divergence_against_values_by_hand():
    """Features whose softmax is (1/4, 3/4) against (1/2, 1/2)."""
    f_i, f_g = torch.tensor([[0, math.log(3)]] * 2).double(), torch.zeros(2, 2).double()
    expected = {
        "local_global": math.log(1 / 2) / 4 + 3 * math.log(3 / 2) / 4,
        "global_local": math.log(2) / 2 + math.log(2 / 3) / 2,
        "none_softmax": math.log(3) ** 2 / 2,
    }
    for kl, value in expected.items():
        method = FedAFK(FedAFKOptions(kl=kl), RunContext(clients=1, rounds=1, local_epochs=1, classes=2))
        assert method.transfer(f_i, f_g).item() == pytest.approx(value)


class LocalInTwoPhases(Local):
    """Local training of extractor and head in alternating epochs."""

    def phases(self, round):
        return [Phase(("extractor",), self.loss, 1), Phase(("head",), self.head_loss, 1, self.cached)] * 2

    cached = {"f": PerSampleCache("extractor")}  # noqa: RUF012

    def head_loss(self, client, batch):
        return torch.nn.functional.cross_entropy(client.head(batch.cached["f"]), batch.y), {}


@pytest.mark.parametrize("model", [small.plain(), small.with_batch_norm(), small.with_dropout()])
@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_without_mixing_and_transfer_every_client_trains_alone_to_the_bit(model, executor):
    values = {"model": model, "local_epochs": 2, "momentum": 0.9, "executor": executor}
    with (
        small.trained("fedafk", afa=False, kt=False, **values) as mine,
        small.trained(LocalInTwoPhases, **values) as theirs,
    ):
        assert same(small.state_of(mine), small.state_of(theirs))
        assert mine.records[-1]["uploaded_values"] == 0


def test_lam_of_zero_is_no_transfer_to_the_bit():
    with (
        small.trained("fedafk", lam=0) as mine,
        small.trained("fedafk", kt=False) as theirs,
        small.trained("fedafk") as neither,
    ):
        assert same(small.state_of(mine), small.state_of(theirs))
        assert not same(small.state_of(mine), small.state_of(neither))


def test_without_mixing_the_global_extractor_is_trained_to_the_same_bits():
    with small.trained("fedafk", afa=False) as mine, small.trained("fedafk") as theirs:
        mine_tensors, all_tensors = small.state_of(mine), small.state_of(theirs)
        for name, tensor in mine_tensors.items():
            same_in_both = "server" in name or "global_extractor" in name or "random_head" in name
            assert torch.equal(tensor, all_tensors[name]) == same_in_both, name
        assert {name.split()[2].split(".")[0] for name in all_tensors.keys() - mine_tensors.keys()} == {"mixing"}


def test_only_the_extractor_is_exchanged_and_there_is_no_global_model():
    with small.trained("fedafk", model=small.with_batch_norm(), batch_norm="shared") as running:
        sent = {e.upload_to for e in running.part_table.uploaded}
        assert sent == {f"extractor.{name}" for name in small.with_batch_norm().extractor.state_dict()}
        assert {e.receive_from for e in running.part_table.received} == sent
        assert running.records[-1]["test_accuracy_global"] is None
        rows = [running.round.state.clients.row(client) for client in range(running.data.clients)]
        common = running.part_table.common["head.weight"]
        assert all(torch.equal(row["random_head.weight"], common) for row in rows)


def test_aggregation_does_not_change_predictions():
    with small.trained("fedafk", tests=9) as running:
        for record in running.records:
            assert record["test_accuracy_after_local"] == record["test_accuracy_after_agg"]


@pytest.mark.parametrize("clip", [True, False])
def test_mu_clip_keeps_mu_between_0_and_1(clip):
    with small.trained("fedafk", lr=2.0, mu_clip=clip, rounds=3) as running:
        state = small.state_of(running)
        mus = [state[f"client {i} mixing.mu"].item() for i in range(running.data.clients)]
    assert all(0 <= mu <= 1 for mu in mus) == clip
    assert not clip or {0.0, 1.0} & set(mus)


def test_random_heads_per_client_differ():
    running = small.experiment("fedafk", random_head="per_client")
    rows = [running.round.state.clients.row(client) for client in range(running.data.clients)]
    running.close()
    for name in ("random_head.weight", "random_head.bias"):
        values = torch.stack([row[name] for row in rows])
        assert values.dtype == torch.float64
        assert values.abs().max() <= 1 / math.sqrt(rows[0]["random_head.weight"].shape[1])
        assert len({tuple(value.flatten().tolist()) for value in values}) == len(rows)
        assert (values > 0).any()
        assert (values < 0).any()
    assert all(torch.equal(row["head.weight"], rows[0]["head.weight"]) for row in rows)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_ablations_train_on_the_same_batches_with_the_same_noise(executor):
    """Parts that a switch does not concern have the same bits."""

    def outcome(*parts, **values):
        values = {"executor": executor, "local_epochs": 2, "rounds": 1, "model": small.with_dropout(), **values}
        with small.trained("fedafk", **values) as running:
            return {n: t for n, t in small.state_of(running).items() if n.split()[-1].split(".")[0] in parts}

    base = outcome("global_extractor")
    for switch in ({"schedule": "phased"}, {"head_phase": "per_round"}, {"kt": False}, {"global_head": True}):
        assert same(outcome("global_extractor", **switch), base), switch
    alone = outcome("extractor", "head", afa=False, kt=False)
    barely = outcome("extractor", "head", afa=False, lam=1e-300, schedule="phased")
    assert same({n: barely[n] for n in alone if "client" in n}, {n: alone[n] for n in alone if "client" in n})


def test_clients_start_from_their_own_models_or_from_a_common_one():
    def starts(**values):
        running = small.experiment("fedafk", dtype="float32", **values)
        rows = [running.round.state.clients.row(client) for client in range(running.data.clients)]
        running.close()
        return rows

    for name in ("extractor.1.weight", "head.weight", "head.bias"):
        common, own, again = ([row[name] for row in starts(client_init=kind)] for kind in ("common", "own", "own"))
        assert all(torch.equal(value, common[0]) for value in common)
        assert len({tuple(value.flatten().tolist()) for value in own}) == len(own)
        assert all(map(torch.equal, own, again))


def test_the_global_head_makes_a_model_of_the_server():
    with small.trained("fedafk", global_head=True, lr=0.3) as running, small.trained("fedafk", lr=0.3) as without:
        state, plain = small.state_of(running), small.state_of(without)
        assert {name: t for name, t in state.items() if name not in plain}.keys() == {
            f"{who} {part}.{name}"
            for who, part in [("server", "head"), *((f"client {i}", "global_head") for i in range(5))]
            for name in ("weight", "bias")
        }
        assert same({name: state[name] for name in plain}, plain)
        x, y = running.data.take(running.data.union("test"))
        features = (x @ state["server extractor.1.weight"].T + state["server extractor.1.bias"]).relu()
        logits = features @ state["server head.weight"].T + state["server head.bias"]
        accuracy = (logits.argmax(1) == y).double().mean().item()
        assert running.records[-1]["test_accuracy_global"] == pytest.approx(accuracy)
        assert not torch.equal(state["server head.weight"], running.part_table.common["head.weight"])


def test_momentum_and_weight_decay_do_not_act_on_mu():
    """With a model that does not learn, mu has no gradient and stays where it started; in float64, exactly."""
    with small.trained("fedafk", mu_init=0.1, lam=0, lr=0.1, momentum=0.9, weight_decay=0.5, rounds=1) as running:
        first = small.state_of(running)
    frozen = {"mu_init": 0.1, "momentum": 0.9, "weight_decay": 0.5, "model": constant_model()}
    with small.trained("fedafk", **frozen) as running:
        state = small.state_of(running)
        assert [state[f"client {i} mixing.mu"].item() for i in range(5)] == [0.1] * 5
    assert any(first[f"client {i} mixing.mu"].item() != 0.1 for i in range(5))


def constant_model():
    """A model whose extractor has no effect: its gradients are zero."""
    model = small.plain()
    with torch.no_grad():
        model.extractor[1].weight.zero_()
        model.extractor[1].bias.fill_(-1)
    return model


def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="global_head=true needs a global extractor"):
        small.experiment("fedafk", global_head=True, afa=False, kt=False)
    with pytest.raises(ConfigError, match="mu_grad=reuse needs schedule=interleaved"):
        small.experiment("fedafk", mu_grad="reuse", schedule="phased")
    with pytest.raises(ConfigError, match="lam: must be at most 1"):
        small.experiment("fedafk", lam=2)


def test_paper_values():
    resolved = resolve(FedAFK, {"dataset": "cifar100"}, "resnet18", "paper")
    assert (resolved.settings.rounds, resolved.settings.lr, resolved.settings.batch_size) == (1000, 0.1, 10)
    assert resolve(FedAFK, {}, "cnn").settings.lr == 0.005
    assert (resolved.options.lam, resolved.options.mu_init) == (0.3, 0.5)
