"""How steps run: eagerly here, as TorchScript programs in ``capture.py``, as CUDA graphs in ``graphs.py``."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor

from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.runner import Chunk, PhaseRun
from pfl_fast.methods.base import Method, Phase, Tensors

KEPT_PHASES = 8  # of earlier rounds
Results = list[tuple[Tensor, Tensors]]


class Steps:
    """Runs steps eagerly."""

    def run(self, run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings) -> Results:
        """Runs the first steps of a chunk, one or more; returns loss and recorded quantities of each.

        Args:
            run: phase of a unit of clients.
            chunk: at least one batch.
            turn: turn of the rotation, the same for all batches.
            settings: optimizer settings of the phase.
        """
        step = run.first_step(chunk, turn, settings)
        step.run()
        return [(step.loss, step.recorded)]

    def free(self) -> bool:
        """Frees memory that recorded steps take on the device, and records no more; returns whether there was any."""
        return False


class StepKeys:
    """Keys of recorded steps: equal keys stand for the same operators on tensors of the same shapes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._phases: dict[int, Phase] = {}
        self._next = 0

    def key(self, run: PhaseRun, chunk: Chunk, turn: int, settings: StepSettings) -> tuple[Any, ...]:
        """Returns the key of the first step of a chunk; its first entry is the number of the phase.

        It contains what a recorded step has as constants: the phase, numbers of the settings and of the method, shapes.
        """
        numbers = (settings.lr, settings.momentum, settings.weight_decay, settings.bf16, *state(run.runner.method))
        shapes = (turn, tuple(chunk.x.shape[1:]), chunk.y.shape[1:], len(chunk.cached), type(run).__name__)
        return (self._number(run.phase), *numbers, *shapes)

    def is_kept(self, key: tuple[Any, ...]) -> bool:
        """Returns whether the phase of a key is one of the last."""
        return key[0] in self._phases

    def _number(self, phase: Phase) -> int:
        with self._lock:
            for number, known in self._phases.items():
                if known is phase or known == phase:
                    return number
            self._next += 1
            self._phases[self._next] = phase
            for old in list(self._phases)[:-KEPT_PHASES]:
                del self._phases[old]
            return self._next


@dataclass(frozen=True, eq=False)
class Same:
    """An object in a key, equal to itself alone; the key keeps it, so that no other object gets its id."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def state(method: Method) -> list[tuple[str, Any]]:
    """Returns attributes of a method, which may change between rounds: numbers, texts, and other objects.

    >>> from types import SimpleNamespace
    >>> state(SimpleNamespace(tau=0.5, scale=2))
    [('tau', 0.5), ('scale', 2)]
    """
    simple = (bool, int, float, str)
    return [(name, value if isinstance(value, simple) else Same(value)) for name, value in vars(method).items()]
