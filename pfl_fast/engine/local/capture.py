"""Programs of local steps: recorded once per phase and batch size, checked against the eager step, and shared.

The first step of a kind runs eagerly and is recorded. The program then repeats this step on copies of the tensors; only
if all of them are equal to the bit, later steps run as the program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.program import StepProgram, write_program
from pfl_fast.engine.local.recording import NotRecordable, Recording
from pfl_fast.methods.base import Batch, Phase, Tensors

LOGGER = logging.getLogger(__name__)
KEPT_PHASES, KEPT_PROGRAMS = 8, 256  # of earlier rounds


@dataclass(eq=False)
class RecordedStep:
    """A step to be recorded.

    Attributes:
        run: runs the step.
        batch: its batch.
        tensors: tensors of the unit by name; ``run`` may replace some of them.
        names: names of the inputs, and the objects that stand for them in the step.
        outputs: returns loss and recorded quantities after the step.
    """

    run: Callable[[], None]
    batch: Batch
    tensors: Tensors
    names: Sequence[tuple[str, Tensor]]
    outputs: Callable[[], tuple[Tensor, Tensors]]


class Programs:
    """Programs of the steps of a run, shared by its workers.

    Args:
        enabled: record steps; otherwise all of them run eagerly.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._lock, self._compiling = Lock(), Lock()
        self._phases: list[Phase] = []
        self._programs: dict[tuple[Any, ...], StepProgram | None] = {}
        self._compiled: dict[str, Callable[..., Any]] = {}

    def key(self, phase: Phase, settings: StepSettings, *shape: Any) -> tuple[Any, ...]:
        """Returns the key of a program: the phase, the settings that it contains as numbers, and shapes."""
        with self._lock:
            found = next((p for p in self._phases if p is phase), None) or next(
                (p for p in self._phases if p == phase), None
            )
            if found is None:
                self._phases.append(found := phase)
                for old in self._phases[:-KEPT_PHASES]:
                    self._programs = {k: program for k, program in self._programs.items() if k[0] != id(old)}
                del self._phases[:-KEPT_PHASES]
        return (id(found), settings.lr, settings.momentum, settings.weight_decay, settings.bf16, *shape)

    def get(self, key: tuple[Any, ...]) -> StepProgram | None:
        """Returns the program of a key, or None if steps run eagerly."""
        return self._programs.get(key)

    def claims(self, key: tuple[Any, ...]) -> bool:
        """Returns True once per key: to the worker that records its step."""
        with self._lock:
            if not self.enabled or key in self._programs:
                return False
            self._programs[key] = None
            for old in list(self._programs)[:-KEPT_PROGRAMS]:
                del self._programs[old]
            return True

    def record(self, key: tuple[Any, ...], step: RecordedStep) -> None:
        """Runs a step and keeps its program if the program repeats the step to the bit."""
        before = {name: tensor.clone() for name, tensor in step.tensors.items()}
        inputs = [*step.names, ("x", step.batch.x), ("y", step.batch.y), ("seed", step.batch.seed)]
        inputs += [(f"k{number}", value) for number, value in enumerate(step.batch.cached.values())]
        recording = Recording(inputs)
        with recording:
            step.run()
        loss, recorded = step.outputs()
        try:
            program = write_program(recording, list(step.tensors), loss, recorded)
            with self._compiling:
                program.compile(self._compiled)
            check(program, before, step.tensors, step.batch, [loss, *recorded.values()])
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
