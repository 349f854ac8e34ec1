"""Parameter counts and feature widths of the papers."""

import pytest
import torch

from pfl_fast.models import MODELS, Backbone, build
from tests.models.conftest import named, needs_torchvision


def count(module):
    return sum(p.numel() for p in module.parameters())


def on_meta(name, *args, **kwargs):
    with torch.device("meta"):
        return build(name, *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "options", "width", "parameters"),
    [
        named("cnn", (1, 28, 28), 10, {}, 512, 582_026),
        named("cnn", (3, 32, 32), 10, {}, 512, 878_538),
        named("cnn", (3, 32, 32), 20, {}, 512, 883_668),
        named("cnn", (3, 32, 32), 100, {}, 512, 924_708),
        named("cnn", (3, 64, 64), 200, {}, 512, 5_694_600),
        named("digits-cnn", (3, 28, 28), 10, {}, 512, 14_219_210),
        named("digits-cnn", (3, 32, 32), 10, {}, 512, 18_151_370),
        named("digits-cnn", (3, 28, 28), 10, {"cut": "conv"}, 6272, 14_219_210),
        named("digits-cnn", (3, 32, 32), 10, {"cut": "conv"}, 8192, 18_151_370),
        named("digits-cnn", (3, 32, 32), 10, {"cut": "conv", "head": "linear"}, 8192, 312_768 + 81_930),
        named("alexnet", (3, 256, 256), 10, {}, 4096, 57_063_498),
        named("alexnet", (3, 256, 256), 10, {"cut": "fc6"}, 4096, 57_063_498),
        named("resnet18", (3, 32, 32), 10, {}, 512, 11_181_642),
        named("resnet18", (3, 32, 32), 20, {}, 512, 11_186_772),
        named("resnet18", (3, 224, 224), 65, {}, 512, 11_209_857),
        named("resnet18", (3, 32, 32), 100, {}, 512, 11_227_812),
        named("resnet18", (3, 64, 64), 200, {}, 512, 11_279_112),
        named("mobilenet-v2", (3, 32, 32), 20, {}, 1280, 2_249_492),
        named("densenet121", (3, 32, 32), 20, {}, 1024, 6_974_356),
        named("efficientnet-b0", (3, 32, 32), 20, {}, 1280, 4_033_168),
        named("mlp", (1, 8, 8), 10, {"hidden": [32]}, 32, 64 * 32 + 32 + 32 * 10 + 10),
    ],
)
def test_parameters_and_widths(name, input_shape, classes, options, width, parameters):
    model = on_meta(name, input_shape=input_shape, classes=classes, **options)
    assert count(model) == parameters
    assert model.feature_width == width
    features = model.extractor(torch.empty(2, *input_shape, device="meta"))
    assert features.shape == (2, width)
    assert model.head(features).shape == (2, classes)


@pytest.mark.parametrize(("vocabulary", "parameters"), [(98_635, 3_157_508), (32_000, 1_025_188)])
def test_fasttext(vocabulary, parameters):
    model = on_meta("fasttext", input_shape=(200,), classes=4, vocabulary=vocabulary)
    assert (count(model), model.feature_width) == (parameters, 32)
    assert model(torch.zeros(3, 200, dtype=torch.int32, device="meta")).shape == (3, 4)


def test_cuts_of_fedpick():
    digits = on_meta("digits-cnn", input_shape=(3, 32, 32), classes=10, cut="conv")
    assert (count(digits.extractor), count(digits.head)) == (312_768, 17_838_602)
    linear = on_meta("digits-cnn", input_shape=(3, 32, 32), classes=10, cut="conv", head="linear")
    assert (count(linear.extractor), count(linear.head)) == (312_768, 81_930)
    office = on_meta("alexnet", input_shape=(3, 256, 256), classes=10)
    assert count(office.head) == 4096 * 10 + 10
    deeper = on_meta("alexnet", input_shape=(3, 256, 256), classes=10, cut="fc6")
    assert count(deeper.head) == 4096 * 4096 + 4096 + 2 * 4096 + 4096 * 10 + 10
    convolutions = [p for name, p in office.extractor.named_parameters() if int(name.split(".")[0][-1]) <= 5]
    assert sum(p.numel() for p in convolutions) == 2_472_000


@pytest.mark.parametrize(("size", "expected"), [(256, [63, 31, 15, 7]), (63, [15, 7, 3, 1])])
def test_sizes_inside_alexnet(size, expected):
    model = on_meta("alexnet", input_shape=(3, size, size), classes=10)
    model.eval()
    x, sizes = torch.empty(1, 3, size, size, device="meta"), []
    for name, layer in model.extractor.named_children():
        x = layer(x)
        if name in {"conv1", "pool1", "pool2", "pool5"}:
            sizes.append(x.shape[-1])
    assert sizes == expected


@needs_torchvision
def test_parts_of_resnet18():
    model = on_meta("resnet18", input_shape=(3, 224, 224), classes=65)
    parts = {name: count(part) for name, part in model.extractor.named_children() if count(part)}
    assert parts == {
        "conv1": 9_408,
        "bn1": 128,
        "layer1": 147_968,
        "layer2": 525_568,
        "layer3": 2_099_712,
        "layer4": 8_393_728,
    }
    assert count(model.head) == 33_345
    assert len(list(model.parameters())) == 62


@pytest.mark.parametrize("name", [named(name) for name in MODELS])
def test_typical_input_fits_and_runs(name):
    input_shape, classes, vocabulary = MODELS[name].typical
    model = on_meta(name, input_shape=input_shape, classes=classes, vocabulary=vocabulary)
    assert isinstance(model, Backbone)
    dtype = torch.int64 if vocabulary else torch.float32
    assert model(torch.zeros(2, *input_shape, dtype=dtype, device="meta")).shape == (2, classes)


@pytest.mark.parametrize("name", [named(name) for name in MODELS if "images" in MODELS[name].takes])
@pytest.mark.parametrize(("channels", "grow"), [(1, 0), (5, 3)])
def test_smallest_images_and_any_channels(name, channels, grow):
    shape = (channels, MODELS[name].smallest + grow, MODELS[name].smallest)
    model = on_meta(name, input_shape=shape, classes=1)
    assert model(torch.empty(3, *shape, device="meta")).shape == (3, 1)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", [named(name) for name in MODELS if MODELS[name].smallest > 1])
def test_images_below_the_smallest_cannot_run(name):
    """If the limit were too strict, a smaller image would run."""
    shape = (3, MODELS[name].smallest - 1, MODELS[name].smallest - 1)
    with torch.device("meta"):
        model = MODELS[name].builder(shape, 1)
    with pytest.raises(RuntimeError):
        model(torch.empty(2, *shape, device="meta"))
