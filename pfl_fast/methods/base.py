"""The vocabulary of methods: a method is a table of parts, phases of local training with a loss, and a prediction.

    part    a module of the client's model: whether it is trained, uploaded, and overwritten by the server
    phase   parts to train, loss, number of epochs
    hooks   `initial`, `on_receive`, `upload`: pure functions of one client's tensors
    server  `aggregate` computes the server's tensors from the uploads, `mixture` one weighted sum of them per client

Everything except the server's two functions is written for one client. The engine decides how many clients run at once
and where: ``torch.vmap`` runs the same code for a stack of clients. Losses and predictions therefore must not read
values (no ``.item()``, no ``if`` on a tensor), and take their noise from ``batch.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.methods import papers
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import (
    Client,
    Part,
    Tensors,
    Values,
    apply,
    client_buffer,
    frozen,
    local_tensor_names,
    parameters_as_buffers,
    part_of,
    personal,
    reinitialized,
    round_buffer,
    shared,
    without_values,
    zeros_like_parameters,
)
from pfl_fast.methods.phases import Batch, GradientAt, Loss, PerSampleCache, Phase, PhaseProgress
from pfl_fast.models import Backbone

__all__ = [
    "Batch",
    "Client",
    "GradientAt",
    "Loss",
    "Method",
    "MixtureInputs",
    "Part",
    "PerSampleCache",
    "Phase",
    "PhaseProgress",
    "RunContext",
    "Tensors",
    "Values",
    "apply",
    "averaged",
    "client_buffer",
    "cross_entropy",
    "frozen",
    "local_tensor_names",
    "parameters_as_buffers",
    "part_of",
    "personal",
    "reinitialized",
    "round_buffer",
    "shared",
    "without_values",
    "zeros_like_parameters",
]

# Learning rates of FedCP's paper, used for all its methods; the MLP is not in the paper.
LEARNING_RATES = {"cnn": 0.005, "resnet18": 0.1, "fasttext": 0.1, "mlp": 0.05}


@dataclass(frozen=True)
class RunContext:
    """Facts about the run that a method may use.

    Attributes:
        clients: number of clients.
        rounds: number of rounds.
        local_epochs: local epochs per round.
        classes: number of classes.
        batch_norm: BatchNorm policy, see :func:`~pfl_fast.methods.parts.local_tensor_names`.
        everyone_joins: True if every client takes part in every round.
        count_classes: ``client number -> [classes]``, number of training samples of each class.
        parameters: names of the backbone's parameters, such as ``"head.weight"``, in its order.
        exchanged_parameters: the parameters that are exchanged under the BatchNorm policy.
        backbone: the model on the meta device: modules, names and shapes, without values.
        finetune_epochs: epochs of the fine-tune after the last round.
        trained_parts: names of the method's parts that phases may train; empty while ``parts`` makes them.
        seed: random seed of the run.
        redrawn: ``(part, seed) -> module``: the backbone's ``"extractor"`` or ``"head"`` with initial weights drawn
            from another seed, see :func:`pfl_fast.assembly.redraw`.
    """

    clients: int
    rounds: int
    local_epochs: int
    classes: int
    batch_norm: str = "shared"
    everyone_joins: bool = True
    count_classes: Callable[[int], Tensor] | None = None
    parameters: tuple[str, ...] = ()
    exchanged_parameters: tuple[str, ...] = ()
    backbone: Backbone | None = None
    finetune_epochs: int = 0
    trained_parts: tuple[str, ...] = ()
    seed: int = 0
    redrawn: Callable[[str, int], nn.Module] | None = None


class MixtureInputs(Protocol):
    """Inputs of :meth:`Method.mixture`: the uploads of a round, and losses of any model on a client's samples."""

    @property
    def clients(self) -> Sequence[int]:
        """The S clients whose uploads arrived."""

    @property
    def uploads(self) -> Tensors:
        """``[S, *shape]`` uploads, by server tensor."""

    @property
    def server(self) -> Tensors:
        """Server tensors."""

    def tensors(self, client: int) -> Tensors:
        """Returns all tensors of a client after its local training."""

    def losses(self, candidates: Sequence[tuple[int, Tensors]]) -> list[float]:
        """Returns the loss of each ``(client, replaced tensors)`` on the client's validation samples.

        Clients without validation samples use their training samples.
        """


# Families of methods, in the order of `pfl-fast methods`.
CHOSEN = "features or parameters chosen for each client"
ONE_MODEL = "one model for all"
ADAPTED = "one model, adapted by each client"
PARTS = "some parts shared, others personal"
TWO_MODELS = "a personal and a shared model"
ONE_PER_CLIENT = "one model per client"
FAMILIES = (CHOSEN, ONE_MODEL, ADAPTED, PARTS, TWO_MODELS, ONE_PER_CLIENT)


@dataclass(frozen=True)
class NoOptions:
    """Options of a method without options."""


