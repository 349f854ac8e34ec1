"""Settings of the papers by data set: defaults, the preset "paper", and comparisons."""

from typing import ClassVar

import pytest

from pfl_fast.assembly import resolve
from pfl_fast.comparison.plan import Request, make_plan
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Method
from pfl_fast.methods.papers import FIRST
from tests.engine import small_experiments as small


@pytest.mark.parametrize(
    ("method", "dataset", "expected"),
    [
        ("fedios", "office-caltech10", {"model": "resnet18", "rounds": 120, "per_domain": 62, "lr": 0.1}),
        ("fedios", "digits5", {"model": "auto", "rounds": 50, "per_domain": 743, "model_options": ()}),
        ("fedafk", "cifar100", {"model": "resnet18", "rounds": 1000, "lr": 0.1}),
        ("fedcp", "cifar100", {"model": "auto", "rounds": 2000, "protocol": "fedcp"}),
        ("fedrep", "domainnet", {"rounds": 300, "per_domain": 500, "momentum": 0.5, "protocol": "fedpick"}),
        ("fedbn", "cifar100-coarse", {"rounds": 100, "clients": 5, "batch_size": 50, "momentum": 0.9}),
        ("fedavg", "office-home", {"rounds": 100, "finetune_epochs": 5, "model_options": ("pretrained=True",)}),
    ],
)
def test_preset_paper(method, dataset, expected):
    chosen = resolve(METHODS[method], {"dataset": dataset}, preset="paper")
    settings = chosen.with_model(chosen.settings.model).settings
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_preset(method):
    for dataset in FIRST:
        assert METHODS[method].preset("paper", dataset)


def test_the_preset_of_other_data_names_the_data_sets():
    with pytest.raises(ConfigError, match="no paper uses dataset 'digits'; take agnews, cifar10"):
        resolve(METHODS["fedavg"], {"dataset": "digits"}, preset="paper")


class Chooses(METHODS["fedavg"]):
    presets: ClassVar = {
        "mine": {"model": "mlp", "partition": "iid", "dataset": "synthetic", "samples": 300, "clients": 3}
    }


def test_a_preset_chooses_model_partition_and_data_set():
    for chosen in (Experiment(Chooses, preset="mine"), Experiment(Chooses, preset="mine", model="cnn")):
        assert (chosen.dataset.name, chosen.partition.rule, chosen.data.clients) == ("synthetic", "iid", 3)
    assert chosen.settings.model == "cnn"
    assert Experiment(Chooses, preset="mine").settings.model == "mlp"


def planned(tmp_path, methods, **values):
    request = Request(methods, (0,), {"dataset": "digits5", "samples": 300, "model": "mlp", **values}, preset="paper")
    plan = make_plan(request, tmp_path, lambda _: None)
    return {run.resolved.method.title: run.resolved.settings for run in plan.runs}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("fedpick", {"rounds": 300, "momentum": 0.5, "batch_size": 64, "per_domain": 1000, "protocol": "fedpick"}),
        ("fedios", {"rounds": 50, "momentum": 0.9, "batch_size": 32, "per_domain": 743, "protocol": "fedios"}),
    ],
)
def test_methods_of_a_comparison_take_the_settings_of_the_paper_in_it(tmp_path, own, expected):
    for settings in planned(tmp_path, ("fedavg", own)).values():
        assert {name: getattr(settings, name) for name in expected} == expected


def test_papers_with_different_settings_are_not_mixed(tmp_path):
    with pytest.raises(ConfigError, match="momentum: the methods have different defaults"):
        planned(tmp_path, ("fedpick", "fedios"))


def test_the_rate_falls_by_schedule():
    def rates(**values):
        settings = resolve(METHODS["fedavg"], {"rounds": 4, "lr": 0.8, **values}).settings
        return [settings.learning_rate(round) for round in range(1, 6)]

    assert rates() == [0.8] * 5
    assert rates(lr_decay=0.5) == [0.8, 0.4, 0.2, 0.1, 0.05]
    assert rates(lr_schedule="steps", lr_steps="1,3", lr_decay=0.5) == [0.8, 0.4, 0.4, 0.2, 0.2]
    assert rates(lr_schedule="cosine") == pytest.approx([0.8, 0.6828427, 0.4, 0.1171573, 0.1171573])
    assert rates(lr_warmup=2) == [0.4, 0.8, 0.8, 0.8, 0.8]
    assert rates(finetune_lr=0.3) == [0.8] * 4 + [0.3]


def test_rounds_train_at_the_rate_of_the_schedule():
    """A rate of 0 from the second round on leaves the model of the first round."""
    with (
        small.trained("fedavg", rounds=1) as one,
        small.trained("fedavg", rounds=3, lr_schedule="steps", lr_steps=(1,), lr_decay=0.0) as three,
    ):
        assert small.differences(small.state_of(one), small.state_of(three), 1e-14) == {}


@pytest.mark.parametrize("model", [small.plain, small.with_batch_norm])
def test_the_fine_tune_of_fedavg_is_fedavg_ft(model):
    with (
        small.trained("fedavg", finetune_epochs=2, model=model()) as tuned,
        small.trained("fedavg-ft", fine_tuning_epochs=2, model=model()) as ft,
    ):
        assert small.differences(small.state_of(tuned), small.state_of(ft), 0) == {}
    with small.trained("fedavg", finetune_epochs=2, finetune_lr=0.0) as still, small.trained("fedavg") as none:
        mine, theirs = small.state_of(still), small.state_of(none)
        assert small.differences(mine, theirs, 0) == {}
        assert len(still.records) == len(none.records) + 1


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedphp"])
def test_every_method_fine_tunes_the_model_that_predicts(method):
    values = {"inference": "local"} if method == "fedphp" else {}
    with small.trained(method, finetune_epochs=3, finetune_lr=0.3, **values) as tuned:
        losses = [record["test_loss_after_local"] for record in tuned.records if record["round"] > 2]
        assert len(losses) == 1
        before = small.experiment(method, finetune_epochs=3, finetune_lr=0.0, **values)
        before.run()
        assert before.records[-1]["test_loss_after_local"] != losses[0]
        before.close()


def test_methods_without_own_final_phases_inherit_the_fine_tune():
    own = {name for name, method in METHODS.items() if method.final_phases is not Method.final_phases}
    assert own == {"fedavg-ft", "fedbabu", "fedphp", "partialfed-adaptive"}
    with pytest.raises(ConfigError, match="FedPHP needs the option inference=local"):
        small.experiment("fedphp", finetune_epochs=1)
