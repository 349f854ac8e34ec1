"""The part table: for every tensor of a client, whether it is trained, stored, uploaded and received.

Built once from a method's parts and the BatchNorm policy. The engine handles tensors by this table alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Client, Part, Tensors, local_tensor_names
from pfl_fast.models import batch_norm_tensors
from pfl_fast.nn import replace_linear

ADAM = ("adam_mean", "adam_square", "adam_steps")  # Adam state of a parameter: two moments and a step count


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a client.

    Attributes:
        key: ``"<part>.<name inside the part>"``.
        part: name of the part.
        value: common initial value, without a client axis.
        parameter: True for a trainable parameter; False for a buffer or a frozen parameter.
        receive_from: server tensor that overwrites this one, or None.
        upload_to: server tensor averaged from the clients' copies of this one, or None.
        mixture_of: server tensor whose uploads are mixed into this one, or None.
        to_all: True if every client receives the tensor before each use.
        stored: True if every client stores its own value between rounds. A tensor that goes ``to_all`` is stored only
            if the run ends with a final round, after which clients keep values of their own.
        until_round: last round in which the tensor is received and uploaded, or None.
    """

    key: str
    part: str
    value: Tensor
    parameter: bool
    receive_from: str | None
    upload_to: str | None = None
    mixture_of: str | None = None
    to_all: bool = False
    stored: bool = False
    until_round: int | None = None

    def exchanged(self, round: int) -> bool:
        """Returns whether the tensor is received and uploaded in ``round``."""
        return self.until_round is None or round <= self.until_round


