"""The vocabulary of methods: a method is a table of parts, phases of local training with a loss, and a prediction.

    part    a module of the client's model: who trains it, what overwrites it, what is uploaded from it
    phase   which parts are trained, with which loss, for how many epochs
    hooks   `initial`, `received`, `upload`: pure functions of one client's tensors, for methods that need more

Everything is written for one client. The engine decides how many clients run at once, where, and in which order: under
``torch.vmap`` the very same code runs a stack of clients. So a loss may not look at values (no ``.item()``, no ``if``
on a tensor), and its noise comes from ``batch.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.errors import ConfigError
from pfl_fast.models import Backbone

Tensors = dict[str, Tensor]
# FedCP's paper trains all its methods with these; the MLP is not in it and takes larger steps.
LEARNING_RATES = {"cnn": 0.005, "resnet18": 0.1, "fasttext": 0.1, "mlp": 0.05}


@dataclass(frozen=True)
class Part:
    """One module of a client's model.

    Attributes:
        module: with its initial values, the same for every client.
        trained: whether phases may train it.
        receives: name of the server's part that overwrites it when the client receives; None: nothing does.
        uploads: name of the server's part that is averaged from it; None: it stays.
        recipients: who receives after aggregation, ``"selected"`` clients or ``"all"``.
        evaluates: whether it is in evaluation mode also while the client trains (BatchNorm, dropout).
        keeps: names of tensors inside it that are uploaded, but not overwritten by what comes back.
    """

    module: nn.Module
    trained: bool = True
    receives: str | None = None
    uploads: str | None = None
    recipients: str = "selected"
    evaluates: bool = False
    keeps: frozenset[str] = frozenset()


def shared(module: nn.Module, name: str, recipients: str = "selected", keeps: Iterable[str] = ()) -> Part:
    """Starts each round from the average, all but what it ``keeps``; is trained and uploaded."""
    return Part(deepcopy(module), receives=name, uploads=name, recipients=recipients, keeps=frozenset(keeps))


def personal(module: nn.Module) -> Part:
    """Trained, never leaves the client."""
    return Part(deepcopy(module))


def frozen(module: nn.Module, name: str, recipients: str = "selected", evaluates: bool = False) -> Part:
    """A copy of the server's part, not trained."""
    return Part(deepcopy(module), trained=False, receives=name, recipients=recipients, evaluates=evaluates)


def constant(module: nn.Module) -> Part:
    """Set once by the method's ``initial`` or ``received``, not trained, never leaves the client."""
    return Part(deepcopy(module), trained=False)


def drawn_anew(module: nn.Module) -> nn.Module:
    """A copy with initial values of its own, layer by layer as each draws them, from torch's generator."""
    module = deepcopy(module)
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
        elif list(layer.parameters(recurse=False)):
            raise ConfigError(
                f"the parameters of {name or 'the outermost module'} cannot be drawn anew, as {type(layer).__name__} "
                "has no reset_parameters(); give it one, or start from the same values, as an option of the method says"
            )
    return module


class Client(nn.Module):
    """One client's parts, as attributes: ``client.head(client.extractor(x))``."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in parts.items():
            self.add_module(name, module)


@dataclass
class Batch:
    """What a loss or a prediction sees.

    Attributes:
        x: ``[b, ...]`` samples.
        y: ``[b]`` int64 labels.
        seed: int64 scalar, the key of this step's noise for this client.
        once: what the phase's ``once`` gave for these samples.
    """

    x: Tensor
    y: Tensor
    seed: Tensor
    once: Tensors = field(default_factory=dict)


Loss = Callable[[Client, Batch], tuple[Tensor, Tensors]]


@dataclass(frozen=True)
class Once:
    """Something about a sample that local training does not change, such as the features of a frozen extractor.

    The engine computes it once per round in large batches, and step by step only where the samples of a batch influence
    each other (BatchNorm) or change (augmentation, dropout).

    Attributes:
        part: the one part it uses, not trained in the phase.
        compute: ``(client, x) -> [b, ...]``.
    """

    part: str
    compute: Callable[[Client, Tensor], Tensor]


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    Attributes:
        train: names of the parts that are stepped; the others stay as they are.
        loss: ``(client, batch) -> (loss, recorded)``; what is recorded (scalars by name) is averaged over the samples
            of the round, per client, and goes into the results.
        epochs: passes over the client's samples.
        once: by name, what to put into ``batch.once``.
        turns: parts that are stepped in the first batch of an epoch, in the second and so on, then from the beginning
            again; none: all of ``train`` in every batch.
        adam: parts that Adam steps instead of SGD, and its learning rate; its moments start from zero in each round.
        adjust: ``(client, gradients) -> gradients`` by name, before a step.
        moves: ``(client, seed) -> flags`` by name of the parameter, whether a step may change it at all, its momentum
            and decay included; parameters that are not named always move.
        after_step: ``client -> values`` by name, to be written after each step.
        after: the same, after the phase.
    """

    train: tuple[str, ...]
    loss: Loss
    epochs: int
    once: Mapping[str, Once] = field(default_factory=dict)
    turns: tuple[tuple[str, ...], ...] = ()
    adam: Mapping[str, float] = field(default_factory=dict)
    adjust: Callable[[Tensors, Tensors], Tensors] | None = None
    moves: Callable[[Tensors, Tensor], Tensors] | None = None
    after_step: Callable[[Tensors], Tensors] | None = None
    after: Callable[[Tensors], Tensors] | None = None


