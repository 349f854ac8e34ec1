"""Tensors of BatchNorm layers, and PartialFed's groups of tensors."""

import pytest
import torch
from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.models import batch_norm_tensors, build, tensor_groups
from tests.models.conftest import named, needs_torchvision

FIVE = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def on_meta(name, input_shape=(3, 64, 64), **options):
    with torch.device("meta"):
        return build(name, input_shape=input_shape, classes=65, **options)


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        named("cnn", 0, 0),
        named("mlp", 0, 0),
        named("digits-cnn", 5, 2 * (64 + 64 + 128 + 2048 + 512)),
        named("alexnet", 7, 2 * (64 + 192 + 384 + 256 + 256 + 4096 + 4096)),
        named("resnet18", 20, 9_600),
        named("densenet121", 121, 83_648),
    ],
)
def test_layers_and_parameters(name, layers, parameters):
    model = on_meta(name)
    found = batch_norm_tensors(model)
    assert len(found) == 5 * layers
    assert sorted(found.values()) == sorted(FIVE * layers)
    sizes = dict(model.named_parameters())
    assert sum(sizes[name].numel() for name in found if name in sizes) == parameters
    assert set(found) <= set(model.state_dict())


@needs_torchvision
def test_shortcuts_of_resnet18_are_found():
    found = batch_norm_tensors(on_meta("resnet18"))
    shortcuts = {name.rpartition(".")[0] for name in found if "downsample" in name}
    assert shortcuts == {f"extractor.layer{stage}.0.downsample.1" for stage in (2, 3, 4)}


def test_by_type_not_by_name():
    class MyNorm(nn.BatchNorm2d):
        pass

    model = nn.ModuleDict(
        {
            "bn": nn.Linear(2, 2),
            "odd": MyNorm(2),
            "plain": nn.BatchNorm1d(3, affine=False),
            "blind": nn.BatchNorm3d(2, track_running_stats=False),
            "instance": nn.InstanceNorm2d(2, affine=True),
            "tracking": nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
            "layer": nn.LayerNorm(2),
            "group": nn.GroupNorm(1, 2),
            "sync": nn.SyncBatchNorm(2),
        }
    )
    found = batch_norm_tensors(model)
    assert {name.split(".")[0] for name in found} == {"odd", "plain", "blind", "tracking", "sync"}
    assert [found[name] for name in found if name.startswith("plain.")] == FIVE[2:]
    assert [found[name] for name in found if name.startswith("blind.")] == FIVE[:2]
    assert [found[name] for name in found if name.startswith("tracking.")] == FIVE


def test_a_batch_norm_itself():
    assert list(batch_norm_tensors(nn.BatchNorm1d(1))) == FIVE


@needs_torchvision
@pytest.mark.parametrize(
    ("granularity", "merged", "number"),
    [
        ("stage", False, 5),
        ("stage", True, 5),
        ("block", False, 10),
        ("block", True, 9),
        ("layer", False, 41),
        ("layer", True, 21),
    ],
)
def test_groups_of_resnet18(granularity, merged, number):
    model = on_meta("resnet18")
    groups = tensor_groups(model, granularity, merged)
    assert len(groups) == number
    assert sorted(name for names in groups.values() for name in names) == sorted(model.state_dict())
    for name in batch_norm_tensors(model):
        layer = name.rpartition(".")[0]
        holders = [group for group, names in groups.items() if any(n.startswith(layer + ".") for n in names)]
        assert len(holders) == 1


@needs_torchvision
def test_names_of_the_groups():
    model = on_meta("resnet18")
    stages, blocks = tensor_groups(model, "stage"), tensor_groups(model, "block")
    assert list(stages) == ["s1", "s2", "s3", "s4", "fc"]
    assert list(blocks) == ["stem", *(f"s{stage}.{block}" for stage in range(1, 5) for block in range(2)), "fc"]
    assert "extractor.conv1.weight" in stages["s1"]
    assert "extractor.bn1.running_mean" in blocks["stem"]
    assert stages["fc"] == ["head.weight", "head.bias"]
    assert tensor_groups(model, "block", merged=True)["s1.0"] == [*blocks["stem"], *blocks["s1.0"]]
    pairs = tensor_groups(model, "layer", merged=True)
    assert {name.split(".")[-2] for name in pairs["extractor.layer2.0.downsample.0"]} == {"0", "1"}
    assert list(pairs)[-1] == "head"
    assert blocks["s3.1"] == [name for name in model.state_dict() if name.startswith("extractor.layer3.1.")]


def test_groups_of_other_models():
    model = on_meta("digits-cnn")
    assert len(tensor_groups(model, "layer")) == 11
    with pytest.raises(ConfigError, match="'stage' needs a model with layer1 to layer4, such as resnet18; use 'layer'"):
        tensor_groups(model, "stage")
    with pytest.raises(ConfigError, match="one of stage, block, layer, got 'layers'; did you mean 'layer'"):
        tensor_groups(model, "layers")
