"""Checks before the first round: names of parts in phases, and whether clients can be trained in one stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.runner import Runner
from pfl_fast.engine.local.single import SingleRunner
from pfl_fast.engine.local.stacked import StackedRunner
from pfl_fast.engine.local.trainer import Trainer
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.methods.base import Batch, Client, Loss, Method, Phase, Tensors

FORBIDDEN = {
    ".item()": "reads the value of a tensor, by .item() or float(): use the tensor; scalars that are returned with the "
    "loss are recorded",
    "data-dependent control flow": "branches on the value of a tensor: use torch.where, or multiply by a mask",
    "random operation": "draws noise from torch's generator: take it from batch.seed, by ops.philox_uniform",
}
CLIENTS, SAMPLES = 2, 2  # of the stack that is tried
TORCH, ENGINE = Path(torch.__file__).parent, Path(__file__).parent


def check_phases(method: Method, parts: Iterable[str]) -> None:
    """Raises if a phase names a part that the method does not have."""
    known = list(parts)
    for number, phase in enumerate(method.every_phase(), start=1):
        for field, name in named_parts(phase):
            if name not in known:
                loss = getattr(phase.loss, "__name__", "loss")
                raise ConfigError(
                    f"{method.title}: {field} of phase {number} ({loss}) names the part {name!r}; the "
                    f"parts are {', '.join(known)}{did_you_mean(name, known)}"
                )


def named_parts(phase: Phase) -> Iterable[tuple[str, str]]:
    """Yields the parts that a phase names, with the field that names them."""
    yield from (("train", name) for name in phase.train)
    yield from (("rotation", name) for turn in phase.rotation for name in turn)
    yield from (("adam", name) for name in phase.adam)
    yield from (("plain_sgd", name) for name in phase.plain_sgd)
    yield from (("cached", cache.part) for cache in phase.cached.values())
    for name, (center, _) in phase.proximal.items():
        yield from (("proximal", part) for part in (name, center.split(".")[0]))


def why_not_stacked(
    part_table: PartTable, method: Method, data: FederatedData, state: ClientState, settings: RoundSettings
) -> str | None:
    """Returns why clients cannot be trained and tested in one stack, or None if they can.

    Two clients take one step on two samples in every phase, on the CPU. An error that a single client raises too
    is not one of the stack: training will raise it.

    Args:
        part_table: the part table.
        method: the method.
        data: client data on the CPU.
        state: stored tensors of the clients, before the first round.
        settings: settings of the rounds.
    """
    data, device, server = data.first_samples(SAMPLES), torch.device("cpu"), part_table.new_server()
    s, bf16 = settings, settings.precision == "bf16"
    step = StepSettings(s.lr, s.momentum, s.weight_decay, s.seed, round=1, bf16=bf16)
    clients = data.stack_order(range(min(CLIENTS, data.clients)))
    views = {client: state.view(client, server) for client in clients}
    client = None
    with torch.random.fork_rng(devices=[]):
        try:
            runner = StackedRunner(part_table, method, data, device)
            client = runner.client
            try_training(runner, clients, views, step)
        except Exception as error:
            try:
                for number in clients:
                    try_training(SingleRunner(part_table, method, data, device), [number], views, step)
            except ConfigError:
                raise
            except Exception:
                return None
            if client is None:
                return str(error)
            refuse_forbidden(error, method, client)
            return explain(error, method, client)
    return None


def refuse_forbidden(error: Exception, method: Method, client: nn.Module) -> None:
    """Raises if the method itself reads values or draws noise, which its losses must not do under any executor.

    Modules of a model may: their clients train one by one.
    """
    found = next((remedy for words, remedy in FORBIDDEN.items() if words in str(error)), None)
    reason = explain(error, method, client)
    if found is not None and reason.startswith(f"method {method.title}"):
        line = reason.rpartition(" (")[2].rstrip(")")
        raise ConfigError(f"method {method.title} {found} ({line})")


def try_training(runner: Runner, clients: list[int], views: Mapping[int, Tensors], settings: StepSettings) -> None:
    """Trains one epoch of every phase and predicts; errors of the method or the model are raised."""
    every = runner.method.every_phase()
    phases = [replace(p, epochs=min(p.epochs, 1), loss=checked(p.loss, runner.method.title)) for p in every]
    tensors, write_buffers = runner.load([views[client] for client in clients], phases, settings)
    Trainer(runner, stop=lambda: False).train(clients, tensors, phases, settings, write_buffers)
    runner.logits(runner.method.predict, clients, tensors, "train", lambda _client, _batch: 0)
    if type(runner.method).upload is not Method.upload:
        runner.call(runner.method.upload, tensors)


def checked(loss: Loss, title: str) -> Loss:
    """Returns a loss that raises unless ``loss`` returns a scalar tensor and a dictionary of scalars."""

    @wraps(loss)
    def with_check(client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        result: Any = loss(client, batch)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            name = getattr(loss, "__name__", "loss")
            raise ConfigError(
                f"method {title}: {name} returned {type(result).__name__}; return the pair (loss, recorded), such as "
                "(loss, {})"
            )
        return result

    return with_check


def explain(error: Exception, method: Method, client: nn.Module) -> str:
    """Returns an error in a stack as a sentence with the module or method, the reason and the line of code."""
    names = {module: name for name, module in client.named_modules()}
    where, line = f"method {method.title}", ""
    for frame, number in walk_tb(error.__traceback__):
        module, file = frame.f_locals.get("self"), Path(frame.f_code.co_filename)
        if isinstance(module, nn.Module) and names.get(module):
            where = f"module {names[module]} ({type(module).__name__})"
        if TORCH not in file.parents and ENGINE not in file.parents:
            line = f" ({file.name}, line {number})"
    reason = str(error).strip().split("\n")[0].split(". ")[0].removeprefix("vmap: ").rstrip(".")
    return f"{where} cannot run for a stack of clients: {reason}{line}"