@dataclass(frozen=True)
class Setting:
    """What a method may know about the run.

    Attributes:
        clients: how many there are.
        rounds: how many there will be.
        local_epochs: passes over the client's samples in a round.
        classes: number of them.
    """

    clients: int
    rounds: int
    local_epochs: int
    classes: int


@dataclass(frozen=True)
class NoOptions:
    """For methods that have none."""


class Method:
    """Base of all methods. A subclass says its ``parts`` and ``predict``, and overrides what differs from FedAvg.

    Attributes:
        title: the method's name as its authors write it.
        paper: where it comes from.
        summary: one line: what is shared, what is personal.
        Options: frozen dataclass of its options, each made by :func:`pfl_fast.options.option`.
        presets: settings by preset name: options of the method and settings of the run.
        batch_norm: what happens to BatchNorm unless the run says otherwise; ``"shared"``,
            ``"params_shared_buffers_local"`` or ``"personal"``.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    batch_norm: ClassVar[str] = "shared"

    def __init__(self, options: Any, setting: Setting) -> None:
        self.options = options
        self.setting = setting

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Options and settings the paper uses with this model or data set; what the user says comes first."""
        return {"lr": LEARNING_RATES.get(model, 0.005)}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """The client's model, part by part."""
        raise NotImplementedError

    def phases(self, round: int) -> list[Phase]:
        """One round of local training, counted from 1: by default extractor and head on the prediction's loss."""
        return [Phase(("extractor", "head"), self.loss, self.setting.local_epochs)]

    def final_phases(self) -> list[Phase]:
        """What every client does after the last aggregation, alone, such as a fine-tune; tested after it."""
        return []

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Cross entropy of the prediction."""
        return F.cross_entropy(self.predict(client, batch), batch.y), {}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """``[b, C]`` logits of the client's own model."""
        logits: Tensor = client.head(client.extractor(batch.x))
        return logits

    def predict_global(self, server: Any, batch: Batch) -> Tensor | None:
        """``[b, C]`` logits of the server's model, whose parts are ``server``'s attributes; None: there is none."""
        if not hasattr(server, "extractor") or not hasattr(server, "head"):
            return None
        logits: Tensor = server.head(server.extractor(batch.x))
        return logits

    def initial(self, common: Tensors, number: int, seed: Tensor) -> Tensors:
        """Tensors that do not start from the ``common`` values, by name, for client ``number`` with its own seed."""
        return {}

    def received(self, client: Tensors, at: str) -> Tensors:
        """Tensors of a client that follow from what it received, by name.

        Args:
            client: all its tensors by name, such as ``"head.weight"``.
            at: ``"start"`` of a round or ``"end"`` of one.
        """
        return {}

    def upload(self, client: Tensors) -> Tensors:
        """What a client sends instead of its parts as they are, by the name of the server's tensor."""
        return {}


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """The tensors of one part, by their names inside it.

    >>> part_of({"head.weight": 1, "extractor.0.bias": 2}, "head")
    {'weight': 1}
    """
    prefix = part + "."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
