"""Values of runs with CUDA graphs on a ghost GPU; prints tensors that differ from those of eager runs as JSON.

python -m tests.device.ghost.replays    # in a process with build.environment(values=True)

CPU kernels compute in the ghost's memory. The replay of a graph computes the captured operators again, on the memory
that they were captured with.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch

from pfl_fast.engine.local import graphs
from pfl_fast.ops import backend
from tests.device.ghost import host_kernels, rounds
from tests.engine import small_experiments as small

MANY = {"momentum": 0.9, "weight_decay": 0.01, "join_ratio": 0.6, "local_epochs": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one phase": ("fedavg", {}),
    "momentum, other stacks in each round": ("fedavg", MANY),
    "learning rates": ("fedavg", {"lr_decay": 0.5, "rounds": 3}),
    "two phases": ("fedrep", {}),
    "proximal center": ("ditto", {}),
    "cached values": ("fedcp", {}),
    "BatchNorm": ("fedavg", {"model": small.with_batch_norm()}),
    "Adam": ("fedafk", {}),
    "hooks after steps": ("scaffold", {}),
    "several steps on a batch": ("pfedme", {}),
}


def record_captures() -> None:
    """Lets torch's captures and replays compute by :class:`host_kernels.Tape`."""
    tapes: dict[int, host_kernels.Tape] = {}
    enter, leave, replay = torch.cuda.graph.__enter__, torch.cuda.graph.__exit__, torch.cuda.CUDAGraph.replay

    def begin(capture: Any) -> None:
        enter(capture)
        host_kernels.Tape.current = tapes[id(capture.cuda_graph)] = host_kernels.Tape()

    def end(capture: Any, *error: Any) -> None:
        host_kernels.Tape.current = None
        leave(capture, *error)
        tapes[id(capture.cuda_graph)].undo()

    def again(graph: Any) -> None:
        replay(graph)
        tapes[id(graph)].replay()

    torch.cuda.graph.__enter__, torch.cuda.graph.__exit__ = begin, end  # type: ignore[method-assign]
    torch.cuda.CUDAGraph.replay = again  # type: ignore[method-assign]


def outcome(method: str, capture: str, **values: Any) -> tuple[dict[str, Any], str]:
    """Final tensors and records of a run."""
    values = {"device": "cuda:0", "executor": "batched", "dtype": "float32", "capture": capture, **values}
    with small.trained(method, log=lambda _: None, **values) as running:
        return small.state_of(running), str(small.untimed_records(running))


def main() -> dict[str, Any]:
    """Returns the tensors that differ, and the number of replays, by case."""
    torch.set_num_threads(1)
    runtime = rounds.load_runtime()
    backend._CUDA_KERNELS = frozenset()  # references, which consist of torch's operators
    replaced = host_kernels.install()
    record_captures()
    graphs.EAGER_STEPS = 0
    warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # the ghost launches no kernel
    found = {}
    for name, (method, values) in CASES.items():
        eager, records = outcome(method, "off", **values)
        runtime.ghost_reset()
        mine, own_records = outcome(method, "auto", **values)
        wrong = [key for key, value in eager.items() if not torch.equal(value, mine[key])]
        wrong += ["records"] if records != own_records else []
        found[name] = {"wrong": wrong, "replays": rounds.counts(runtime).get("launch graph", 0)}
    del replaced
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
