"""Builds the parts of an experiment from its settings: method, data, model, batches, devices."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_fast.config import Settings
from pfl_fast.data.augment import AUGMENTATIONS
from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.domain_catalogue import IMAGENET_MEAN, IMAGENET_STD
from pfl_fast.data.federated import FederatedData
from pfl_fast.data.load import load
from pfl_fast.data.own_files import is_path
from pfl_fast.data.partition import Partition, make_partition
from pfl_fast.data.partition.own_lists import partition_from_lists
from pfl_fast.data.partition.split_file import is_split_file
from pfl_fast.data.progress import shown
from pfl_fast.errors import ConfigError, did_you_mean, raise_config_errors
from pfl_fast.methods import METHODS, Method
from pfl_fast.methods.base import RunContext, local_tensor_names, reinitialized, without_values
from pfl_fast.methods.papers import FIRST
from pfl_fast.models import Backbone, absolute_code, build, default_model, find_object
from pfl_fast.models.own import Source
from pfl_fast.options import convert, unknown
from pfl_fast.own_objects import described, is_described, path_or_description, refuse_descriptions
from pfl_fast.randomness import key, torch_seed


@dataclass(frozen=True)
class Resolved:
    """Settings and options of a run. Later sources win: defaults, values of the method's paper, preset, user's values.

    Attributes:
        settings: settings of the run.
        options: options of the method.
        method: class of the method.
        chosen: values of the preset and the user, by name.
    """

    settings: Settings
    options: Any
    method: type[Method]
    chosen: Mapping[str, Any]

    def with_model(self, model: str) -> Resolved:
        """Returns the same choices with the paper's values for ``model``, which may depend on the loaded data set."""
        return _merge(self.method, {**self.chosen, "model": model}, model, [])


def resolve(
    method_class: type[Method],
    values: Mapping[str, Any],
    model: str = "cnn",
    preset: str | None = None,
    errors: Iterable[str] = (),
) -> Resolved:
    """Sorts values into settings and options of the method, and reports all errors at once.

    Args:
        method_class: class of the method.
        values: the user's values by name; text is converted.
        model: name of the model, for the paper's values.
        preset: name of a preset, see :meth:`pfl_fast.methods.Method.preset`.
        errors: errors found before, reported together with those of the values.
    """
    errors = list(errors)
    dataset = str(values.get("dataset", Settings.dataset))
    from_preset = {} if preset is None else method_class.preset(preset, dataset)
    if from_preset is None:
        errors.append(no_preset(method_class, str(preset), dataset))
    return _merge(method_class, {**(from_preset or {}), **values}, model, errors)


def no_preset(method_class: type[Method], preset: str, dataset: str) -> str:
    """Returns the error about a preset that a method does not have for a data set."""
    if preset == "paper":
        return (
            f"preset: 'paper' has the settings of a paper's experiments, but no paper uses dataset {dataset!r}; take "
            f"{', '.join(sorted(FIRST))}, or leave preset out"
        )
    return (
        f"preset: {method_class.title} has {', '.join(dict.fromkeys(['paper', *method_class.presets]))}, got {preset!r}"
    )


def _merge(method_class: type[Method], chosen: Mapping[str, Any], model: str, errors: list[str]) -> Resolved:
    merged = {**method_class.defaults(model, str(chosen.get("dataset", Settings.dataset))), **chosen}
    settings_names = {f.name for f in fields(Settings)}
    option_names = {f.name for f in fields(method_class.Options)}
    for name in merged:
        if name not in settings_names | option_names:
            errors.append(unknown(name, [*option_names, *settings_names]))
    settings = convert(Settings, {n: v for n, v in merged.items() if n in settings_names}, errors)
    options = convert(method_class.Options, {n: v for n, v in merged.items() if n in option_names}, errors)
    if settings.get("join_ratio") == 0 and not settings.get("random_join"):
        errors.append("join_ratio: must be positive, got 0: no client would train")
    raise_config_errors(errors)
    settings |= {"model": absolute_code(settings["model"])} if "model" in settings else {}
    settings |= {"metrics": tuple(map(absolute_code, settings["metrics"]))} if "metrics" in settings else {}
    settings |= {name: absolute(name, settings[name]) for name in ("dataset", "partition") if name in settings}
    return Resolved(Settings(**settings), method_class.Options(**options), method_class, chosen)


def absolute(name: str, value: str) -> str:
    """Returns a data set or partition that is named by its path, by its absolute path, and any other as it is."""
    if is_described(value) or not (is_path(value) if name == "dataset" else is_split_file(value)):
        return value
    return str(Path(value).expanduser().resolve())


