"""Registry of models by name, and the default model of a data set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.alexnet import alexnet
from pfl_fast.models.base import Backbone
from pfl_fast.models.cnn import cnn
from pfl_fast.models.digits_cnn import digits_cnn
from pfl_fast.models.fasttext import fasttext
from pfl_fast.models.from_torchvision import from_torchvision
from pfl_fast.models.mlp import mlp
from pfl_fast.models.own import Source, label_of, own
from pfl_fast.randomness import key, torch_seed


@dataclass(frozen=True)
class ModelEntry:
    """One registered model.

    Attributes:
        builder: function of ``(input_shape, classes, **options)``, with ``vocabulary`` after ``classes`` for text.
        summary: one-line description.
        typical: input shape, number of classes and vocabulary size in the papers.
        takes: modalities: ``"images"``, ``"text"``, or ``"images and features"``.
        smallest: minimum height and width of images.
    """

    builder: Callable[..., Backbone]
    summary: str
    typical: tuple[tuple[int, ...], int, int]
    takes: str = "images"
    smallest: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """Names of the options and their defaults."""
        parameters = inspect.signature(self.builder).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


MODELS: dict[str, ModelEntry] = {
    "cnn": ModelEntry(cnn, "4-layer CNN: two 5x5 convolutions, two linear layers", ((3, 32, 32), 10, 0), smallest=16),
    "digits-cnn": ModelEntry(digits_cnn, "six-layer CNN with BatchNorm, of FedBN", ((3, 28, 28), 10, 0), smallest=4),
    "alexnet": ModelEntry(alexnet, "AlexNet with BatchNorm, of FedBN", ((3, 256, 256), 10, 0), smallest=63),
    "resnet18": ModelEntry(
        partial(from_torchvision, "resnet18", "conv1", "fc"),
        "ResNet-18 of torchvision, 7x7 stem",
        ((3, 224, 224), 65, 0),
    ),
    "fasttext": ModelEntry(fasttext, "mean of token embeddings, two linear layers", ((200,), 4, 98635), takes="text"),
    "mobilenet-v2": ModelEntry(
        partial(from_torchvision, "mobilenet-v2", "features.0.0", "classifier.1"),
        "MobileNetV2 of torchvision",
        ((3, 32, 32), 20, 0),
    ),
    "efficientnet-b0": ModelEntry(
        partial(from_torchvision, "efficientnet-b0", "features.0.0", "classifier.1"),
        "EfficientNet-B0 of torchvision",
        ((3, 32, 32), 20, 0),
    ),
    "densenet121": ModelEntry(
        partial(from_torchvision, "densenet121", "features.conv0", "classifier"),
        "DenseNet121 of torchvision",
        ((3, 32, 32), 20, 0),
        smallest=29,
    ),
    "mlp": ModelEntry(mlp, "linear layers with ReLU", ((1, 8, 8), 10, 0), takes="images and features"),
}
# Data sets whose papers use another model than the default of their modality.
PREFERRED = {
    "digits5": "digits-cnn",
    "office-caltech10": "alexnet",
    "domainnet": "alexnet",
    "office-home": "resnet18",
    "pacs": "resnet18",
}


def build(
    name: Source, *, input_shape: tuple[int, ...], classes: int, vocabulary: int = 0, seed: int = 0, **options: Any
) -> Backbone:
    """Builds a model; its weights depend on the arguments only.

    Args:
        name: key of ``MODELS``; or a user model (see :func:`own`) with the option ``head``: a module, class, factory
            function or ``"package.module:attribute"``.
        input_shape: shape of one sample: ``(c, h, w)`` for images, ``(L,)`` for tokens, any shape for features.
        classes: number of classes.
        vocabulary: number of tokens for text, 0 otherwise.
        seed: random seed of the weights.
        options: options of the model, for example ``cut="conv"``.

    Raises:
        ConfigError: for an unknown model or option, or an input that does not fit.

    >>> build("mlp", input_shape=(1, 8, 8), classes=10, hidden=[32]).head
    Linear(in_features=32, out_features=10, bias=True)
    """
    input_shape = tuple(input_shape)
    if classes < 1 or not input_shape or min(input_shape) < 1:
        raise ValueError(f"build: needs at least 1 class and 1 value, got input_shape={input_shape}, classes={classes}")
    if vocabulary < 0:
        raise ValueError(f"build: vocabulary must be at least 0, got {vocabulary}")
    if not isinstance(name, str) or ":" in name:
        _check_options(label_of(name), options, ["head"])
        return own(name, input_shape, classes, vocabulary, seed, **options)
    if name not in MODELS:
        hint = did_you_mean(name, MODELS)
        raise ConfigError(f"unknown model {name!r}{hint or '; choose one of ' + ', '.join(MODELS)}")
    entry = MODELS[name]
    _check_options(name, options, entry.options)
    problem = _misfit(entry, input_shape, vocabulary)
    if problem:
        modality = "text" if vocabulary else "images" if len(input_shape) == 3 else "features"
        raise ConfigError(f"model {name!r} {problem}; use {default_model('', modality, input_shape)!r}, or other data")
    text = (vocabulary,) if entry.takes == "text" else ()
    with torch_seed(key(seed, "model")):
        return entry.builder(input_shape, classes, *text, **options)


def default_model(dataset_name: str, modality: str, input_shape: tuple[int, ...]) -> str:
    """Returns the name of the default model: the papers' model if it accepts the input.

    Args:
        dataset_name: name of the data set; unknown names get the default of the modality.
        modality: ``"images"``, ``"text"`` or ``"features"``.
        input_shape: shape of one sample.

    >>> default_model("digits5", "images", (3, 32, 32)), default_model("digits", "images", (1, 8, 8))
    ('digits-cnn', 'mlp')
    """
    if modality not in {"images", "text", "features"}:
        raise ValueError(f"default_model: modality must be images, text or features, got {modality!r}")
    if modality == "text":
        return "fasttext"
    for name in (PREFERRED.get(dataset_name), "cnn"):
        if modality == "images" and name and not _misfit(MODELS[name], input_shape, vocabulary=0):
            return name
    return "mlp"


def _misfit(entry: ModelEntry, input_shape: tuple[int, ...], vocabulary: int) -> str:
    """Returns why the model does not accept the input, or an empty string."""
    shape = "x".join(map(str, input_shape))
    if vocabulary and entry.takes == "text" and len(input_shape) != 1:
        return f"takes one sequence of tokens per sample, but the input is {shape}"
    if vocabulary and entry.takes != "text":
        return f"takes {entry.takes}, but the input is text ({shape} tokens, vocabulary {vocabulary})"
    if not vocabulary and entry.takes == "text":
        return f"takes text (tokens and a vocabulary), but the input is {shape} without a vocabulary"
    if entry.takes == "images":
        if len(input_shape) != 3:
            return f"takes images (channels, height, width), but the input is features ({shape})"
        if min(input_shape[1:]) < entry.smallest:
            return f"takes images of at least {entry.smallest}x{entry.smallest}, but the input is {shape}"
    return ""


def _check_options(name: str, options: dict[str, Any], known: Any) -> None:
    for option in options:
        if option not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"model {name!r} has no option {option!r} ({there}){did_you_mean(option, known)}")
