"""Programs of local steps: recorded once per phase and batch size, checked against the eager step, and shared.

The first step of a kind runs eagerly and is recorded. The program then repeats this step on copies of the tensors; only
if all of them are equal to the bit, later steps run as the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.program import StepProgram, write_program
from pfl_fast.engine.local.recording import NotRecordable, Recording
from pfl_fast.engine.local.runner import Chunk, PhaseRun, Step
from pfl_fast.engine.local.steps import Results, StepKeys, Steps
from pfl_fast.methods.base import Batch, Tensors

LOGGER = logging.getLogger(__name__)
KEPT_PROGRAMS = 256


class Programs(Steps):
    """Runs steps as TorchScript programs, which the workers of a run share.

    Args:
        enabled: record steps; otherwise all of them run eagerly.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._lock, self._compiling = Lock(), Lock()
        self._keys = StepKeys()
        self._programs: dict[tuple[Any, ...], StepProgram | None] = {}
        self._compiled: dict[str, Callable[..., Any]] = {}

    def run(self, run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings) -> Results:
        """See :meth:`Steps.run`: the first step of a key is recorded, and later ones run as its program."""
        if not self.enabled:
            return super().run(run, chunk, turn, settings)
        key = self._keys.key(run, chunk, turn, settings)
        program = self._programs.get(key)
        if program:
            return run.run_program(program, chunk.cut(0, program.most_steps), settings.stop_at_nan)
        if not self.claims(key):
            return super().run(run, chunk, turn, settings)
        step = run.first_step(chunk, turn, settings)
        self._record(key, step, run.active(chunk.rows), run.inputs(step))
        return [(step.loss, step.recorded)]

    def claims(self, key: tuple[Any, ...]) -> bool:
        """Returns True once per key: to the worker that records its step."""
        with self._lock:
            if key in self._programs:
                return False
            kept = [k for k in self._programs if self._keys.is_kept(k)][-KEPT_PROGRAMS:]
            self._programs = {**{k: self._programs[k] for k in kept}, key: None}
            return True

    def _record(self, key: tuple[Any, ...], step: Step, tensors: Tensors, names: Sequence[tuple[str, Tensor]]) -> None:
        """Runs a step and keeps its program if the program repeats the step to the bit.

        ``names`` are the names of inputs with the objects that stand for them in the step, which may replace some of
        the ``tensors``.
        """
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        batch = step.batch
        inputs = [*names, ("x", batch.x), ("y", batch.y), ("seed", batch.seed)]
        inputs += [(f"k{number}", value) for number, value in enumerate(batch.cached.values())]
        recording = Recording(inputs)
        with recording:
            step.run()
        try:
            program = write_program(recording, list(tensors), step.loss, step.recorded)
            with self._compiling:
                program.compile(self._compiled)
            check(program, before, tensors, batch, [step.loss, *step.recorded.values()])
        except (NotRecordable, RuntimeError) as reason:  # TorchScript's errors are RuntimeErrors
            LOGGER.debug("steps run eagerly: %s", reason)
            return
        self._programs[key] = program


def check(program: StepProgram, before: Tensors, after: Tensors, batch: Batch, outputs: Sequence[Tensor]) -> None:
    """Raises :class:`NotRecordable` unless the program turns the tensors ``before`` a step into those after it."""
    tensors = [before[name] for name in program.names]
    scratch = [torch.empty_like(memory) for memory in program.scratch]
    cached = [value[None] for value in batch.cached.values()]
    arguments = (batch.x[None], batch.y[None], batch.seed[None], cached)
    (found,) = program.run(tensors, tensors, scratch, *arguments, stop_at_nan=False)
    names = [*program.names, "the loss", *program.recorded]
    expected = [*(after[name] for name in program.names), *outputs]
    for name, mine, eager in zip(names, [*tensors, *found], expected, strict=True):
        if not same_bits(mine, eager):
            raise NotRecordable(f"the recorded step computes another {name} than the eager step")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are equal; NaN equals NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())