def find_method(method: str | type[Method]) -> type[Method]:
    """Returns a method by its name, by ``"file.py:Class"`` or ``"package.module:Class"``, or the class itself."""
    if not isinstance(method, str):
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(
                f"method: must be the name of a method or a subclass of pfl_fast.methods.Method; got {_kind(method)}"
            )
        return _with_parts(method)
    refuse_descriptions({"method": method})
    if ":" in method:
        found = find_object(method, "method")
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise ConfigError(f"method {method!r}: must be a subclass of pfl_fast.methods.Method; got {_kind(found)}")
        return _with_parts(found)
    if method.endswith(".py"):
        raise ConfigError(f"method {method!r}: name the class too, {method}:CLASS")
    if method not in METHODS:
        hint = did_you_mean(method, METHODS) or f"; there is {', '.join(METHODS)}"
        raise ConfigError(f"no method {method!r}{hint}")
    return METHODS[method]


def _with_parts(method: type[Method]) -> type[Method]:
    if method.parts is Method.parts:
        raise ConfigError(
            f"method {method.__name__} has no parts(self, backbone): return the parts of a client's model by name, "
            'such as {"extractor": shared(backbone.extractor, "extractor"), "head": personal(backbone.head)}'
        )
    return method


def method_name(method: type[Method]) -> str:
    """Returns the name of a method on the command line; of a class of the user, the class's name."""
    return next((name for name, known in METHODS.items() if known is method), method.__name__.lower())


def partition_of(
    partition: str | Path | Partition | Iterable[Any] | None, dataset: Dataset, settings: Settings
) -> tuple[Partition, str]:
    """Returns the partition and its name in the settings.

    Args:
        partition: partition or lists of sample numbers; a name or None: that of the settings.
        dataset: data set.
        settings: settings of the run.
    """
    if partition is None or isinstance(partition, (str, Path)):
        refuse_descriptions({"partition": settings.partition})
        return make_partition(dataset, settings), settings.partition
    found = partition if isinstance(partition, Partition) else partition_from_lists(partition, dataset, settings)
    return found, described(f"{found.rule}, {found.clients} clients, hash {found.hash}")


def load_named(settings: Settings, log: Callable[[str], None]) -> Dataset:
    """Loads the data set that the settings name; see :func:`pfl_fast.data.load.load`."""
    refuse_descriptions({"dataset": settings.dataset})
    folder = Path(settings.data_dir).expanduser() if settings.data_dir else None
    return load(
        settings.dataset,
        folder=folder,
        size=settings.image_size,
        real_only=settings.real_data_only,
        stand_in_samples=settings.samples,
        log=log,
        progress=shown,
    )


def describe_model(model: object) -> str:
    """Returns the setting of a model that is an object; raises unless it is a module, class or function."""
    if isinstance(model, nn.Module):
        size = sum(parameter.numel() for parameter in model.parameters())
        return described(f"{type(model).__module__}:{type(model).__qualname__}, {size} parameters")
    if not callable(model):
        raise TypeError(
            "model: must be the name of a model, 'module:attribute', an nn.Module, or a class or function of "
            f"(input_shape, classes) that returns one; got {_kind(model)}"
        )
    return path_or_description(model)


def model_name(model: str, dataset: Dataset) -> str:
    """Returns the name of the model in results; ``"auto"`` is the default model of the data set."""
    return default_model(dataset.name, dataset.modality, dataset.input_shape) if model == "auto" else model


def build_model(model: Source, dataset: Dataset, settings: Settings, seed: int | None = None) -> Backbone:
    """Returns the initial model, common to all clients; ``seed`` replaces that of the run."""
    refuse_descriptions({"model": model})
    options = model_options(settings.model_options)
    if settings.head:
        options["head"] = settings.head
    return build(
        model,
        input_shape=dataset.input_shape,
        classes=len(dataset.classes),
        vocabulary=dataset.vocabulary,
        seed=settings.seed if seed is None else seed,
        **options,
    )


def redraw(model: Source, dataset: Dataset, settings: Settings) -> Callable[[str, int], nn.Module]:
    """Returns a function that builds extractor or head with other initial weights.

    The model is built again from the given seed, so that all weights keep their distribution; pretrained weights are
    the same in every build. The layers of a module that was passed as an object are reinitialized by
    ``reset_parameters()``.
    """

    def redrawn(part: str, seed: int) -> nn.Module:
        source = find_object(model, "model") if isinstance(model, str) and ":" in model else model
        module = build_model(model, dataset, settings, seed).get_submodule(part)
        if not isinstance(source, nn.Module):
            return module
        with torch_seed(key(seed, part)):
            return reinitialized(module)

    return redrawn


def model_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Returns ``["cut=conv", "hidden=[64, 32]"]`` as a dictionary; Python literals are converted.

    >>> model_options(["cut=conv", "pretrained=True"])
    {'cut': 'conv', 'pretrained': True}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"model_options: must be name=value, got {pair!r}")
        try:
            options[name] = literal_eval(text)
        except (ValueError, SyntaxError):
            options[name] = text
    return options