class Method:
    """Base class of all methods. A subclass defines its ``parts`` and overrides the members that differ from FedAvg.

    Attributes:
        title: name of the method, as its authors write it.
        paper: reference.
        summary: one line: the shared parts and the personal parts.
        family: one of :data:`FAMILIES`.
        reading: interpretation of the paper where it leaves a choice, and deviations from it.
        public_code: differences from published code that results are compared with.
        Options: frozen dataclass of options, each made by :func:`pfl_fast.options.option`.
        own_paper: settings of the method's paper for all methods of its tables; None for a baseline.
        presets: further option and setting values by preset name; see :meth:`preset`.
        batch_norm: default BatchNorm policy: ``"shared"``, ``"params_shared_buffers_local"`` or ``"personal"``.
        prediction_parts: parts that ``predict`` applies one after the other.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[str] = "your own"
    reading: ClassVar[str] = ""
    public_code: ClassVar[str] = ""
    Options: ClassVar[type] = NoOptions
    own_paper: ClassVar[papers.Paper | None] = None
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    batch_norm: ClassVar[str] = "shared"
    prediction_parts: ClassVar[tuple[str, ...]] = ("extractor", "head")

    def __init_subclass__(cls, **more: Any) -> None:
        """Fills in title and summary of a method without them: the name of the class, and its docstring."""
        super().__init_subclass__(**more)
        if "title" not in vars(cls):
            cls.title = cls.__name__
        summary = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        for name, value in {"summary": summary, "paper": ""}.items():
            if not hasattr(cls, name):
                setattr(cls, name, value)

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the paper's options and settings for a model and data set; the user's values override them."""
        return {"lr": LEARNING_RATES.get(model, 0.005), **papers.training(cls.own_paper, model, dataset)}

    @classmethod
    def preset(cls, name: str, dataset: str) -> Mapping[str, Any] | None:
        """Returns option and setting values of a preset, or None if there is no such preset.

        ``"paper"`` is one for every method: the experiment of the paper that uses the data set.
        """
        values = cls.presets.get(name)
        if values is None and name == "paper":
            values = papers.experiment(cls.own_paper, dataset) or None
        return values

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns the parts of a client's model, by name."""
        raise NotImplementedError

    def notes(self, parts: Mapping[str, Part]) -> list[str]:
        """Returns remarks on the chosen options, printed before the first round, such as options without effect."""
        return []

    def phases(self, round: int) -> list[Phase]:
        """Returns the phases of local training in a round, from 1; default: one phase for extractor and head."""
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs)]

    def final_phases(self) -> list[Phase]:
        """Returns the phases every client trains after the last aggregation; default: a fine-tune of all trained parts.

        The fine-tune minimises the cross entropy of ``predict`` for ``finetune_epochs`` epochs.
        """
        epochs = self.context.finetune_epochs
        return [Phase(self.context.trained_parts, partial(Method.loss, self), epochs)] if epochs else []

    def before_test(self, round: int, at: str) -> list[Phase]:
        """Returns the phases a client trains before each test, on a temporary copy, such as one adaptation step.

        Args:
            round: round whose batches are used: the one after the last trained round.
            at: ``"after_local"`` (local training), ``"after_agg"`` (aggregation) or ``"final_round"``.
        """
        return []

    @property
    def depends_on_rounds(self) -> bool:
        """True if local training depends on ``context.rounds``, so that rounds cannot be added to a run."""
        return False

    def every_phase(self) -> list[Phase]:
        """Returns every phase of a run, without duplicates."""
        tests = [*self.before_test(2, "after_local"), *self.before_test(2, "after_agg")]
        phases = [*self.phases(1), *self.phases(2), *self.final_phases(), *tests]
        return [phase for number, phase in enumerate(phases) if phase not in phases[:number]]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the cross entropy of ``predict``, and scalars to record."""
        return cross_entropy(self.predict(client, batch), batch.y), {}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns ``[b, C]`` logits of the client's model."""
        return apply(client, self.prediction_parts, batch.x)

    def predict_global(self, server: Any, batch: Batch) -> Tensor | None:
        """Returns ``[b, C]`` logits of the server's model, whose parts are attributes of ``server``, or None."""
        if not hasattr(server, "extractor") or not hasattr(server, "head"):
            return None
        return apply(server, ("extractor", "head"), batch.x)

    @property
    def predicts_as_server(self) -> bool:
        """True if ``predict`` and ``predict_global`` are the same function of the same parts."""
        own = type(self)
        inherited = own.predict is Method.predict and own.predict_global is Method.predict_global
        return inherited and own.prediction_parts == Method.prediction_parts

    def initial(self, common: Tensors, number: int, seed: Tensor) -> Tensors:
        """Returns initial tensors of client ``number`` that differ from the ``common`` ones, by name."""
        return {}

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Returns tensors of a client computed from the received ones, by name.

        Args:
            client: all tensors of the client by name, such as ``"head.weight"``.
            at: ``"start"`` or ``"end"`` of a round.
        """
        return {}

    def keep_start(self, client: Tensors, at: str) -> Tensors:
        """Returns the received parameters for the part ``start``, which keeps them for the round: an ``on_receive``."""
        return {f"start.{name}": client[name] for name in self.context.exchanged_parameters} if at == "start" else {}

    def upload(self, client: Tensors) -> Tensors:
        """Returns values to upload instead of the client's parts, by server tensor."""
        return {}

    def server_state(self, server: Tensors) -> Tensors:
        """Returns further tensors that the server keeps, by name, before the first round."""
        return {}

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns new server tensors, by name; default: the uploads averaged by number of training samples.

        Args:
            server: current server tensors.
            uploads: ``[S, *shape]`` uploads of S clients, by server tensor.
            sizes: ``[S]`` float64, numbers of training samples.
        """
        return averaged(uploads, sizes / sizes.sum())

    def mixture(self, inputs: MixtureInputs) -> tuple[Tensor, Tensors]:
        """Returns ``[S, S]`` weights of the uploads (columns) for each client (rows), and changed server tensors.

        Called if a part has ``mixture_of``.
        """
        raise NotImplementedError


def averaged(uploads: Mapping[str, Tensor], weights: Tensor) -> Tensors:
    """Returns ``sum_i weights_i upload_i`` for every tensor; integer tensors (counters) are copied from upload 0."""
    floating = [name for name, block in uploads.items() if block.is_floating_point()]
    result = {name: block[0].clone() for name, block in uploads.items() if not block.is_floating_point()}
    if floating:
        blocks = [uploads[name] for name in floating]
        result.update(zip(floating, ops.aggregate(blocks, weights.to(blocks[0])), strict=True))
    return result
