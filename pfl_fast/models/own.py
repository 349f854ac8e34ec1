"""Backbones from user models: a module, class, factory function or ``"package.module:attribute"``."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.base import Backbone
from pfl_fast.models.split import check_randomness, run, split
from pfl_fast.nn import replace_dropout
from pfl_fast.randomness import key, torch_seed, uniform

Source = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]


def own(
    source: Source,
    input_shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    seed: int = 0,
    *,
    head: str | None = None,
) -> Backbone:
    """Builds a Backbone from a user model.

    Args:
        source: ``"package.module:attribute"`` (also searched in the current folder), or the object itself: a module,
            which keeps its weights, or a class or function called with ``(input_shape, classes)``.
        input_shape: shape of one sample.
        classes: number of classes, checked against the model's output.
        vocabulary: number of tokens for text, 0 otherwise.
        seed: random seed of weights initialised by the call.
        head: name of the submodule used as head; None if the model is a Backbone.
    """
    label = label_of(source)
    with _current_folder():
        # A module may draw random numbers when first imported; a separate seed keeps later draws independent of that.
        with torch_seed(key(seed, "import")):
            found = find_object(source, "model") if isinstance(source, str) else source
        with torch_seed(key(seed, "model")):
            model = _make(label, found, input_shape, classes)
            return _as_backbone(label, model, _example(model, input_shape, vocabulary), classes, head)


def _as_backbone(label: str, model: nn.Module, example: Tensor, classes: int, head: str | None) -> Backbone:
    if isinstance(model, Backbone):
        if head is not None:
            raise ConfigError(f"model {label!r} is a Backbone, which has a head; drop head={head!r}")
        backbone = copy.deepcopy(model)
        try:
            replace_dropout(backbone)
        except TypeError as error:
            raise ConfigError(f"model {label!r}: {error}") from error
        check_randomness(backbone, example, label)
    elif head is None:
        linear = [name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)]
        hint = f"head={linear[-1]!r}" if linear else "head='fc'"
        raise ConfigError(f"model {label!r}: name the submodule that is the head, for example {hint}")
    else:
        backbone = split(model, head, example_input=example)
    _check_shapes(label, copy.deepcopy(backbone).eval(), example, classes)
    return backbone


def _check_shapes(label: str, backbone: Backbone, example: Tensor, classes: int) -> None:
    features = run(backbone.extractor, example, f"model {label!r} cannot take an input of shape")
    logits = run(backbone.head, features, f"the head of model {label!r} cannot take features of shape")
    for output, width, got in (("features", backbone.feature_width, features), ("logits", classes, logits)):
        if list(got.shape) != [len(example), width]:
            raise ConfigError(
                f"model {label!r} must return [b, {width}] {output}, got {list(got.shape)} for b = {len(example)}"
            )


def label_of(source: Source) -> str:
    """Returns the name of a model in error messages."""
    return source if isinstance(source, str) else str(getattr(source, "__name__", type(source).__name__))


def find_object(path: str, what: str) -> Any:
    """Imports a user's object by name, from the current folder too.

    Args:
        path: ``"package.module:attribute"`` or ``"path/to/file.py:attribute"``.
        what: name of the object's role, the first word of error messages.
    """
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{what} {path!r}: write it as 'package.module:attribute' or 'file.py:attribute'")
    try:
        with _current_folder():
            of_file = module_name.endswith(".py")
            found: Any = _module_of_file(Path(module_name)) if of_file else importlib.import_module(module_name)
    except Exception as error:  # users' code may raise anything
        raise ConfigError(
            f"{what} {path!r}: cannot import {module_name!r} ({type(error).__name__}: {error}); "
            + ("correct the file" if of_file else "it must be in the current folder, installed or on PYTHONPATH")
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            hint = did_you_mean(name, [known for known in dir(found) if not known.startswith("_")])
            raise ConfigError(f"{what} {path!r}: there is no {name!r} in {module_name!r}{hint}")
        found = getattr(found, name)
    return found


def absolute_code(path: str) -> str:
    """Returns ``"file.py:attribute"`` with the absolute path of the file, and any other name as it is.

    >>> absolute_code("nets:Small"), absolute_code("/home/me/nets.py:Small")
    ('nets:Small', '/home/me/nets.py:Small')
    """
    file, colon, attribute = path.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{attribute}" if colon and file.endswith(".py") else path


def _module_of_file(file: Path) -> ModuleType:
    """Imports a file under its absolute path, which cannot be the name of another module."""
    file = file.expanduser().resolve()
    name = str(file)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.parent))
    return module


def _make(label: str, found: Any, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found(input_shape, classes)
        except Exception as error:  # users' code may raise anything
            raise ConfigError(
                f"model {label!r}: calling it with (input_shape={input_shape}, classes={classes}) failed:"
                f" {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"model {label!r} must be an nn.Module, or a class or function of (input_shape, classes) that returns one;"
            f" got {type(found).__name__}"
        )
    return found


def _example(model: nn.Module, input_shape: tuple[int, ...], vocabulary: int) -> Tensor:
    """Returns two random samples on the device of the model."""
    size = (2, *input_shape)
    numbers = torch.from_numpy(uniform(key(0, "example"), torch.Size(size).numel())).reshape(size)
    device = next((tensor.device for tensor in model.parameters()), numbers.device)
    if vocabulary:
        return (numbers * vocabulary).to(device, torch.int64)
    return (2 * numbers - 1).to(device, torch.get_default_dtype())


@contextmanager
def _current_folder() -> Iterator[None]:
    """Adds the current folder to ``sys.path``, as ``python -m`` does and installed commands do not."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
