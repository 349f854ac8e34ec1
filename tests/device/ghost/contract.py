"""The operator contract on ghost GPUs with emulated kernels; prints failures as JSON.

python -m tests.device.ghost.contract    # in a process with build.environment(gpus=2, values=True)
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.testing import assert_close
from tests.device.ghost import host_kernels, rounds
from tests.ops.operators import Operator, Sample, operators

LIBRARY = "libghost_emulated_ops.so"


@dataclass
class Place:
    """Device of the tensors, current device, and the stream that is current during the forward."""

    name: str
    device: torch.device
    current: int
    stream: torch.cuda.Stream | None = None

    def context(self) -> AbstractContextManager[Any]:
        """Makes the stream current."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def expected(self) -> tuple[int, int]:
        """Device and stream of the launches."""
        stream = self.stream or torch.cuda.default_stream(self.device)
        return self.device.index, stream.cuda_stream


class Launches:
    """Launches of the kernels of pfl_fast."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(Path(os.environ["GHOST"]) / LIBRARY))
        self._library.ghost_kernels.restype = ctypes.c_char_p

    def take(self) -> list[tuple[str, int, int]]:
        """Name, device and stream of the launches since the last call."""
        lines = self._library.ghost_kernels().decode().splitlines()
        return [(name, int(device), int(stream)) for name, device, stream in (line.split() for line in lines)]


def outcome(function: Any, sample: Sample, op: Operator, place: Place | None) -> tuple[Sequence[Tensor], list[Any]]:
    """Values of a sample, and gradients of its floating-point tensors."""
    device = torch.device("cpu") if place is None else place.device
    tensors = [t.to(device, copy=True) for t in sample.tensors]
    if op.differentiable:
        tensors = [t.requires_grad_() if t.is_floating_point() else t for t in tensors]
    with nullcontext() if place is None else place.context():
        values = function(*tensors, **sample.options)
    tracked = [t for t in tensors if t.requires_grad]
    if not tracked or not values:
        return values, []
    grads = [torch.linspace(-1, 2, v.numel(), dtype=v.dtype).view_as(v).to(device) for v in values]
    return values, list(torch.autograd.grad(values, tracked, grads, allow_unused=True))


def compare(op: Operator, sample: Sample, place: Place, launches: Launches) -> None:
    """Compares values and gradients with the reference on the CPU; raises if they or the launches are wrong."""
    expected, expected_grads = outcome(op.reference, sample, op, None)
    torch.cuda.set_device(place.current)
    launches.take()
    values, grads = outcome(op.call, sample, op, place)
    launched = launches.take()
    assert torch.cuda.current_device() == place.current, "the current device has changed"
    wrong = [launch for launch in launched if launch[1:] != place.expected()]
    assert not wrong, f"launches at {wrong}, expected at {place.expected()}"
    empty = not sample.tensors or not all(t.numel() for t in [*sample.tensors, *values])
    assert launched or empty, "no kernel was launched"
    for i, (a, e) in enumerate(zip([*values, *grads], [*expected, *expected_grads], strict=True)):
        if a is None or e is None:
            assert a is None or not a.any(), f"gradient {i} must be zero"
            continue
        assert a.device == place.device
        scale = max(1.0, float(e.detach().abs().max()) if e.numel() else 1.0)
        assert_close(a.detach().cpu(), e.detach(), f"result {i}", scale=scale)


def failure(op: Operator, sample: Sample, place: Place, launches: Launches) -> str | None:
    """The error of :func:`compare`, or None."""
    try:
        compare(op, sample, place, launches)
    except Exception as error:
        dtypes = [t.dtype for t in sample.tensors]
        return f"{op.name}, {dtypes}, {sample.name}, {place.name}: {type(error).__name__}: {error}"
    return None


def refused() -> dict[str, str]:
    """Messages of calls that must raise: tensors of two devices, and a kernel whose launch fails."""
    x = {place: torch.ones(2, 3, device=place) for place in ("cpu", "cuda:0", "cuda:1")}
    emulation = ctypes.CDLL(str(Path(os.environ["GHOST"]) / LIBRARY))
    calls = {
        "two GPUs": lambda: ops.sgd_([x["cuda:0"]], [x["cuda:1"]], lr=1.0),
        "host and GPU": lambda: ops.sgd_([x["cuda:0"]], [x["cpu"]], lr=1.0),
        "launch": lambda: ops.sgd_([x["cuda:0"]], [x["cuda:0"]], lr=1.0),
    }
    messages = {}
    emulation.pfl_emulation_limit_grid(ctypes.c_uint(0))
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            messages[name] = str(error)
    emulation.pfl_emulation_limit_grid(ctypes.c_uint(65_535))
    return messages


def main() -> dict[str, Any]:
    """Runs every sample of every operator on the first GPU; those of float32, or of no float type, elsewhere too."""
    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False  # there is no ghost of cuDNN
    rounds.load_operators(LIBRARY)
    replaced = host_kernels.install()
    launches = Launches()
    first = Place("cuda:0", torch.device("cuda:0"), current=0)
    others = [
        Place("cuda:1 while cuda:0 is current", torch.device("cuda:1"), current=0),
        Place("a stream of cuda:0 while cuda:1 is current", torch.device("cuda:0"), 1, torch.cuda.Stream(0)),
    ]
    compared, failures = Counter[str](), []
    for op in operators():
        for dtype in op.dtypes:
            places = [first, *others] if dtype == torch.float32 or len(op.dtypes) == 1 else [first]
            empty = op.empty_samples() if dtype == op.dtypes[0] else []
            for sample, place in itertools.product([*op.samples(dtype), *empty], places):
                failures.append(failure(op, sample, place, launches))
                compared[f"{op.name}, {place.name}"] += 1
    messages = refused()
    del replaced
    return {"compared": compared, "failures": [text for text in failures if text], "refused": messages}


if __name__ == "__main__":
    print(json.dumps(main()))
