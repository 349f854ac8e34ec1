"""Parts of a client's model: which are trained, which are uploaded, and which the server overwrites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from pfl_fast.errors import ConfigError
from pfl_fast.models import batch_norm_tensors

Tensors = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Part:
    """One module of a client's model.

    Attributes:
        module: initial values, common to all clients.
        trained: True if phases may train the part.
        receive_from: server part that overwrites this one when the client receives; None: nothing overwrites it.
        upload_to: server part that is averaged from the clients' copies of this one; None: the part stays local.
        recipients: clients that receive the part after aggregation, ``"selected"`` or ``"all"``.
        eval_mode: True if the part stays in evaluation mode while the client trains (BatchNorm, dropout).
        upload_only: names of tensors inside the part that are uploaded but not overwritten on receive.
        persists: True if the client keeps the part between rounds. Otherwise it starts every round from the common
            values, modified by the method's ``on_receive``.
        mixture_of: server part whose uploads are mixed into this one at the end of a round, with the weights of
            :meth:`~pfl_fast.methods.base.Method.mixture`.
        mixture_size: number of uploads a client downloads for its mixture; used to count traffic.
        until_round: last round in which the part is exchanged; None: every round.
        client_values: initial values that differ between clients, ``[clients, *shape]`` by name inside the part.
        on_server: True if the server has a copy of the initial values too, for ``predict_global``.
    """

    module: nn.Module
    trained: bool = True
    receive_from: str | None = None
    upload_to: str | None = None
    recipients: str = "selected"
    eval_mode: bool = False
    upload_only: frozenset[str] = frozenset()
    persists: bool = True
    mixture_of: str | None = None
    mixture_size: int = 1
    until_round: int | None = None
    client_values: Mapping[str, Tensor] = field(default_factory=dict)
    on_server: bool = False


def shared(module: nn.Module, name: str, recipients: str = "selected", upload_only: Iterable[str] = ()) -> Part:
    """Returns a part that is trained, uploaded and overwritten by the average, except for ``upload_only`` tensors."""
    names = frozenset(upload_only)
    return Part(deepcopy(module), receive_from=name, upload_to=name, recipients=recipients, upload_only=names)


def personal(module: nn.Module) -> Part:
    """Returns a part that is trained and never leaves the client."""
    return Part(deepcopy(module))


def frozen(module: nn.Module, name: str, recipients: str = "selected", eval_mode: bool = False) -> Part:
    """Returns an untrained copy of the server part ``name``."""
    return Part(deepcopy(module), trained=False, receive_from=name, recipients=recipients, eval_mode=eval_mode)


def client_buffer(module: nn.Module) -> Part:
    """Returns an untrained part that a client keeps between rounds; the method's hooks write it."""
    return Part(deepcopy(module), trained=False)


def round_buffer(module: nn.Module, upload_to: str | None = None) -> Part:
    """Returns an untrained part that lasts for one round; the method's hooks write it."""
    return Part(deepcopy(module), trained=False, upload_to=upload_to, persists=False)


def local_tensor_names(module: nn.Module, batch_norm: str) -> set[str]:
    """Returns the names of the tensors of ``module`` that never leave a client under a BatchNorm policy."""
    if batch_norm == "shared":
        return set()
    names = set(batch_norm_tensors(module))
    return names if batch_norm == "personal" else names - {name for name, _ in module.named_parameters()}


def zeros_like_parameters(module: nn.Module, batch_norm: str) -> nn.Module:
    """Returns zero buffers, one for every exchanged parameter of ``module``, of the same names.

    They hold a value per parameter: its value at the start of the round, a control variate, a correction.

    >>> zeros = zeros_like_parameters(nn.Linear(3, 2), "shared")
    >>> {name: tuple(buffer.shape) for name, buffer in zeros.named_buffers()}
    {'weight': (2, 3), 'bias': (2,)}
    """
    root = parameters_as_buffers(module, batch_norm)
    for buffer in root.buffers():
        buffer.zero_()
    return root


def parameters_as_buffers(module: nn.Module, batch_norm: str) -> nn.Module:
    """Returns copies of the exchanged parameters of ``module``, as buffers of the same names."""
    root, local = nn.Module(), local_tensor_names(module, batch_norm)
    for name, parameter in module.named_parameters():
        if name not in local:
            holder, last = holder_of(root, name)
            holder.register_buffer(last, parameter.detach().clone())
    return root


def holder_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Returns the submodule of ``root`` that holds the tensor ``path``, created if missing, and the tensor's name."""
    *above, last = path.split(".")
    for step in above:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    return root, last


def reinitialized(module: nn.Module) -> nn.Module:
    """Returns a copy whose layers are reinitialized by ``reset_parameters()``, from torch's global generator."""
    module = deepcopy(module)
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
        elif list(layer.parameters(recurse=False)):
            raise ConfigError(
                f"the parameters of {name or 'the outermost module'} cannot be reinitialized: {type(layer).__name__} "
                "has no reset_parameters(); add one, or choose the option that starts all parts from the same values"
            )
    return module


def without_values(module: Module) -> Module:
    """Returns a copy on the meta device: modules, names and shapes, which take no memory."""
    meta: dict[int, Any] = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()}
    meta |= {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    return deepcopy(module, meta)


class Values(nn.Module):
    """Holds tensors as attributes: parameters, which phases may train, and buffers; None stays None.

    >>> [name for name, _ in Values(mean=Tensor([0.0])).named_buffers()]
    ['mean']
    """

    def __init__(self, **tensors: Tensor | None) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)


class Client(nn.Module):
    """One client's parts, as attributes: ``client.head(client.extractor(x))``."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in parts.items():
            self.add_module(name, module)


def apply(client: Client, parts: Iterable[str], x: Tensor) -> Tensor:
    """Returns the output of the named parts, applied to ``x`` one after the other."""
    for part in parts:
        x = client.get_submodule(part)(x)
    return x


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Returns the tensors of one part, by their names inside the part.

    >>> part_of({"head.weight": 1, "extractor.0.bias": 2}, "head")
    {'weight': 1}
    """
    prefix = part + "."
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
