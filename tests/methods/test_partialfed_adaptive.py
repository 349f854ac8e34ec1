from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch

from pfl_fast import ops
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Batch
from pfl_fast.models import tensor_groups
from tests.engine import small_experiments as small
from tests.engine.test_resume import StopAfter, same
from tests.methods.compare import TOLERANCE
from tests.methods.naive_partialfed import Adaptive
from tests.methods.residual import residual

METHOD = "partialfed-adaptive"
STAGES = {"conv1": 0, "bn1": 0, "layer1": 0, "layer2": 1, "layer3": 2, "layer4": 3}
# Small temperatures and large policy steps, so that every option has an effect within two rounds.
FAST = {
    "soft_finetune": "last",
    "tau": 1.0,
    "policy_lr": 0.3,
    "finetune_epochs": 1,
    "model": small.with_batch_norm(),
    "sizes": (11, 5, 6),
}
CASES = {
    "layer": {"momentum": 0.9, "weight_decay": 0.05, "local_epochs": 2},
    "hard": {"sample": "hard", "momentum": 0.9, "local_epochs": 2},
    "stage": {"model": residual(), "granularity": "stage", "join_ratio": 0.6, "momentum": 0.5},
    "block": {"model": residual(), "granularity": "block", "client_dropout": 0.5},
    "stem and first block": {"model": residual(), "granularity": "block", "merged": True},
    "layer and norm": {"model": residual(), "merged": True, "local_epochs": 2},
    "fine-tune in every round": {"soft_finetune": None, "momentum": 0.9, "local_epochs": 2},
    "hard, no fine-tune by default": {"soft_finetune": None, "sample": "hard"},
    "two to one": {"f_m": 2, "local_epochs": 2, "momentum": 0.9},
    "one to two": {"f_s": 2, "local_epochs": 2},
    "fixed strategy": {"f_s": 0},
    "linear": {"annealing": "linear"},
    "floor": {"tau_decay": 0.1, "tau_floor": 0.5},
    "policy by sgd": {"policy_optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01, "local_epochs": 2},
    "policy by sgd at the model's rate": {"policy_optimizer": "sgd", "policy_lr": None, "momentum": 0.5, "lr": 0.2},
    "no fine-tune": {"finetune_epochs": 0},
    "no batch norm": {"model": small.plain(), "sizes": small.RAGGED, "local_epochs": 2, "momentum": 0.9},
}


def naive_groups(model, granularity="layer", merged=False):
    """Returns the group index of each tensor, from its name."""
    numbers, labels = {}, []
    for name in model.state_dict():
        path = name.split(".")[:-1]
        if path[0] == "head":
            label = "fc"
        elif granularity == "stage":
            label = str(STAGES[path[1]])
        elif granularity == "block":
            label = "stem" if path[1] in ("conv1", "bn1") else ".".join(path[1:3])
            label = "layer1.0" if merged and label == "stem" else label
        else:
            label = ".".join(path)
            if merged and path[-1] in ("bn1", "norm"):
                label = ".".join([*path[:-1], "conv1"])
        if label not in labels:
            labels.append(label)
        numbers[name] = labels.index(label)
    return numbers, len(labels)


@pytest.mark.parametrize("case", CASES)
def test_two_rounds_and_fine_tuning_equal_the_naive_implementation(case):
    values = {**FAST, **CASES[case]}
    untrained = small.experiment(METHOD, **values)
    o = untrained.options
    numbers, k = naive_groups(values["model"], o.granularity, o.merged)
    expected = Adaptive(untrained, deepcopy(values["model"]).double(), numbers.__getitem__, k).rounds()
    with small.trained(METHOD, **values) as running:
        theirs = {f"server model.{name}": t for name, t in expected.server.state_dict().items()}
        for client in expected.clients:
            theirs[f"client {client.number} policy.logits"] = client.a.detach()
            theirs.update({f"client {client.number} local.{n}": t for n, t in client.model.state_dict().items()})
        state = small.state_of(running)
        assert small.differences({name: state[name] for name in theirs}, theirs, TOLERANCE) == {}
        assert (max(c.a.abs().max() for c in expected.clients) > 1e-3) == (o.f_s > 0)
        losses = sum(n * loss for client in expected.clients for n, loss in client.losses)
        assert sum(r["train_loss"] * r["samples"] for r in running.records) == pytest.approx(losses, rel=TOLERANCE)
        x, _ = running.data.take(running.data.union("test"))
        for client in expected.clients:
            torch.testing.assert_close(
                running.client(client.number)(x), client.model.eval()(x), rtol=TOLERANCE, atol=TOLERANCE
            )


def client_with_different_copies(running):
    """Returns a client's modules with random copies and logits."""
    client = running.part_table.new_client(torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    for name, tensor in client.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype)
            tensor.copy_(noise.abs() if name.endswith("var") else noise)
        else:
            tensor.fill_(3 if name.startswith("local") else 5)
    return client


@pytest.mark.parametrize("operators", ["native", "reference"])
@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_the_gradient_of_the_strategy_equals_the_formula(granularity, operators):
    if operators == "native" and not ops.uses_native():
        pytest.skip("the native library is not there")
    running = small.experiment(METHOD, model=residual(), granularity=granularity)
    method, tau, seed = running.method, 0.7, torch.tensor(11)
    client = client_with_different_copies(running)
    x, y = running.data.take(running.data.union("test"))
    with ops.use(operators):
        loss, _ = method.search_loss(client, Batch(x, y, seed), tau)
        (gradient,) = torch.autograd.grad(loss, [client.policy.logits])
    uniform = ops.philox_uniform(seed, gradient.shape).double()
    u = torch.softmax((client.policy.logits.detach() - torch.log(-torch.log(uniform))) / tau, dim=1)
    picked = u.argmax(dim=1)
    assert {0, 1} == set(picked.tolist())
    copies = [client.local, client.global_]

    def at(group, step):
        """Returns the loss with one group shifted along the difference of the two copies."""
        moved = residual().double().train()
        for name, parameter in moved.named_parameters():
            g = method.segments[name]
            mine, theirs = (copy.get_parameter(name).detach() for copy in copies)
            parameter.data.copy_((mine, theirs)[picked[g]] + (step * (theirs - mine) if g == group else 0))
        return torch.nn.functional.cross_entropy(moved(x), y).item()

    pull = torch.tensor([(at(g, 1e-6) - at(g, -1e-6)) / 2e-6 for g in range(len(u))])
    slope = u[:, 0] * u[:, 1] / tau * pull
    torch.testing.assert_close(gradient, torch.stack([-slope, slope], dim=1), rtol=1e-4, atol=1e-6)
    assert slope.abs().max() > 1e-3


def test_the_copy_that_is_not_selected_does_not_change():
    """Neither by gradients, momentum and weight decay, nor in its running statistics."""
    running = small.experiment(
        METHOD, model=residual(), momentum=0.9, weight_decay=0.1, sizes=(8,), batch_size=4, f_m=2
    )
    phase = replace(running.method.phases(1)[0], after=None)
    tensors = {e.key: e.value.clone() for e in running.part_table.specs}
    tensors.update({n: t.clone() for n, t in client_with_different_copies(running).state_dict().items()})
    tensors.update({n: torch.randn_like(t) for n, t in tensors.items() if n.startswith("momentum.")})
    before = {name: t.clone() for name, t in tensors.items()}
    worker, step_settings = running.round.executor.workers[0], running.round.step_settings(1)
    seeds = [torch.tensor(worker.runner.noise(step_settings, 0, step)) for step in range(2)]
    flags = [running.method.selected_copies(before, seed, running.method.temperature(1)) for seed in seeds]
    worker.trainer.train([0], tensors, [phase], step_settings)
    moved = {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}
    for name in running.method.segments:
        for copy in ("local", "global_"):
            key = f"{copy}.{name}"
            assert (key in moved) == any(bool(f[key]) for f in flags), key
            if f"momentum.{key}" in tensors:
                assert (f"momentum.{key}" in moved) == (key in moved)
    still = {n.split(".")[0] for n in before if n not in moved}
    assert {"local", "global_", "policy"} <= still
    running.close()


@pytest.mark.parametrize("way", ["hard", "soft"])
def test_the_sampled_model_equals_the_formula(way):
    running = small.experiment(METHOD, model=residual(), sample=way)
    method = running.method
    client = client_with_different_copies(running).state_dict()
    client["policy.logits"][0] = 0.25  # equal logits: the local copy is selected
    sampled = method.sample(client)
    assert sampled.keys() == {f"local.{name}" for name in method.segments}
    alpha = torch.softmax(client["policy.logits"], dim=1)
    origins = set()
    for name, segment in method.segments.items():
        copies = [client[f"{copy}.{name}"] for copy in ("local", "global_")]
        likelier = int(alpha[segment, 1] > alpha[segment, 0])
        if way == "hard" or not copies[0].is_floating_point():
            assert torch.equal(sampled[f"local.{name}"], copies[likelier]), name
            origins.add(likelier)
        else:
            mean = alpha[segment, 0] * copies[0] + alpha[segment, 1] * copies[1]
            torch.testing.assert_close(sampled[f"local.{name}"], mean, rtol=1e-12, atol=1e-12)
    assert origins == {0, 1}


def test_the_temperature_follows_its_schedule():
    def temperatures(**values):
        method = small.experiment(METHOD, rounds=4, **values).method
        return [method.temperature(number) for number in (1, 2, 4, 500)]

    assert temperatures() == pytest.approx([5, 5 * 0.965, 5 * 0.965**3, 0.05])
    assert temperatures(annealing="linear", tau=2)[:3] == pytest.approx([2, 1.5, 0.5])
    assert temperatures(tau_floor=4.9)[1:3] == [4.9, 4.9]


@pytest.mark.parametrize(
    ("values", "k"),
    [
        ({"granularity": "stage"}, 5),
        ({"granularity": "block"}, 10),
        ({"granularity": "block", "merged": True}, 9),
        ({}, 19),
        ({"merged": True}, 10),
    ],
)
def test_strategy_probabilities_are_recorded_group_by_group(values, k):
    with small.trained(METHOD, **{**FAST, "model": residual(), **values}) as running:
        assert running.method.groups == list(tensor_groups(residual(), **{"granularity": "layer", **values}))
        assert len(running.records) == 3
        for record in running.records:
            alphas = [record[f"alpha.{group}"] for group in running.method.groups]
            assert len(alphas) == k
            assert all(0 < alpha < 1 for alpha in alphas)
            assert record["alpha"] == pytest.approx(sum(alphas) / k)
        assert len({running.records[1][f"alpha.{group}"] for group in running.method.groups}) == k
        sizes = torch.tensor([11.0, 4.0, 6.0])  # single samples are skipped: BatchNorm cannot train on them
        now = torch.stack([running.client(i).client.policy.logits.softmax(1)[:, 1] for i in range(len(sizes))])
        at_last = (sizes[:, None] * now).sum(0) / sizes.sum()
        assert alphas == pytest.approx(at_last.tolist())


def test_each_option_changes_only_what_it_controls():
    def outcome(**values):
        with small.trained(METHOD, **{**FAST, "rounds": 1, **values}) as running:
            state = small.state_of(running)
            of = {what: {n: t for n, t in state.items() if f" {what}." in n} for what in ("local", "policy", "model")}
            return {**of, "record": running.records[0]}

    base = outcome()
    tuned = outcome(finetune_epochs=3)
    assert same(base["model"], tuned["model"])
    assert same(base["policy"], tuned["policy"])
    assert not same(base["local"], tuned["local"])
    hard = outcome(sample="hard")  # the same training, another sampled model
    assert same(base["policy"], hard["policy"])
    assert base["record"]["train_loss"] == hard["record"]["train_loss"]
    assert not same(base["model"], hard["model"])
    every = outcome(soft_finetune="every")
    assert same(base["policy"], every["policy"])
    assert not same(base["model"], every["model"])
    fixed = outcome(f_s=0)
    assert all(not t.any() for t in fixed["policy"].values())
    assert fixed["record"]["alpha"] == 0.5
    for switch in ({"tau": 0.3}, {"policy_lr": 0.1}, {"policy_optimizer": "sgd"}, {"f_m": 2}):
        assert not same(base["policy"], outcome(**switch)["policy"]), switch
    later = outcome(rounds=2)
    for switch in ({"annealing": "linear"}, {"tau_decay": 0.5}, {"tau_floor": 0.99}):  # from the second round on
        assert same(base["model"], outcome(**switch)["model"])
        assert not same(later["policy"], outcome(rounds=2, **switch)["policy"])


def test_soft_samples_are_fine_tuned_in_every_round_by_default():
    def phases(**values):
        return [phase.train for phase in small.experiment(METHOD, **values).method.phases(1)]

    search = ("local", "global_", "policy")
    assert phases() == phases(soft_finetune="every") == [search, ("local",)]
    assert phases(soft_finetune="last") == phases(sample="hard") == [search]


def test_defaults_of_the_strategys_learning_rate():
    def rates(**values):
        phase = small.experiment(METHOD, **values).method.phases(1)[0]
        return phase.adam, phase.plain_sgd

    assert rates() == ({"policy": 0.01}, {})
    assert rates(policy_lr=0.2) == ({"policy": 0.2}, {})
    assert rates(policy_optimizer="sgd") == ({}, {"policy": None})
    assert rates(policy_optimizer="sgd", policy_lr=0.2) == ({}, {"policy": 0.2})


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_momentum_and_weight_decay_do_not_act_on_the_strategy(optimizer):
    """Without batches for the model both copies are equal and the strategy has no gradient: it stays where it is."""
    values = {"momentum": 0.9, "weight_decay": 0.5, "lr": 0.0, "rounds": 1, "finetune_epochs": 0}
    running = small.experiment(METHOD, **values, policy_optimizer=optimizer, policy_lr=0.3)
    running.round.state.clients.write(0, {"policy.logits": torch.full((2, 2), 0.25, dtype=torch.float64)})
    running.run()
    state = small.state_of(running)
    running.close()
    assert torch.equal(state["client 0 policy.logits"], torch.full((2, 2), 0.25, dtype=torch.float64))


def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="soft_finetune=every needs sample=soft"):
        small.experiment(METHOD, sample="hard", soft_finetune="every")
    with pytest.raises(ConfigError, match="merged=true needs granularity=block or layer"):
        small.experiment(METHOD, model=residual(), merged=True, granularity="stage")
    with pytest.raises(ConfigError, match="needs a model with layer1 to layer4"):
        small.experiment(METHOD, granularity="stage")
    with pytest.raises(ConfigError, match="tau: must be at least"):
        small.experiment(METHOD, tau=0)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("clients", [2, 10, 20])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, executor, clients):
    """Interrupted in the first round, between rounds and in the fine-tuning."""
    values = {"momentum": 0.5, "executor": executor, "stack": 2, "finetune_epochs": 2, "policy_lr": 0.2}
    new_experiment = partial(small.image_experiment, METHOD, norm=True, **values)
    whole = new_experiment()
    whole.run()
    stopped = new_experiment(out=tmp_path / "run")
    stopped.listeners.append(StopAfter(stopped, clients))
    with pytest.raises(Interrupted):
        stopped.run()
    again = small.resume_image_experiment(tmp_path / "run", norm=True)
    again.run()
    assert same(small.state_of(again), small.state_of(whole))
    assert small.untimed_records(again) == small.untimed_records(whole)
