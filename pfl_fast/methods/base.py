"""The vocabulary of methods: a method is a table of parts, phases of local training with a loss, and a prediction.

    part    a module of the client's model: who trains it, what overwrites it, what is uploaded from it
    phase   which parts are trained, with which loss, for how many epochs
    hooks   `initial`, `received`, `upload`: pure functions of one client's tensors, for methods that need more
    server  `aggregate` makes the server's tensors of the uploads, `mixture` gives each client its own blend of them

But for the server's two, everything is written for one client. The engine decides how many clients run at once, where,
and in which order: under ``torch.vmap`` the very same code runs a stack of clients. So a loss may not look at values
(no ``.item()``, no ``if`` on a tensor), and its noise comes from ``batch.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from pfl_fast import ops
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import (
    Client,
    Part,
    Tensors,
    constant,
    drawn_anew,
    frozen,
    mirror,
    part_of,
    passing,
    personal,
    shared,
    stays_local,
    twin,
)
from pfl_fast.methods.phases import Batch, Loss, Once, Phase, Slope, Taken
from pfl_fast.models import Backbone

__all__ = [
    "Batch",
    "Client",
    "Exchange",
    "Loss",
    "Method",
    "Once",
    "Part",
    "Phase",
    "Setting",
    "Slope",
    "Taken",
    "Tensors",
    "averaged",
    "constant",
    "cross_entropy",
    "drawn_anew",
    "frozen",
    "mirror",
    "part_of",
    "passing",
    "personal",
    "shared",
    "stays_local",
    "twin",
]

# FedCP's paper trains all its methods with these; the MLP is not in it and takes larger steps.
LEARNING_RATES = {"cnn": 0.005, "resnet18": 0.1, "fasttext": 0.1, "mlp": 0.05}


@dataclass(frozen=True)
class Setting:
    """What a method may know about the run.

    Attributes:
        clients: how many there are.
        rounds: how many there will be.
        local_epochs: passes over the client's samples in a round.
        classes: number of them.
        batch_norm: what of BatchNorm is exchanged, see :func:`stays_local`.
        everyone_joins: every client takes part in every round.
        count_classes: for a client by its number, ``[classes]`` how many training samples of each class it has.
    """

    clients: int
    rounds: int
    local_epochs: int
    classes: int
    batch_norm: str = "shared"
    everyone_joins: bool = True
    count_classes: Callable[[int], Tensor] | None = None


class Exchange(Protocol):
    """What a mixture may be made from: the uploads of a round, and what clients can say about them."""

    @property
    def clients(self) -> Sequence[int]:
        """S of them, those whose uploads arrived."""
        ...

    @property
    def uploads(self) -> Tensors:
        """``[S, *shape]`` by name of the server's tensor."""
        ...

    @property
    def server(self) -> Tensors:
        """The server's tensors."""
        ...

    def tensors(self, client: int) -> Tensors:
        """All tensors of a client by name, after its training."""
        ...

    def losses(self, questions: Sequence[tuple[int, Tensors]]) -> list[float]:
        """The loss of each client with some of its tensors replaced, on its validation samples, or training samples."""
        ...


# What kinds of methods there are, in the order in which they are listed.
CHOSEN = "features or parameters chosen for each client"
ONE_MODEL = "one model for all"
ADAPTED = "one model, adapted by each client"
PARTS = "some parts shared, others personal"
BESIDE = "a personal model beside the shared one"
OWN = "a model of its own for each client"
FAMILIES = (CHOSEN, ONE_MODEL, ADAPTED, PARTS, BESIDE, OWN)


@dataclass(frozen=True)
class NoOptions:
    """For methods that have none."""


class Method:
    """Base of all methods. A subclass says its ``parts`` and ``predict``, and overrides what differs from FedAvg.

    Attributes:
        title: the method's name as its authors write it.
        paper: where it comes from.
        summary: one line: what is shared, what is personal.
        family: what kind of method it is, one of :data:`FAMILIES`.
        reading: how the paper is read where it leaves a choice, and where this deviates from it.
        public_code: in what this differs from code that people compare with.
        Options: frozen dataclass of its options, each made by :func:`pfl_fast.options.option`.
        presets: settings by preset name: options of the method and settings of the run.
        batch_norm: what happens to BatchNorm unless the run says otherwise; ``"shared"``,
            ``"params_shared_buffers_local"`` or ``"personal"``.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[str] = "your own"
    reading: ClassVar[str] = ""
    public_code: ClassVar[str] = ""
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

    def before_test(self, round: int, at: str) -> list[Phase]:
        """What a client does before it is tested or used, on a copy that is thrown away, such as a step of adaptation.

        Args:
            round: whose batches are used: the one after the round that was trained last.
            at: ``"after_local"`` training or ``"after_agg"``, aggregation; or ``"finale"``, after the final phases.
        """
        return []

    def every_phase(self) -> list[Phase]:
        """All kinds of phases that a run may have."""
        tests = [*self.before_test(2, "after_local"), *self.before_test(2, "after_agg")]
        phases = [*self.phases(1), *self.phases(2), *self.final_phases(), *tests]
        return [phase for number, phase in enumerate(phases) if phase not in phases[:number]]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Cross entropy of the prediction."""
        return cross_entropy(self.predict(client, batch), batch.y), {}

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

    def server_state(self, server: Tensors) -> Tensors:
        """Tensors that the server keeps beside those that are uploaded, by name, before the first round."""
        return {}

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """The server's new tensors, by name: by default the average of uploads by their training samples.

        Args:
            server: its tensors as they are.
            uploads: ``[S, *shape]`` by name, of S clients.
            sizes: ``[S]`` float64, their numbers of training samples.
        """
        return averaged(uploads, sizes / sizes.sum())

    def mixture(self, exchange: Exchange) -> tuple[Tensor, Tensors]:
        """For parts with ``mixes``: ``[S, S]`` shares of the uploads (columns) for each client (rows).

        Beside it, tensors of the server's that change with it.
        """
        raise NotImplementedError


def averaged(uploads: Mapping[str, Tensor], weights: Tensor) -> Tensors:
    """``sum_i weights_i upload_i`` of every tensor; integers, which count, are the first upload's."""
    floating = [name for name, block in uploads.items() if block.is_floating_point()]
    result = {name: block[0].clone() for name, block in uploads.items() if not block.is_floating_point()}
    if floating:
        blocks = [uploads[name] for name in floating]
        result.update(zip(floating, ops.aggregate(blocks, weights.to(blocks[0])), strict=True))
    return result
