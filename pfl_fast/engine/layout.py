"""The part table: for every tensor of a client who trains it, what overwrites it, what it becomes at the server.

Built once from a method's parts and the BatchNorm policy; everything the engine does with tensors follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Client, Part, Tensors, stays_local
from pfl_fast.models import batch_norm_tensors
from pfl_fast.nn import replace_linear

ADAM = ("adam_mean", "adam_square", "adam_steps")  # what Adam keeps beside a parameter: two moments, a number


@dataclass(frozen=True)
class Entry:
    """One tensor of a client.

    Attributes:
        key: ``"<part>.<name inside the part>"``.
        part: the part it belongs to.
        value: its common initial value, without a client axis.
        parameter: a parameter that can be trained, not a buffer or a frozen one.
        receives: key of the server's tensor that overwrites it, or None.
        uploads: key of the server's tensor that is averaged from it, or None.
        mixes: key of the server's tensor of whose uploads it becomes a mixture, or None.
        to_all: whether every client receives it anew before it is used.
        stored: whether each client has its own value between rounds. What goes ``to_all`` is not stored, unless clients
            are left with values of their own at the end.
        until: the last round in which it is received and uploaded, or None.
    """

    key: str
    part: str
    value: Tensor
    parameter: bool
    receives: str | None
    uploads: str | None = None
    mixes: str | None = None
    to_all: bool = False
    stored: bool = False
    until: int | None = None

    def exchanged(self, round: int) -> bool:
        """Whether it is received and uploaded in a round."""
        return self.until is None or round <= self.until


class Layout:
    """All tensors of a client and of the server, by name.

    Args:
        parts: the method's table.
        batch_norm: ``"shared"``, ``"params_shared_buffers_local"`` or ``"personal"``.
        everyone_receives: all clients receive before their state is used next, so that nothing received is kept; true
            when all clients take part in every round, or are sent to.
        dtype: of the floating tensors.
        momentum: None; ``"round"`` for momentum that starts from zero in each round; ``"kept"`` for momentum that a
            client keeps between rounds.
        adam: parts that Adam steps.
        finale: clients train once more after the last aggregation, and keep all they come to.
        server_state: the method's function that makes, of the server's tensors, those it keeps beside them.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        batch_norm: str,
        everyone_receives: bool,
        dtype: torch.dtype = torch.float32,
        momentum: str | None = None,
        adam: Iterable[str] = (),
        finale: bool = False,
        server_state: Callable[[Tensors], Tensors] | None = None,
    ) -> None:
        self.finale = finale
        self.batch_norm = batch_norm
        self.client = Client({name: deepcopy(part.module) for name, part in parts.items()}).to(dtype)
        # Initial values are kept once, in these modules, which are never trained: a model may take much of memory.
        self.parts = {name: replace(part, module=self._module(name)) for name, part in parts.items()}
        self.entries = [e for name in parts for e in self._entries_of(name, everyone_receives)]
        trained = [e for e in self.entries if e.parameter and self.parts[e.part].trained]
        if momentum:
            self.entries += [_beside("momentum", e, momentum == "kept") for e in trained if e.part not in adam]
        for moment in ADAM:
            self.entries += [_beside(moment, e, False) for e in trained if e.part in adam]
        self.common: Tensors = {e.key: e.value for e in self.entries}
        self.server_parts = {p.uploads: self._module(name) for name, p in parts.items() if p.uploads}
        self.server_common: Tensors = {
            f"{name}.{key}": tensor
            for name, module in self.server_parts.items()
            for key, tensor in module.state_dict().items()
        }
        if server_state:
            self.server_common.update(server_state(self.server_common))

    def _module(self, part: str) -> nn.Module:
        return self.client.get_submodule(part)

    def _entries_of(self, name: str, everyone_receives: bool) -> list[Entry]:
        part, module = self.parts[name], self._module(name)
        parameters = dict(module.named_parameters())
        tied = [key for key, _ in module.named_parameters(remove_duplicate=False) if key not in parameters]
        if tied:
            raise ConfigError(f"model: {name}.{tied[0]} is another parameter under a second name; untie them")
        local = stays_local(module, self.batch_norm)
        found = []
        for key, tensor in module.state_dict().items():
            overwritten = part.receives and key not in local and key not in part.keeps
            receives = f"{part.receives}.{key}" if overwritten else None
            uploads = f"{part.uploads}.{key}" if part.uploads and key not in local else None
            mixes = f"{part.mixes}.{key}" if part.mixes and key not in local else None
            everyone = everyone_receives or part.recipients == "all"
            to_all = receives is not None and everyone and part.until is None
            stored = part.kept and (not to_all or self.finale)
            steps = key in parameters and parameters[key].requires_grad  # a user may have frozen some
            entry = Entry(f"{name}.{key}", name, tensor, steps, receives, uploads, mixes, to_all, stored, part.until)
            found.append(entry)
        return found

    @property
    def of_model(self) -> list[Entry]:
        """Tensors of the client's modules, without the optimizer's."""
        return [e for e in self.entries if e.part in self.parts]

    @property
    def stored(self) -> list[Entry]:
        """Tensors of which every client has its own."""
        return [e for e in self.entries if e.stored]

    @property
    def uploaded(self) -> list[Entry]:
        """Tensors that are sent to the server and averaged."""
        return [e for e in self.entries if e.uploads]

    @property
    def received(self) -> list[Entry]:
        """Tensors that the server's overwrite."""
        return [e for e in self.entries if e.receives]

    @property
    def mixed(self) -> list[Entry]:
        """Tensors that become a mixture of uploads; what counts is not mixed."""
        return [e for e in self.entries if e.mixes and e.value.is_floating_point()]

    @property
    def server_has_statistics(self) -> bool:
        """Whether the server's model can be tested: its BatchNorm statistics, if any, are averaged too."""
        return self.batch_norm == "shared" or not any(batch_norm_tensors(m) for m in self.server_parts.values())

    def bytes_per_client(self) -> int:
        """Of what is stored."""
        return sum(e.value.nbytes for e in self.stored)

    def new_client(self, device: torch.device) -> Client:
        """The client's modules with the initial values."""
        return deepcopy(self.client).to(device)

    def bindable_client(self, device: torch.device) -> Client:
        """The client's modules, to which tensors are bound; until then the parameters are not to be written to."""
        parameters = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in self.client.parameters()}
        return replace_linear(deepcopy(self.client, parameters).to(device))

    def new_server(self) -> Tensors:
        """The server's tensors before the first round."""
        return {key: value.clone() for key, value in self.server_common.items()}


def _beside(what: str, entry: Entry, kept: bool) -> Entry:
    """A tensor of the optimizer beside a parameter."""
    shape = () if what == "adam_steps" else entry.value.shape
    zeros = entry.value.new_zeros(()).expand(shape)  # takes no memory
    return Entry(f"{what}.{entry.key}", what, zeros, parameter=False, receives=None, stored=kept)
