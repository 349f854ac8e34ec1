"""Models built by name: weights depend on the seed only, and mistakes are explained."""

import sys
import urllib.error

import pytest
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from pfl_fast.errors import ConfigError
from pfl_fast.models import MODELS, build, default_model
from pfl_fast.nn import SeededDropout, seed_dropout
from tests.models.conftest import VISION, named, needs_torchvision

SMALL = {
    "cnn": (3, 16, 16),
    "digits-cnn": (3, 8, 8),
    "alexnet": (3, 63, 63),
    "fasttext": (7,),
    "mlp": (2, 3),
} | dict.fromkeys(VISION, (3, 32, 32))


def small(name, seed=0, classes=5, **options):
    vocabulary = 11 if name == "fasttext" else 0
    return build(name, input_shape=SMALL[name], classes=classes, vocabulary=vocabulary, seed=seed, **options)


def inputs(name, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if name == "fasttext":
        return torch.randint(0, 11, (batch, *SMALL[name]), generator=generator)
    return torch.randn(batch, *SMALL[name], generator=generator)


@pytest.mark.parametrize("name", [named(name) for name in MODELS if name != "alexnet"])
def test_weights_depend_on_the_seed_only(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = small(name).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = small(name).state_dict(), small(name, seed=1).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert all(key.startswith(("extractor.", "head.")) for key in first)


@pytest.mark.parametrize("name", [named(name) for name in MODELS])
def test_forward_gradients_and_no_torch_randomness(name):
    model = small(name)
    assert model.training
    assert not any(isinstance(layer, _DropoutNd) for layer in model.modules())
    before = torch.get_rng_state()
    logits = model(inputs(name, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert logits.shape == (3, 5)
    assert torch.isfinite(logits).all()
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    # In evaluation mode one sample is enough, with BatchNorm too.
    assert model.eval()(inputs(name, 1)).shape == (1, 5)


@pytest.mark.parametrize("name", [named(name) for name in MODELS if name not in VISION])
def test_empty_batch(name):
    assert small(name).eval()(inputs(name, 0)).shape == (0, 5)


@pytest.mark.parametrize(("cut", "head"), [("fc", "stack"), ("conv", "stack")])
def test_every_cut_of_the_digits_cnn_computes_the_same_logits(cut, head):
    whole = small("digits-cnn").eval()
    other = small("digits-cnn", cut=cut, head=head).eval()
    x = inputs("digits-cnn", 3)
    assert torch.equal(whole(x), other(x))
    assert torch.equal(other.head(other.extractor(x)), other(x))


def test_fasttext_counts_padding():
    model = small("fasttext")
    tokens = torch.tensor([[3, 5, 0, 0, 0, 0, 0]], dtype=torch.int32)
    table = model.extractor.embedding.weight
    assert torch.equal(table[0], torch.zeros(32))
    torch.testing.assert_close(model.extractor(tokens)[0], model.extractor.linear((table[3] + table[5]) / 7))


def test_mlp_without_hidden_layers_is_linear():
    model = small("mlp", hidden=[])
    assert (model.feature_width, len(list(model.parameters()))) == (6, 2)
    assert small("mlp", hidden=7).feature_width == 7


@needs_torchvision
@pytest.mark.parametrize("name", ["mobilenet-v2", "efficientnet-b0"])
def test_dropout_is_the_last_layer_of_the_extractor(name):
    model = small(name)
    last = list(model.extractor.classifier.children())
    assert isinstance(last[0], SeededDropout)
    assert isinstance(last[1], nn.Identity)
    assert isinstance(model.head, nn.Linear)


@needs_torchvision
def test_stochastic_depth_drops_whole_samples():
    model = small("efficientnet-b0")
    rows = [layer for layer in model.modules() if isinstance(layer, SeededDropout) and layer.noise_dims == 1]
    assert len(rows) == 16
    assert len({layer.salt for layer in model.modules() if isinstance(layer, SeededDropout)}) == 17
    x = inputs("efficientnet-b0", 8)
    first = model(x)
    seed_dropout(model, 1)
    assert not torch.equal(model(x), first)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("cn", {}, ["unknown model 'cn'", "did you mean 'cnn'"]),
        ("transformer-xl", {}, ["unknown model", "cnn, digits-cnn", "mlp"]),
        ("digits-cnn", {"cutt": "fc"}, ["'digits-cnn'", "no option 'cutt'", "cut, head", "did you mean 'cut'"]),
        ("cnn", {"width": 3}, ["'cnn' has no option 'width'", "it has none"]),
        ("digits-cnn", {"cut": "cov"}, ["cut must be one of fc, conv", "did you mean 'conv'"]),
        ("digits-cnn", {"head": "linear"}, ["already linear", "cut='conv'"]),
        ("digits-cnn", {"cut": "conv", "head": "deep"}, ["head must be one of stack, linear"]),
        ("alexnet", {"cut": "fc7", "input_shape": (3, 63, 63)}, ["cut must be one of relu7, fc6"]),
        ("mlp", {"hidden": "128"}, ["hidden must be a list", "'128'"]),
        ("mlp", {"hidden": 1.5}, ["hidden must be a list"]),
        ("mlp", {"hidden": [4, 0]}, ["hidden must be an integer of at least 1, got 0"]),
        ("mlp", {"hidden": [True]}, ["hidden must be an integer of at least 1"]),
        ("resnet18", {"pretrained": "yes"}, ["'resnet18'", "pretrained must be true or false"]),
        ("resnet18", {"pretrained": True, "input_shape": (1, 28, 28)}, ["3 channels", "has 1", "pretrained=false"]),
        ("cnn", {"input_shape": (1, 8, 8)}, ["'cnn'", "at least 16x16", "1x8x8", "use 'mlp'"]),
        ("cnn", {"input_shape": (1, 16, 15)}, ["at least 16x16", "1x16x15"]),
        ("alexnet", {"input_shape": (3, 32, 32)}, ["at least 63x63", "use 'cnn'"]),
        ("cnn", {"input_shape": (20,)}, ["images", "features (20)", "use 'mlp'"]),
        ("cnn", {"input_shape": (200,), "vocabulary": 50}, ["text", "vocabulary 50", "use 'fasttext'"]),
        ("mlp", {"input_shape": (200,), "vocabulary": 50}, ["images and features", "text", "use 'fasttext'"]),
        ("fasttext", {"input_shape": (3, 32, 32)}, ["takes text", "3x32x32", "use 'cnn'"]),
        ("fasttext", {"input_shape": (3, 4), "vocabulary": 5}, ["one sequence of tokens", "3x4"]),
        ("fasttext", {"input_shape": (3,), "vocabulary": 5, "width": 0}, ["width must be an integer of at least 1"]),
    ],
)
def test_mistakes(name, arguments, words):
    with pytest.raises(ConfigError) as caught:
        build(name, **{"input_shape": (3, 32, 32), "classes": 10} | arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [{"classes": 0}, {"input_shape": ()}, {"input_shape": (3, 0, 32)}, {"vocabulary": -1}]
)
def test_misuse(arguments):
    with pytest.raises(ValueError, match="build: "):
        build("cnn", **{"input_shape": (3, 32, 32), "classes": 10} | arguments)


@pytest.mark.parametrize("name", sorted(VISION))
@pytest.mark.parametrize("broken", [ImportError("no such module"), RuntimeError("operator nms\nmissing"), OSError("")])
def test_torchvision_missing_or_broken(name, broken, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "torchvision":
                raise broken

    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ConfigError) as caught:
        build(name, input_shape=(3, 32, 32), classes=10)
    message = str(caught.value)
    assert f"model '{name}' needs torchvision" in message
    assert "pip install" in message
    assert "\n" not in message
    assert build("cnn", input_shape=(3, 32, 32), classes=10).feature_width == 512


@needs_torchvision
def test_pretrained_without_network(monkeypatch):
    from torchvision.models import _api

    def refuse(*args, **kwargs):  # noqa: ARG001
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(_api, "load_state_dict_from_url", refuse)
    with pytest.raises(ConfigError, match=r"'resnet18': the pretrained weights.*no route to host.*pretrained=false"):
        build("resnet18", input_shape=(3, 32, 32), classes=10, pretrained=True)


@needs_torchvision
@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
def test_pretrained_extractor_with_a_seeded_head(name, monkeypatch):
    import torchvision
    from torchvision.models import _api

    torch.manual_seed(0)
    weights = getattr(torchvision.models, name.replace("-", "_"))().state_dict()
    monkeypatch.setattr(_api, "load_state_dict_from_url", lambda *args, **kwargs: weights)  # noqa: ARG005
    first, second = (small(name, seed=seed, pretrained=True).state_dict() for seed in (0, 1))
    shared = [key for key in weights if f"extractor.{key}" in first]
    assert len(shared) == len(weights) - 2
    assert all(torch.equal(first[f"extractor.{key}"], weights[key]) for key in shared)
    assert first["head.weight"].shape[0] == 5
    assert not torch.equal(first["head.weight"], second["head.weight"])


@pytest.mark.parametrize(
    ("dataset", "modality", "input_shape", "expected"),
    [
        ("mnist", "images", (1, 28, 28), "cnn"),
        ("fashion-mnist", "images", (1, 28, 28), "cnn"),
        ("cifar10", "images", (3, 32, 32), "cnn"),
        ("cifar100", "images", (3, 32, 32), "cnn"),
        ("tiny", "images", (3, 64, 64), "cnn"),
        ("digits5", "images", (3, 32, 32), "digits-cnn"),
        ("office-caltech10", "images", (3, 256, 256), "alexnet"),
        ("domainnet", "images", (3, 256, 256), "alexnet"),
        ("domainnet", "images", (3, 32, 32), "cnn"),
        ("office-home", "images", (3, 224, 224), "resnet18"),
        ("pacs", "images", (3, 224, 224), "resnet18"),
        ("agnews", "text", (200,), "fasttext"),
        ("digits", "images", (1, 8, 8), "mlp"),
        ("mine", "images", (1, 16, 15), "mlp"),
        ("mine", "images", (1, 16, 16), "cnn"),
        ("mine", "features", (3, 32, 32), "mlp"),
        ("mine", "features", (20,), "mlp"),
    ],
)
def test_default_model(dataset, modality, input_shape, expected):
    assert default_model(dataset, modality, input_shape) == expected


def test_default_model_of_an_unknown_kind():
    with pytest.raises(ValueError, match="modality must be images, text or features, got 'sound'"):
        default_model("mine", "sound", (3,))
