from contextlib import suppress
from functools import partial

import pytest
import torch

from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import ConfigError, PflFastError
from pfl_fast.methods.partialfed_strategies import loaded
from pfl_fast.models import MODELS, tensor_groups
from tests.engine import small_experiments as small
from tests.engine.test_resume import StopAfter, same
from tests.methods.compare import TOLERANCE
from tests.methods.naive_partialfed import Fix
from tests.methods.residual import residual

METHOD = "partialfed-fix"
EVERYTHING = {"momentum": 0.9, "weight_decay": 0.05, "local_epochs": 2, "finetune_epochs": 2}
BN = ("bn1", "norm")


def is_bn(name):
    return any(part in BN for part in name.split("."))


# Tensors that a strategy loads, by name.
NAIVE = {
    "full": lambda _: True,
    "s1-s2": lambda name: name.startswith(tuple(f"extractor.{m}." for m in ("conv1", "bn1", "layer1", "layer2"))),
    "s3-fc": lambda name: name.startswith(("extractor.layer3.", "extractor.layer4.", "head.")),
    "wo_bn": lambda name: not is_bn(name),
    "wo_bn_fc": lambda name: not is_bn(name) and not name.startswith("head."),
    "abcd": lambda name: ".0." not in name,
}


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("full", EVERYTHING),
        ("s1-s2", {**EVERYTHING, "join_ratio": 0.6}),
        ("s3-fc", {"join_ratio": 0.6, "client_dropout": 0.4}),
        ("wo_bn", {**EVERYTHING, "broadcast_to_all": True, "join_ratio": 0.4}),
        ("wo_bn_fc", EVERYTHING),
        ("abcd", {"finetune_epochs": 0, "local_epochs": 2}),
    ],
)
def test_two_rounds_and_fine_tuning_equal_the_naive_implementation(strategy, values):
    values = {"model": residual(), "strategy": strategy, **values}
    untrained = small.experiment(METHOD, **values)
    expected = Fix(untrained, residual().double(), NAIVE[strategy]).rounds()
    with small.trained(METHOD, **values) as running:
        mine = {name: t for name, t in small.state_of(running).items() if " momentum." not in name}
        theirs = {f"server {name}": t for name, t in expected.server.state_dict().items()}
        for client in expected.clients:
            theirs.update({f"client {client.number} {n}": t for n, t in client.model.state_dict().items()})
        assert small.differences(mine, theirs, TOLERANCE) == {}
        losses = sum(n * loss for client in expected.clients for n, loss in client.losses)
        assert sum(r["train_loss"] * r["samples"] for r in running.records) == pytest.approx(losses, rel=TOLERANCE)


def clients_of(running):
    return {name: t for name, t in small.state_of(running).items() if name.startswith("client")}


@pytest.mark.parametrize(
    ("strategy", "other", "settings"),
    [
        ("full", "fedavg", {}),
        ("full", "fedavg", {"join_ratio": 0.6, "broadcast_to_all": True}),
        ("wo_bn", "fedavg", {"batch_norm": "personal"}),
        ("wo_bn", "fedbn", {}),
        ("s1-s4", "fedper", {"batch_norm": "shared", "join_ratio": 0.6}),
    ],
)
def test_without_fine_tuning_some_strategies_equal_other_methods_to_the_bit(strategy, other, settings):
    """Uploads may be larger; the loaded tensors are the same."""
    common = {"model": residual(), "momentum": 0.9, "weight_decay": 0.05, "local_epochs": 2, "dtype": "float32"}
    mine = {**common, **settings, "batch_norm": "shared", "strategy": strategy, "finetune_epochs": 0}
    with small.trained(METHOD, **mine) as fix, small.trained(other, **common, **settings) as plain:
        assert same(clients_of(fix), clients_of(plain))
        for one, another in zip(fix.records, plain.records, strict=True):
            assert one["train_loss"] == another["train_loss"]
            assert one["test_accuracy_after_agg"] == another["test_accuracy_after_agg"]


@pytest.mark.parametrize("method", [METHOD, "partialfed-adaptive"])
@pytest.mark.parametrize("policy", ["personal", "params_shared_buffers_local"])
def test_batch_norm_that_is_not_averaged_is_refused(method, policy):
    with pytest.raises(ConfigError, match=f"averages all tensors, got {policy}, .*strategy=wo_bn"):
        small.experiment(method, model=small.with_batch_norm(), batch_norm=policy)
    small.experiment(method, batch_norm=policy).close()  # a model without BatchNorm


