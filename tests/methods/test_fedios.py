from copy import deepcopy

import pytest
import torch

from pfl_fast.assembly import resolve
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.methods.base import Batch, Client, reinitialized
from pfl_fast.methods.fedios import FediOS
from pfl_fast.models import from_torchvision
from pfl_fast.randomness import torch_seed
from tests.engine import small_experiments as small
from tests.engine.test_resume import same
from tests.methods.compare import COMMON, TOLERANCE, assert_equals_naive
from tests.methods.naive_fedios import OSFederation

THE_METHODS_OWN = {"rank": None, "overflow": "error"}
WIDE = {"model": small.plain(width=13), **THE_METHODS_OWN}  # five clients: r = 2, one unused column
ALL_AT_ONCE = {
    "model": small.with_batch_norm(width=13),
    "local_epochs": 2,
    "momentum": 0.8,
    "join_ratio": 0.6,
    **THE_METHODS_OWN,
}
SWITCHES = {
    "everything at once": ALL_AT_ONCE,
    "only the selected train": {"train_all": False, **ALL_AT_ONCE},
    "no projections": {"projections": False, **ALL_AT_ONCE},
    "no personal extractor": {"personal_extractor": "none", **ALL_AT_ONCE},
    "one extractor": {"personal_extractor": "shared", **ALL_AT_ONCE},
    "one extractor, no projections": {"personal_extractor": "shared", "projections": False},
    "same initial extractors": {"personal_init": "same", **WIDE},
    "no regulariser": {"lam": 0, **WIDE},
    "mostly generic": {"alpha": 0.9, **WIDE},
    "relu": {"post_activation": "relu", "lam": 1, **ALL_AT_ONCE},
    "relu, no projections": {"post_activation": "relu", "projections": False, "lam": 1},
    "regulariser before projection": {"reg_on": "raw", **ALL_AT_ONCE},
    "rank": {**WIDE, "rank": 1},
    "coordinates as basis": {"basis": "identity", **WIDE},
    "uniform basis": {"basis": "uniform", "post_activation": "relu", **WIDE},
    "remainder is generic": {"remainder": "generic", **ALL_AT_ONCE},
    "shared subspaces": {**WIDE, "rank": 3, "overflow": "cycle"},
    "random subspaces": {**WIDE, "rank": 6, "overflow": "random", "lam": 0.5},
    "coordinates": {"projection": "coords", "lam": 0.5, **ALL_AT_ONCE},
    "coordinates, no personal extractor": {"projection": "coords", "personal_extractor": "none", **WIDE},
    "coordinates, relu": {"projection": "coords", "post_activation": "relu", **WIDE},
    "tall": {"projection": "tall", **ALL_AT_ONCE},
    "tall, relu, one extractor": {"projection": "tall", "post_activation": "relu", "personal_extractor": "shared"},
}


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedios", COMMON[case], OSFederation)


@pytest.mark.parametrize("case", SWITCHES)
def test_two_rounds_equal_the_naive_implementation_under_every_switch(case):
    running, expected = assert_equals_naive("fedios", SWITCHES[case], OSFederation)
    recorded = [record["inner_product"] * record["samples"] for record in running.records if "inner_product" in record]
    assert sum(recorded) == pytest.approx(sum(n * inner for n, inner in expected.inner), abs=TOLERANCE)
    assert bool(recorded) == (running.options.personal_extractor != "none")
    # The server's tensors are equal by now; its predictions must be equal too.
    x, y = running.data.take(running.data.union("test"))
    logits = expected.predict_global(x)
    server = Client({**expected.server, "projector": running.part_table.server_parts["projector"]})
    got = running.method.predict_global(server, Batch(x, y, torch.tensor(0)))
    torch.testing.assert_close(got.detach(), logits, rtol=TOLERANCE, atol=TOLERANCE)
    assert running.records[-1]["test_accuracy_global"] == pytest.approx((logits.argmax(1) == y).double().mean().item())


