"""Every method, and every value of its options, for one round on one and two ghost GPUs; prints errors as JSON.

python -m tests.device.ghost.every_option    # in a process with build.environment(gpus=2)
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from pfl_fast.methods import METHODS
from pfl_fast.methods.partialfed_strategies import ANY_MODEL, WITH_SQUEEZES, WITH_STAGES
from tests.device.ghost import convolutions, rounds
from tests.engine import small_experiments as small
from tests.methods.residual import residual

DEVICES = ("cuda:0", "cuda:0,cuda:1")
STRATEGIES = (*ANY_MODEL, *WITH_SQUEEZES, *WITH_STAGES, "AaBbCcDd")  # of partialfed-fix, an option without choices


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a method and its options: the defaults, then one option with another value than its default at a time."""
    for name, method in METHODS.items():
        yield name, {}
        for field in dataclasses.fields(method.Options):
            for value in other_values(field):
                yield name, {field.name: value}
    yield from (("partialfed-fix", {"strategy": strategy}) for strategy in STRATEGIES)


def other_values(field: dataclasses.Field[Any]) -> list[Any]:
    """Values of an option besides its default: true or false, its choices, its limits, and none."""
    metadata = field.metadata
    values = [not field.default] if isinstance(field.default, bool) else [*metadata["choices"]]
    values += [metadata["minimum"], metadata["maximum"]]
    values = [value for value in values if value is not None] + [None] * ("None" in str(field.type))
    return [value for value in values if value != field.default]


def error_of(method: str, options: dict[str, Any], device: str, runtime: ctypes.CDLL) -> str | None:
    """Trains one round; returns what failed, or None."""
    values: dict[str, Any] = {"device": device, "executor": "batched", "stack": 3, "rounds": 1, "on_nan": "report"}
    if method.startswith("partialfed"):
        values["model"] = residual(squeeze=True)
    if options.get("gh") is False:
        values["cpn"] = False  # fedcp
    runtime.ghost_reset()
    try:
        with small.trained(
            method, sizes=(5, 3, 4), dtype="float32", log=lambda _: None, **values, **options
        ) as running:
            devices = [str(worker.device) for worker in running.round.executor.workers]
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
    counts = rounds.figures(runtime)
    if ",".join(devices) != device or not counts["launches"]:
        return f"ran on {devices}, {counts['launches']} launches"
    if len(devices) > 1 and not counts["bytes between devices"]:
        return "the GPUs exchanged nothing"
    return None


def main() -> dict[str, Any]:
    """Runs all cases; returns their number and the errors by case."""
    torch.set_num_threads(1)
    runtime = rounds.load_runtime()
    replaced = convolutions.install(runtime)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for method, options in cases():
            for device in DEVICES:
                found[f"{method} {options} on {device}"] = error_of(method, options, device, runtime)
    del replaced
    texts = sorted({str(warning.message) for warning in caught})
    return {"runs": len(found), "errors": {name: error for name, error in found.items() if error}, "warnings": texts}


if __name__ == "__main__":
    print(json.dumps(main()))