BLOCKS = ["s1.0", "s1.1", "s2.0", "s2.1", "s3.0", "s3.1", "s4.0", "s4.1"]
LOADS = {
    "full": ["stem", *BLOCKS, "fc"],
    "s1": ["stem", *BLOCKS[:2]],
    "s1-s2": ["stem", *BLOCKS[:4]],
    "s1-s3": ["stem", *BLOCKS[:6]],
    "s1-s4": ["stem", *BLOCKS],
    "fc": ["fc"],
    "s4-fc": [*BLOCKS[6:], "fc"],
    "s3-fc": [*BLOCKS[4:], "fc"],
    "s2-fc": [*BLOCKS[2:], "fc"],
    "AaBb": ["stem", *BLOCKS[:4], "fc"],
    "AaCc": ["stem", *BLOCKS[:2], *BLOCKS[4:6], "fc"],
    "BbCc": ["stem", *BLOCKS[2:6], "fc"],
    "BbDd": ["stem", *BLOCKS[2:4], *BLOCKS[6:], "fc"],
    "CcDd": ["stem", *BLOCKS[4:], "fc"],
    "ABCD": ["stem", *BLOCKS[0::2], "fc"],
    "abcd": ["stem", *BLOCKS[1::2], "fc"],
    "dA": ["stem", "s1.0", "s4.1", "fc"],
    "wo_fb": ["stem", *BLOCKS[1::2], "fc"],
    "wo_fb_tb": ["stem", *BLOCKS[1::2], "fc"],
}


@pytest.mark.parametrize("strategy", LOADS)
def test_which_blocks_a_strategy_loads(strategy):
    model = residual()
    groups = tensor_groups(model, "block")
    assert loaded(strategy, model) == {name for group in LOADS[strategy] for name in groups[group]}


def test_strategies_by_layer_type():
    model = residual(squeeze=True)
    names = set(model.state_dict())
    squeezing = {name for name in names if ".se." in name}
    normalising = {name for name in names if is_bn(name)}
    assert len(squeezing) == 16
    assert len(normalising) == 9 * 5
    assert loaded("wo_se", model) == names - squeezing
    assert loaded("wo_se_bn", model) == names - squeezing - normalising
    assert loaded("wo_bn", model) == names - normalising
    assert loaded("wo_bn_fc", model) == names - normalising - {"head.weight", "head.bias"}


def test_strategies_without_first_and_third_blocks():
    model = residual(blocks=4)
    groups = tensor_groups(model, "block")
    for strategy, left_out in (("wo_fb", [0]), ("wo_fb_tb", [0, 2])):
        kept = {name for stage in range(1, 5) for block in left_out for name in groups[f"s{stage}.{block}"]}
        assert loaded(strategy, model) == set(model.state_dict()) - kept


def test_models_without_stages_have_fewer_strategies():
    model = small.with_batch_norm()
    names, head = set(model.state_dict()), {"head.weight", "head.bias"}
    norm = {name for name in names if name.startswith("extractor.2.")}
    expected = {
        "full": names,
        "s1-s4": names - head,
        "fc": head,
        "wo_bn": names - norm,
        "wo_bn_fc": names - norm - head,
    }
    assert {strategy: loaded(strategy, model) for strategy in expected} == expected
    for strategy in ("s1", "AaBb", "wo_se", "wo_fb"):
        with pytest.raises(ConfigError, match="choose one of full, s1-s4, fc, wo_bn, wo_bn_fc, or a function"):
            loaded(strategy, model)
    with pytest.raises(ConfigError, match=r"no strategy 'wo_bnfc'.* did you mean 'wo_bn_fc'"):
        loaded("wo_bnfc", model)


def biases(group, tensor):
    return group != "head" and tensor.endswith("bias")


def test_a_user_defined_strategy():
    here = "tests.methods.test_partialfed_fix"
    model = small.plain()
    assert loaded(biases, model) == loaded(f"{here}:biases", model) == {"extractor.1.bias"}
    seen = []
    loaded(lambda group, tensor: seen.append((group, tensor)), residual())
    assert ("s2.1", "extractor.layer2.1.norm.running_var") in seen
    for wrong, message in ((f"{here}:METHOD", "must be a function"), (f"{here}:biasses", "did you mean 'biases'")):
        with pytest.raises(ConfigError, match=message):
            loaded(wrong, model)
    with pytest.raises(ConfigError, match="strategy: must be text"):
        small.experiment(METHOD, strategy=3)