def projections(**values):
    """Generic and personal bases of all clients, before training."""
    running = small.experiment("fedios", **values)
    rows = [running.round.state.clients.row(client) for client in range(running.data.clients)]
    running.close()
    return [row["projector.generic"] for row in rows], [row["projector.personal"] for row in rows]


@pytest.mark.parametrize("basis", ["gaussian", "uniform", "identity"])
def test_projections_are_orthogonal_and_of_rank_r(basis):
    generic, own = projections(basis=basis, **WIDE)
    assert all(torch.equal(a, generic[0]) for a in generic)
    matrices = [a @ a.T for a in [generic[0], *own]]
    for i, p in enumerate(matrices):
        torch.testing.assert_close(p, p.T)
        torch.testing.assert_close(p @ p, p, rtol=1e-6, atol=1e-6)
        assert p.trace().item() == pytest.approx(13 // 6)
        for q in matrices[:i]:
            assert (p @ q).abs().max() < 1e-6


def test_overflow_options_with_too_many_subspaces():
    with pytest.raises(ConfigError, match=r"fedios: .*rank must be at most 2.*overflow='cycle' or 'random'"):
        small.experiment("fedios", **{**WIDE, "rank": 3})
    with pytest.raises(ConfigError, match="rank must be from 1 to features, 5, got 0"):
        small.experiment("fedios", **THE_METHODS_OWN)
    generic, own = projections(**{**WIDE, "rank": 3, "overflow": "cycle"})
    assert [torch.equal(own[0], other) for other in own] == [True, False, False, True, False]  # 13 // 3 - 1 blocks
    assert max((generic[0].T @ a).abs().max() for a in own) < 1e-6
    generic, own = projections(**{**WIDE, "rank": 3, "overflow": "random"})
    assert all((generic[0].T @ a).abs().max() > 1e-3 for a in own)
    generic, own = projections(remainder="generic", **WIDE)
    assert (generic[0].shape, own[0].shape) == ((13, 3), (13, 2))
    with pytest.raises(ConfigError, match="projection=coords needs remainder=unused"):
        small.experiment("fedios", remainder="generic", projection="coords", **WIDE)


def test_the_seed_determines_the_subspaces():
    first, again, other = (projections(seed=seed, **WIDE)[1][0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_regulariser_is_zero_under_exact_projections():
    """Results with and without it are equal, up to the orthogonality of float32 bases."""
    with (
        small.trained("fedios", lam=0, **WIDE) as without,
        small.trained("fedios", lam=1, **WIDE) as with_it,
        small.trained("fedios", lam=0, post_activation="relu", basis="uniform", **WIDE) as relu_without,
        small.trained("fedios", lam=1, post_activation="relu", basis="uniform", **WIDE) as relu_with_it,
        small.trained("fedios", lam=1, reg_on="raw", **WIDE) as raw,
    ):
        plain = small.state_of(without)
        assert small.differences(small.state_of(with_it), plain, 1e-5) == {}
        assert small.differences(small.state_of(raw), plain, 1e-5)
        assert small.differences(small.state_of(relu_with_it), small.state_of(relu_without), 1e-5)
        assert all(0 <= record["inner_product"] < 1e-5 for record in with_it.records)
        assert all(record["inner_product"] > 1e-3 for record in relu_without.records)


def test_without_personal_extractor_and_projections_it_is_fedavg_to_the_bit():
    values = {"local_epochs": 2, "model": small.with_batch_norm(), "lr": 0.1, "momentum": 0.9}
    with (
        small.trained("fedios", personal_extractor="none", projections=False, **values) as mine,
        small.trained("fedavg", **values) as theirs,
    ):
        assert same(small.state_of(mine), small.state_of(theirs))
        assert [r["test_accuracy_global"] for r in mine.records] == [r["test_accuracy_global"] for r in theirs.records]


def test_only_generic_extractor_and_head_are_exchanged():
    with small.trained("fedios", **WIDE) as running:
        assert {e.upload_to.split(".")[0] for e in running.part_table.uploaded} == {"extractor", "head"}
        state = small.state_of(running)
        own = [state[f"client {i} personal_extractor.1.weight"] for i in range(running.data.clients)]
        assert not any(torch.equal(a, own[0]) for a in own[1:])


def test_the_personal_extractor_starts_from_its_own_draw_or_from_the_generic_one():
    starts = {}
    for kind in ("fresh", "same"):
        running = small.experiment("fedios", personal_init=kind, **WIDE)
        rows = [running.round.state.clients.row(i) for i in range(running.data.clients)]
        starts[kind] = [row["personal_extractor.1.weight"] for row in rows]
        generic = running.part_table.common["extractor.1.weight"]
        running.close()
        assert all(torch.equal(a, starts[kind][0]) for a in starts[kind])
    assert torch.equal(starts["same"][0], generic)
    assert not torch.equal(starts["fresh"][0], generic)
    assert starts["fresh"][0].abs().max() <= 1 / 6**0.5  # initialization of nn.Linear


class Net(torch.nn.Module):
    """A model of six inputs with weights of another scale than those of ``reset_parameters()``."""

    def __init__(self, _shape=None, _classes=None):
        super().__init__()
        self.first, self.fc = torch.nn.Linear(6, 400), torch.nn.Linear(400, small.CLASSES)
        torch.nn.init.normal_(self.first.weight, std=3.0)

    def forward(self, x):
        return self.fc(self.first(x).relu())


net = Net()


def extractors(said=print, dataset=None, **values):
    """Initial parameters of W_g and W_p by name; ``said`` is called with the messages to the user."""
    partition, dataset = small.partition_of((12, 12)), dataset or small.features(30)
    running = Experiment("fedios", dataset=dataset, partition=partition, log=said, device="cpu", **values)
    modules = [running.part_table.parts[name].module for name in ("extractor", "personal_extractor")]
    running.close()
    return [dict(module.named_parameters()) for module in modules]


@pytest.mark.parametrize("model", ["resnet18", "mobilenet-v2"])
def test_the_personal_extractor_has_the_distribution_of_torchvisions_models(model):
    pytest.importorskip("torchvision")
    generic, own = extractors(model=model, dataset=small.images(30, (32, 32, 3)))
    convolutions = {name: value for name, value in generic.items() if value.dim() == 4 and value.numel() > 2000}
    assert len(convolutions) > 10
    for name, value in convolutions.items():
        assert not torch.equal(value, own[name])
        assert own[name].std().item() == pytest.approx(value.std().item(), rel=0.15), name


def test_pretrained_weights_are_the_start_of_both_extractors(monkeypatch):
    models = pytest.importorskip("torchvision").models
    with torch_seed(3):
        downloaded = models.resnet18()
    monkeypatch.setattr(from_torchvision, "_download", lambda *_: deepcopy(downloaded))
    said = []
    values = {"model": "resnet18", "dataset": small.images(30, (32, 32, 3)), "model_options": ("pretrained=True",)}
    generic, own = extractors(said.append, **values)
    assert all(torch.equal(value, own[name]) for name, value in generic.items())
    assert torch.equal(generic["conv1.weight"], downloaded.conv1.weight)
    assert "FediOS: W_p starts from the same pretrained weights as W_g" in said


def test_own_models_are_built_again_and_modules_are_reinitialized():
    here = "tests.methods.test_fedios"
    generic, own = extractors(model=f"{here}:Net", head="fc")
    assert not torch.equal(generic["first.weight"], own["first.weight"])
    assert own["first.weight"].std().item() == pytest.approx(3, rel=0.1)
    for values in ({"model": net}, {"model": f"{here}:net"}):
        generic, own = extractors(**values, head="fc")
        assert torch.equal(generic["first.weight"], net.first.weight)
        assert own["first.weight"].abs().max() <= 1 / 6**0.5
        assert not torch.equal(own["first.weight"][: small.CLASSES], own["first.weight"][-small.CLASSES :])


def test_projections_and_head_do_not_depend_on_the_personal_extractor():
    def drawn(**values):
        running = small.experiment("fedios", **{**WIDE, **values})
        row, common = running.round.state.clients.row(1), running.part_table.common
        running.close()
        return [
            row["projector.generic"],
            row["projector.personal"],
            common["head.weight"],
            common["extractor.1.weight"],
        ]

    for projection in ("square", "coords"):
        base = drawn(projection=projection)
        for switch in ({"personal_init": "same"}, {"personal_extractor": "none"}, {"personal_extractor": "shared"}):
            assert all(map(torch.equal, drawn(projection=projection, **switch), base)), switch


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, True),
        ({"basis": "identity", "post_activation": "relu"}, True),
        ({"projection": "tall", "post_activation": "relu"}, True),
        ({"rank": 3, "overflow": "cycle"}, True),
        ({"lam": 0}, False),
        ({"post_activation": "relu"}, False),
        ({"reg_on": "raw"}, False),
        ({"projections": False}, False),
        ({"projection": "coords"}, False),
        ({"rank": 6, "overflow": "random"}, False),
        ({"personal_extractor": "none"}, False),
    ],
)
def test_a_line_says_that_lam_has_no_effect_exactly_if_it_has_none(values, told):
    said, values = [], {"lam": 0.1, **WIDE, **values}
    with small.trained("fedios", **{**values, "lam": 0, "rounds": 1}) as without:
        plain = small.state_of(without)
    running = small.experiment("fedios", **{**values, "rounds": 1}, log=said.append)
    running.run()
    changed = small.differences(small.state_of(running), plain, 1e-6)
    running.close()
    notes = [line for line in said if "has no effect" in line]
    assert len(notes) == told
    assert all("lam=0.1 has no effect" in line and "post_activation=relu" in line for line in notes)
    assert bool(changed) == (not told and values["lam"] > 0 and values.get("personal_extractor") != "none")