class PartTable:
    """All tensors of a client and of the server, by name.

    Args:
        parts: parts of the method.
        batch_norm: BatchNorm policy: ``"shared"``, ``"params_shared_buffers_local"`` or ``"personal"``.
        everyone_receives: True if all clients receive before their state is next used, so that received tensors need
            not be stored: all clients take part in every round, or the server broadcasts to all.
        dtype: dtype of floating-point tensors.
        momentum: None; ``"round"`` if momentum starts from zero in every round; ``"kept"`` if clients store it.
        adam: parts trained by Adam.
        final_round: True if clients train once more after the last aggregation and keep the result.
        server_state: the method's function that returns further tensors of the server.

    Attributes:
        specs: all tensors of a client.
        model_specs: tensors of the client's modules, without optimizer state.
        stored: tensors that every client stores.
        uploaded: tensors that clients upload.
        received: tensors that the server overwrites.
        mixed: tensors that become a mixture of uploads; integer tensors (counters) are not mixed.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        batch_norm: str,
        everyone_receives: bool,
        dtype: torch.dtype = torch.float32,
        momentum: str | None = None,
        adam: Iterable[str] = (),
        final_round: bool = False,
        server_state: Callable[[Tensors], Tensors] | None = None,
    ) -> None:
        self.final_round = final_round
        self.batch_norm = batch_norm
        self.client = Client({name: deepcopy(part.module) for name, part in parts.items()}).to(dtype)
        # These modules hold the only copy of the initial values, and are never trained: models can be large.
        self.parts = {name: replace(part, module=self._module(name)) for name, part in parts.items()}
        self.model_specs = [spec for name in parts for spec in self._specs_of(name, everyone_receives)]
        self.specs = list(self.model_specs)
        trained = [spec for spec in self.specs if spec.parameter and self.parts[spec.part].trained]
        if momentum:
            stored = momentum == "kept"
            self.specs += [_optimizer_spec("momentum", spec, stored) for spec in trained if spec.part not in adam]
        for moment in ADAM:
            self.specs += [_optimizer_spec(moment, spec, False) for spec in trained if spec.part in adam]
        self.stored = [spec for spec in self.specs if spec.stored]
        self.uploaded = [spec for spec in self.specs if spec.upload_to]
        self.received = [spec for spec in self.specs if spec.receive_from]
        self.mixed = [spec for spec in self.specs if spec.mixture_of and spec.value.is_floating_point()]
        self.common: Tensors = {spec.key: spec.value for spec in self.specs}
        uploaded = {p.upload_to: self._module(name) for name, p in parts.items() if p.upload_to}
        self.server_parts = {**uploaded, **{name: self._module(name) for name, p in parts.items() if p.on_server}}
        self.server_common: Tensors = {
            f"{name}.{key}": tensor for name, module in uploaded.items() for key, tensor in module.state_dict().items()
        }
        if server_state:
            self.server_common.update(server_state(self.server_common))

    def _module(self, part: str) -> nn.Module:
        return self.client.get_submodule(part)

    def _specs_of(self, name: str, everyone_receives: bool) -> list[TensorSpec]:
        part, module = self.parts[name], self._module(name)
        parameters = dict(module.named_parameters())
        tied = [key for key, _ in module.named_parameters(remove_duplicate=False) if key not in parameters]
        if tied:
            raise ConfigError(f"model: {name}.{tied[0]} is another parameter under a second name; untie them")
        local = local_tensor_names(module, self.batch_norm)

        def server_key(server_part: str | None, key: str) -> str | None:
            return f"{server_part}.{key}" if server_part and key not in local else None

        specs = []
        for key, tensor in module.state_dict().items():
            receive_from = None if key in part.upload_only else server_key(part.receive_from, key)
            everyone = everyone_receives or part.recipients == "all"
            to_all = receive_from is not None and everyone and part.until_round is None
            specs.append(
                TensorSpec(
                    key=f"{name}.{key}",
                    part=name,
                    value=tensor,
                    parameter=key in parameters and parameters[key].requires_grad,  # users may freeze some
                    receive_from=receive_from,
                    upload_to=server_key(part.upload_to, key),
                    mixture_of=server_key(part.mixture_of, key),
                    to_all=to_all,
                    stored=part.persists and (not to_all or self.final_round),
                    until_round=part.until_round,
                )
            )
        return specs

    @property
    def server_has_statistics(self) -> bool:
        """True if the server's model can be tested: it has no BatchNorm, or its running statistics are averaged."""
        return self.batch_norm == "shared" or not any(batch_norm_tensors(m) for m in self.server_parts.values())

    def clients_hold(self, parts: Iterable[str]) -> bool:
        """Returns whether every client holds the server's values of ``parts`` after aggregation."""
        specs = [spec for spec in self.model_specs if spec.part in parts]
        return all(spec.to_all and spec.receive_from == spec.key for spec in specs)

    def initial_values(self, client: int) -> Tensors:
        """Returns the initial values of one client that differ from the common ones, by name."""
        return {
            f"{name}.{key}": values[client].to(self.common[f"{name}.{key}"])
            for name, part in self.parts.items()
            for key, values in part.client_values.items()
        }

    def bytes_per_client(self) -> int:
        """Returns the size of a client's stored tensors."""
        return sum(spec.value.nbytes for spec in self.stored)

    def new_client(self, device: torch.device) -> Client:
        """Returns the client's modules with the initial values."""
        return deepcopy(self.client).to(device)

    def bindable_client(self, device: torch.device) -> Client:
        """Returns the client's modules, to bind tensors to; their own parameters are shared and must not be written."""
        parameters = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in self.client.parameters()}
        return replace_linear(deepcopy(self.client, parameters).to(device))

    def new_server(self) -> Tensors:
        """Returns the server's tensors before the first round."""
        return {key: value.clone() for key, value in self.server_common.items()}


def _optimizer_spec(name: str, parameter: TensorSpec, stored: bool) -> TensorSpec:
    """Returns the spec of an optimizer tensor, such as the momentum of ``parameter``."""
    shape = () if name == "adam_steps" else parameter.value.shape
    zeros = parameter.value.new_zeros(()).expand(shape)  # takes no memory
    return TensorSpec(f"{name}.{parameter.key}", name, zeros, parameter=False, receive_from=None, stored=stored)
