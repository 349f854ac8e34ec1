"""The parts of a client's model: who trains each, what overwrites it, what is uploaded from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor, nn

from pfl_fast.errors import ConfigError
from pfl_fast.models import batch_norm_tensors

Tensors = dict[str, Tensor]


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
        kept: whether the client has it from one round to the next; if not, it starts each round from the common values,
            and what the method's ``received`` makes of them.
        mixes: name of the server's part of whose uploads the client gets a mixture of its own at the end of a round, as
            the method's ``mixture`` says, in the place of an average.
        copies: how many uploads travel to the client for that mixture, for counting what is moved.
        until: the last round in which it is exchanged; None: always.
    """

    module: nn.Module
    trained: bool = True
    receives: str | None = None
    uploads: str | None = None
    recipients: str = "selected"
    evaluates: bool = False
    keeps: frozenset[str] = frozenset()
    kept: bool = True
    mixes: str | None = None
    copies: int = 1
    until: int | None = None


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


def passing(module: nn.Module, uploads: str | None = None) -> Part:
    """Not trained, and gone when the round is over: what a client notes down while it trains."""
    return Part(deepcopy(module), trained=False, uploads=uploads, kept=False)


def stays_local(module: nn.Module, batch_norm: str) -> set[str]:
    """Names of the tensors of a module that never leave a client under a policy for BatchNorm."""
    if batch_norm == "shared":
        return set()
    names = set(batch_norm_tensors(module))
    return names if batch_norm == "personal" else names - {name for name, _ in module.named_parameters()}


def mirror(modules: Mapping[str, nn.Module], batch_norm: str) -> nn.Module:
    """Zeros in the shape of all parameters of ``modules`` that are exchanged, as buffers ``"<module>.<name>"``.

    For what goes with a parameter: where it started, a control variate, a correction.

    >>> {name: tuple(zeros.shape) for name, zeros in mirror({"head": nn.Linear(3, 2)}, "shared").named_buffers()}
    {'head.weight': (2, 3), 'head.bias': (2,)}
    """
    root = nn.Module()
    for part, module in modules.items():
        root.add_module(part, twin(module, batch_norm))
    for buffer in root.buffers():
        buffer.zero_()
    return root


def twin(module: nn.Module, batch_norm: str) -> nn.Module:
    """Copies of all parameters of a module that are exchanged, as buffers by the same names."""
    root, local = nn.Module(), stays_local(module, batch_norm)
    for name, parameter in module.named_parameters():
        if name not in local:
            holder, last = holder_of(root, name)
            holder.register_buffer(last, parameter.detach().clone())
    return root


def holder_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module inside ``root`` that holds, or is to hold, the tensor named ``path``; and the tensor's name in it."""
    *above, last = path.split(".")
    for step in above:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    return root, last


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


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """The tensors of one part, by their names inside it.

    >>> part_of({"head.weight": 1, "extractor.0.bias": 2}, "head")
    {'weight': 1}
    """
    prefix = part + "."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