def test_an_extractor_that_cannot_be_reinitialized_is_refused():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.PReLU(), Scale())
    with pytest.raises(ConfigError, match="parameters of 2 cannot be reinitialized: Scale has no reset_parameters"):
        reinitialized(module)
    before = module[0].weight.detach().clone()
    assert not torch.equal(reinitialized(module[:2])[0].weight, before)
    assert torch.equal(module[0].weight, before)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))


def test_all_clients_train_and_the_sampled_ones_are_averaged():
    with small.trained("fedios", join_ratio=0.4, **WIDE) as running:
        assert all(record["clients_trained"] == 5 for record in running.records)
        assert running.records[0]["uploaded_values"] == 2 * sum(e.value.numel() for e in running.part_table.uploaded)
    with small.trained("fedios", join_ratio=0.4, train_all=False, **WIDE) as running:
        assert all(record["clients_trained"] == 2 for record in running.records)


@pytest.mark.parametrize(
    ("model", "dataset", "values"),
    [
        ("resnet18", "office-caltech10", {"lr": 0.1, "weight_decay": 0, "local_epochs": 5, "rounds": 120, "lam": 0.1}),
        ("resnet18", "domainnet", {"lr": 0.1, "weight_decay": 1e-4, "local_epochs": 5, "rounds": 200, "lam": 0.1}),
        ("digits-cnn", "digits5", {"lr": 0.01, "weight_decay": 0, "local_epochs": 1, "rounds": 50, "lam": 0}),
        ("cnn", "cifar100-coarse", {"lr": 0.01, "weight_decay": 0, "local_epochs": 2, "rounds": 100, "lam": 0.1}),
    ],
)
def test_paper_values(model, dataset, values):
    resolved = resolve(FediOS, {"dataset": dataset}, model, "paper")
    found = {**vars(resolved.settings), **vars(resolved.options)}
    assert {name: found[name] for name in values} == values
    assert (found["momentum"], found["alpha"], found["train_all"]) == (0.9, 0.5, True)
    assert found["batch_size"] == (50 if dataset == "cifar100-coarse" else 32)
    assert resolve(FediOS, {"dataset": dataset}, model, "paper-20-clients").settings.local_epochs == 5