def test_tensors_that_are_not_loaded_stay_personal():
    with small.trained(METHOD, strategy=biases, finetune_epochs=0) as running:
        server = running.round.state.server
        mine = [running.client(i).client for i in range(running.data.clients)]
        assert all(torch.equal(client.extractor[1].bias, server["extractor.1.bias"]) for client in mine)
        assert all(not torch.equal(client.head.bias, server["head.bias"]) for client in mine)
        uploaded = sum(t.numel() for t in server.values())
        assert running.records[0]["uploaded_values"] == len(mine) * uploaded
        assert running.records[0]["downloaded_values"] == len(mine) * server["extractor.1.bias"].numel()


def test_fine_tuning_changes_only_the_clients_and_only_at_the_end():
    with small.trained(METHOD, finetune_epochs=0) as without, small.trained(METHOD, finetune_epochs=3) as tuned:
        assert same(dict(without.round.state.server), dict(tuned.round.state.server))
        assert len(tuned.records) == 3
        assert small.untimed_records(without)[0] == small.untimed_records(tuned)[0]
        assert tuned.records[2]["samples"] == 3 * sum(small.RAGGED)
        assert tuned.records[2]["uploaded_values"] == 0
        changed = small.differences(clients_of(without), clients_of(tuned), 1e-9)
        assert len(changed) == len(small.RAGGED) * 4


@pytest.mark.parametrize("strategy", ["wo_bn", biases, lambda _, tensor: tensor.endswith("bias")])
@pytest.mark.parametrize("clients", [4, 20])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, strategy, clients):
    """Also when interrupted in the fine-tuning; a lambda must be passed again."""
    new_experiment = partial(small.image_experiment, METHOD, norm=True, strategy=strategy, momentum=0.5)
    whole = new_experiment()
    whole.run()
    stopped = new_experiment(out=tmp_path / "run")
    stopped.listeners.append(StopAfter(stopped, clients))
    with pytest.raises(Interrupted):
        stopped.run()
    nameless = getattr(strategy, "__name__", "") == "<lambda>"
    if nameless:
        with pytest.raises(ConfigError, match="there is no '<lambda>'"):
            small.resume_image_experiment(tmp_path / "run", norm=True)
    again = small.resume_image_experiment(tmp_path / "run", norm=True, **({"strategy": strategy} if nameless else {}))
    again.run()
    assert same(small.state_of(again), small.state_of(whole))
    assert small.untimed_records(again) == small.untimed_records(whole)
    with pytest.raises(ConfigError, match="strategy: was"):
        small.resume_image_experiment(tmp_path / "run", norm=True, strategy="full")


@pytest.mark.parametrize("clients", [20, 24, None])
def test_no_rounds_can_be_added_once_fine_tuning_has_begun(tmp_path, clients):
    experiment = small.image_experiment(METHOD, out=tmp_path / "run")  # 3 rounds of 6 clients, and the fine-tuning
    if clients:
        experiment.listeners.append(StopAfter(experiment, clients))
    with suppress(Interrupted):
        experiment.run()
    with pytest.raises(PflFastError, match="after the 3 rounds of this run, every client has trained"):
        small.resume_image_experiment(tmp_path / "run", rounds=5)


def test_rounds_can_be_added_before_fine_tuning(tmp_path):
    stopped = small.image_experiment(METHOD, out=tmp_path / "run")
    stopped.listeners.append(StopAfter(stopped, 14))
    with pytest.raises(Interrupted):
        stopped.run()
    longer, whole = small.resume_image_experiment(tmp_path / "run", rounds=4), small.image_experiment(METHOD, rounds=4)
    longer.run()
    whole.run()
    assert same(small.state_of(longer), small.state_of(whole))


def test_paper_values():
    from pfl_fast.methods import METHODS

    for name in (METHOD, "partialfed-adaptive"):
        method = METHODS[name]
        assert method.defaults("resnet18", "office-home")["lr"] == 0.01
        assert method.defaults("resnet18", "cifar10") == {"lr": 0.1, "finetune_epochs": 5, "finetune_lr": 0.01}
        assert method.preset("paper", "office-home")["rounds"] == 100
        assert "pretrained" in MODELS["resnet18"].options
