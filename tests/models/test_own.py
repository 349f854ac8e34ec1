"""User models by ``package.module:attribute`` or as objects."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.models import Backbone, build
from pfl_fast.nn import SeededDropout

SOURCE = """
    import torch
    from torch import nn
    from pfl_fast.models import Backbone

    class Net(nn.Module):
        def __init__(self, input_shape, classes):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), 5), nn.ReLU())
            self.fc = nn.Linear(5, classes)

        def forward(self, x):
            return self.fc(self.body(x))

    def make(shape, number):
        import helper_of_own_net
        return Net(shape, number)

    def make_backbone(shape, number):
        return Backbone(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), nn.Linear(torch.Size(shape).numel(), number), 6)

    def make_wrong(shape, number):
        return Backbone(nn.Flatten(), nn.Linear(6, 99), 6)

    def make_narrow(shape, number):
        return Backbone(nn.Flatten(), nn.Linear(6, number), 5)

    def alpha(shape, number):
        return Backbone(nn.Sequential(nn.Flatten(), nn.AlphaDropout()), nn.Linear(6, number), 6)

    def text(shape, number):
        return nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(4 * shape[0], number))

    def boom(shape, number):
        raise KeyError("oops")

    def number(shape, classes):
        return 7

    class Folder:
        inner = make_backbone

    instance = Net((2, 3), 4)
    value = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "broken_net.py").write_text("import no_such_thing")
    (tmp_path / "helper_of_own_net.py").write_text("")
    monkeypatch.chdir(tmp_path)
    # An installed command has no current folder in sys.path.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(tmp_path)}])
    yield tmp_path
    for name in ("own_net", "broken_net", "helper_of_own_net"):
        sys.modules.pop(name, None)


def own(name, **arguments):
    return build(name, **{"input_shape": (2, 3), "classes": 4} | arguments)


@pytest.mark.parametrize("attribute", ["Net", "make", "instance"])
def test_class_factory_and_instance(folder, attribute):
    model = own(f"own_net:{attribute}", head="fc")
    assert isinstance(model, Backbone)
    assert model.feature_width == 5
    assert model(torch.randn(3, 2, 3)).shape == (3, 4)
    assert str(folder) not in sys.path


@pytest.mark.usefixtures("folder")
def test_seed_and_instance():
    first, again, other = (own("own_net:Net", head="fc", seed=seed).head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    del sys.modules["own_net"]
    assert torch.equal(own("own_net:instance", head="fc").head.weight, sys.modules["own_net"].instance.fc.weight)
    kept = own("own_net:instance", head="fc")
    original = sys.modules["own_net"].instance
    assert torch.equal(kept.head.weight, original.fc.weight)
    assert kept.head is not original.fc


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("attribute", ["make_backbone", "Folder.inner"])
def test_backbone_needs_no_head(attribute):
    model = own(f"own_net:{attribute}")
    assert isinstance(model.extractor[1], SeededDropout)
    with pytest.raises(ConfigError, match=r"is a Backbone.*drop head='fc'"):
        own(f"own_net:{attribute}", head="fc")


@pytest.mark.usefixtures("folder")
def test_text():
    model = build("own_net:text", input_shape=(7,), classes=4, vocabulary=11, head="2")
    assert model.feature_width == 28


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("no_such_net:Net", {}, "cannot import 'no_such_net' .*ModuleNotFoundError.*current folder"),
        ("broken_net:Net", {}, "cannot import 'broken_net' .*no_such_thing"),
        ("own_net:Nett", {}, "no 'Nett' in 'own_net'; did you mean 'Net'"),
        ("own_net:Net.zzz", {}, "no 'zzz' in 'own_net'"),
        ("own_net:", {}, "write it as 'package.module:attribute'"),
        (":Net", {}, "write it as 'package.module:attribute'"),
        ("own_net:value", {}, "'own_net:value' must be an nn.Module.*got int"),
        ("own_net:number", {}, "must be an nn.Module.*got int"),
        ("own_net:boom", {}, r"calling it with \(input_shape=\(2, 3\), classes=4\) failed: KeyError: 'oops'"),
        ("own_net:Net", {}, "name the submodule that is the head, for example head='fc'"),
        ("own_net:Net", {"head": "fv"}, "no submodule 'fv'.*last linear layer is 'fc'"),
        ("own_net:Net", {"heat": "fc"}, "no option 'heat' .*did you mean 'head'"),
        ("own_net:instance", {"head": "fc", "classes": 5}, r"must return \[b, 5\] logits, got \[2, 4\]"),
        ("own_net:instance", {"head": "fc", "input_shape": (2, 4)}, r"cannot take an input of shape \[2, 2, 4\]"),
        ("own_net:make_wrong", {}, r"must return \[b, 4\] logits, got \[2, 99\]"),
        (
            "own_net:make_backbone",
            {"input_shape": (2, 3), "vocabulary": 5},
            r"head of .* cannot take features of shape \[2, 6\]: R",
        ),
        ("own_net:make_narrow", {}, r"must return \[b, 5\] features, got \[2, 6\]"),
        ("own_net:Net", {"head": 3}, "no submodule 3 .*last linear layer is 'fc'"),
        ("own_net:alpha", {}, "'own_net:alpha': .*AlphaDropout"),
    ],
)
def test_mistakes(name, arguments, words):
    with pytest.raises(ConfigError, match=words):
        own(name, **arguments)


def test_objects():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    assert torch.equal(own(model, head="3").head.weight, model[3].weight)

    def make(input_shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), classes))

    assert own(make, head="1").feature_width == 6
    with pytest.raises(ConfigError, match="model 'make': name the submodule"):
        own(make)
    with pytest.raises(ConfigError, match="no option 'x'"):
        own(make, x=1)
    with pytest.raises(ConfigError, match="must be an nn"):
        own(7, head="fc")