def federated_data(dataset: Dataset, partition: Partition, settings: Settings, has_batch_norm: bool) -> FederatedData:
    """Returns the client data. With BatchNorm, last batches of a single sample are dropped."""
    s = settings
    if has_batch_norm and s.batch_size == 1:
        raise ConfigError("batch_size: BatchNorm cannot train on single samples; take at least 2")
    entry = DATASETS.get(dataset.name)
    augment = (entry.augment if entry else "none") if s.augment == "auto" else s.augment
    if augment not in AUGMENTATIONS:
        hint = did_you_mean(augment, AUGMENTATIONS)
        raise ConfigError(f"augment: must be one of {', '.join(AUGMENTATIONS)}, got {augment!r}{hint}")
    if augment != "none" and dataset.modality != "images":
        raise ConfigError(f"augment: {augment} is for images, but {dataset.name} is {dataset.modality}")
    if s.normalise != "auto":
        dataset = normalised(dataset, s.normalise)
    return FederatedData(
        dataset,
        partition,
        batch_size=s.batch_size,
        seed=s.seed,
        shuffle=s.shuffle,
        drop_last=s.drop_last,
        merge_last=s.merge_last,
        skip_single=has_batch_norm,
        augment=augment,
        dtype=getattr(torch, s.dtype),
    )


def normalised(dataset: Dataset, name: str) -> Dataset:
    """Returns the data set with another mean and standard deviation of its images."""
    channels = dataset.x.shape[-1]
    if dataset.modality != "images" or (name == "imagenet" and channels != 3):
        shown = f"{channels} channels" if dataset.modality == "images" else dataset.modality
        raise ConfigError(f"normalise: {name} is for images{' of 3 channels' * (name == 'imagenet')}, got {shown}")
    if name == "imagenet":
        return replace(dataset, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    mean, std = (0.5, 0.5) if name == "half" else (0.0, 1.0)
    return replace(dataset, mean=(mean,) * channels, std=(std,) * channels)


def method_context(
    dataset: Dataset,
    partition: Partition,
    settings: Settings,
    method_class: type[Method],
    backbone: Backbone,
    model: Source,
) -> RunContext:
    """Returns the facts about the run that a method may use; ``model`` is the source of the ``backbone``."""

    def count_classes(client: int) -> Tensor:
        labels = torch.from_numpy(np.array(dataset.y[partition.train[client]]))
        return torch.bincount(labels, minlength=len(dataset.classes))

    batch_norm = method_class.batch_norm if settings.batch_norm == "auto" else settings.batch_norm
    parameters = [name for name, _ in backbone.named_parameters()]
    local = local_tensor_names(backbone, batch_norm)
    return RunContext(
        clients=partition.clients,
        rounds=settings.rounds,
        local_epochs=settings.local_epochs,
        classes=len(dataset.classes),
        batch_norm=batch_norm,
        everyone_joins=(settings.join_ratio >= 1 and not settings.random_join) or settings.train_all,
        count_classes=count_classes,
        parameters=tuple(parameters),
        exchanged_parameters=tuple(name for name in parameters if name not in local),
        backbone=without_values(backbone),
        finetune_epochs=settings.finetune_epochs,
        seed=settings.seed,
        redrawn=redraw(model, dataset, settings),
    )


def part_table_settings(settings: Settings, method: Method) -> dict[str, Any]:
    """Returns the arguments of the part table other than the parts."""
    phases = method.every_phase()
    momentum = settings.momentum or any(phase.sgd.get("momentum") for phase in phases)
    return {
        "batch_norm": method.context.batch_norm,
        "everyone_receives": method.context.everyone_joins,
        "dtype": getattr(torch, settings.dtype),
        "momentum": None if not momentum else "kept" if settings.keep_momentum else "round",
        "adam": {part for phase in phases for part in phase.adam},
        "final_round": bool(method.final_phases()),
        "server_state": method.server_state,
    }


def find_devices(name: str) -> list[torch.device]:
    """Returns the devices named by a setting such as ``"cuda:0,cuda:1"``."""
    if name == "auto":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.device("cuda", i) for i in range(count)] or [torch.device("cpu")]
    try:
        devices = [torch.device(part.strip()) for part in name.split(",")]
    except RuntimeError as error:
        raise ConfigError(f"device: {error}, got {name!r}") from None
    for device in devices:
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"device: {device} does not exist; pfl-fast doctor lists the devices")
    return devices


def _kind(value: object) -> str:
    return f"the object {value!r}" if isinstance(value, (int, float)) else f"an object of {type(value).__qualname__}"
