"""User modules split by the name of their head."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_fast.errors import ConfigError
from pfl_fast.models import split
from pfl_fast.nn import SeededDropout
from tests.models.conftest import needs_torchvision


class Net(nn.Module):
    """A typical user classifier; ``end`` is applied to the logits."""

    def __init__(self, end=lambda logits: logits):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
        self.end = end

    def forward(self, x):
        return self.end(self.classifier(self.body(x)))


X = torch.linspace(-1, 2, 4 * 6).reshape(4, 2, 3)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_dotted_head(batch):
    model = Net()
    names = set(model.state_dict())
    backbone = split(model, "classifier.1", example_input=X[:batch])
    assert torch.equal(backbone.eval()(X), model.eval()(X))
    assert backbone.feature_width == 5
    assert isinstance(backbone.head, nn.Linear)
    assert isinstance(backbone.extractor.classifier[0], SeededDropout)
    assert {name for name in backbone.state_dict() if name.startswith("head.")} == {"head.weight", "head.bias"}
    assert "extractor.body.1.weight" in backbone.state_dict()
    assert set(model.state_dict()) == names, "the user's module must not change"
    assert isinstance(model.classifier[0], nn.Dropout)


def test_a_head_of_several_layers():
    model = Net()
    backbone = split(model, "classifier", example_input=X)
    assert isinstance(backbone.head[0], SeededDropout)
    assert "head.1.weight" in backbone.state_dict()
    assert torch.equal(backbone.eval()(X), model.eval()(X))


@pytest.mark.parametrize("training", [True, False])
def test_weights_statistics_and_mode_are_kept(training):
    model = Net().train(training)
    model.body[2].running_mean.fill_(3.0)
    backbone = split(model, "classifier.1", example_input=X)
    assert torch.equal(backbone.extractor.body[2].running_mean, torch.full((5,), 3.0))
    assert backbone.extractor.body[2].num_batches_tracked == 0
    assert backbone.training is training
    assert all(layer.training is training for layer in backbone.modules())


def test_lazy_modules_are_initialised():
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))
    backbone = split(model, "3", example_input=X)
    assert backbone.extractor[1].in_features == 6
    assert backbone.feature_width == 5


def test_on_the_meta_device():
    with torch.device("meta"):
        backbone = split(Net(), "classifier.1", example_input=torch.empty(4, 2, 3))
    assert backbone.feature_width == 5


@pytest.mark.parametrize(
    "end",
    [
        lambda z: z.softmax(-1),
        torch.relu,
        lambda z: 2 * z,
        lambda z: z[:, :2],
        lambda z: z.flip(1),
    ],
)
def test_head_that_is_not_the_last_layer(end):
    with pytest.raises(ConfigError, match=r"Net.*'classifier\.1' is not the last"):
        split(Net(end), "classifier.1", example_input=X)


def test_relu_after_the_head_is_found_even_if_all_logits_are_positive():
    model = Net(torch.relu)
    with torch.no_grad():
        model.classifier[1].bias.fill_(100)
    assert (model.eval()(X) > 0).all()
    with pytest.raises(ConfigError, match="is not the last layer of the model"):
        split(model, "classifier.1", example_input=X)


def test_head_that_is_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return self.fc(self.fc(x.flatten(1)))

    with pytest.raises(ConfigError, match="'fc' is not the last layer of the model"):
        split(Twice(), "fc", example_input=X)


def test_head_in_the_middle():
    with pytest.raises(ConfigError, match=r"without its head 'body\.1' cannot take \[4, 2, 3\]"):
        split(Net(), "body.1", example_input=X)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("clasifier", "did you mean 'classifier'"),
        ("zz", r"last linear layer is 'classifier\.1'"),
        ("", "no submodule ''"),
    ],
)
def test_unknown_head(head, words):
    with pytest.raises(ConfigError, match=words):
        split(Net(), head, example_input=X)


def test_features_must_be_flat():
    class Spatial(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return self.fc(x)

    with pytest.raises(ConfigError, match=r"input of the head 'fc' must be \[b, K\], got \[4, 2, 3\]"):
        split(Spatial(), "fc", example_input=X)


def test_input_that_does_not_fit():
    with pytest.raises(ConfigError, match=r"Net cannot take an input of shape \[4, 7\]: RuntimeError"):
        split(Net(), "classifier.1", example_input=torch.randn(4, 7))


def test_model_that_returns_no_tensor():
    with pytest.raises(ConfigError, match="and return a tensor, got tuple"):
        split(Net(lambda z: (z, z)), "classifier.1", example_input=X)


def test_tied_parameters():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[3].weight = model[1].weight
    with pytest.raises(ConfigError, match="share 1 parameters; untie"):
        split(model, "3", example_input=X)


def test_alpha_dropout():
    model = nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(6, 3))
    with pytest.raises(ConfigError, match=r"Sequential: .*AlphaDropout"):
        split(model, "2", example_input=X)


def test_model_that_uses_torchs_random_generator():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(functional.dropout(x.flatten(1), 0.5, self.training))

    model, before = Noisy(), torch.get_rng_state()
    with pytest.raises(ConfigError, match=r"Noisy uses torch's random generator.*nn\.Dropout"):
        split(model, "fc", example_input=X)
    assert torch.equal(before, torch.get_rng_state())


@needs_torchvision
@pytest.mark.parametrize(("name", "head", "width"), [("squeezenet1_1", "", 0), ("shufflenet_v2_x0_5", "fc", 1024)])
def test_other_models_of_torchvision(name, head, width):
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=7)
    x = torch.randn(2, 3, 64, 64)
    if not head:  # the head is a convolution, whose input is not [b, K]
        with pytest.raises(ConfigError, match=r"must be \[b, K\]|not the last"):
            split(model, "classifier.1", example_input=x)
        return
    assert split(model, head, example_input=x).feature_width == width
