"""Samples and errors of ``mix`` for the contract test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def arguments(tensors: tuple[Tensor, ...], segments: list[int] | None) -> tuple[Any, ...]:
    """Splits a sample into arguments: a choice and pairs of tensors; without a shared choice, a choice per tensor."""
    if segments is not None or len(tensors) % 2:
        choice, *rest = tensors
        return rest[::2], rest[1::2], choice, segments
    third = len(tensors) // 3
    return list(tensors[:third]), list(tensors[third : 2 * third]), list(tensors[2 * third :]), None


def call(*tensors: Tensor, segments: list[int] | None = None, hard: bool = False) -> tuple[Tensor, ...]:
    return tuple(ops.mix(*arguments(tensors, segments), hard=hard))


def expected(*tensors: Tensor, segments: list[int] | None = None, hard: bool = False) -> tuple[Tensor, ...]:
    return tuple(reference.mix(*arguments(tensors, segments), hard=hard))


def script(choice: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    return torch.ops.pfl_fast.mix([a, c], [b, d], [choice], [1, 0], False)


def make(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def elementwise(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Returns an even number of tensors, which marks a choice per element; some choices are 0 or 1."""
    tensors = make(dtype, *shapes, *shapes, *shapes)
    count = len(shapes)
    return (*tensors[: 2 * count], *[t.where(t.abs() < 1, (t > 0).to(dtype)) for t in tensors[2 * count :]])


def samples(dtype: torch.dtype) -> list[Sample]:
    pairs = ((3, 4), (3, 4), (5,), (5,))
    large = ((4099,), (4099,), (2, 31), (2, 31), (17, 1031), (17, 1031))
    selects = torch.tensor([0.0, 1.0, 0.25], dtype=dtype)
    soft = Sample("soft, hard gradients", make(dtype, (3,), *large), {"segments": [2, 0, 1], "hard": True})
    return [
        Sample("segments", make(dtype, (2,), *pairs), {"segments": [1, 0]}),
        Sample("one choice", make(dtype, (), *pairs)),
        Sample("a choice per element", elementwise(dtype, (3, 4), (5,))),
        Sample("one segment for two", make(dtype, (3,), *pairs), {"segments": [2, 2]}),
        Sample("scalars", make(dtype, (), (), ())),
        Sample("large", make(dtype, (2,), *large), {"segments": [0, 1, 0]}),
        Sample("zero and one", (selects, *make(dtype, *large)), {"segments": [0, 1, 2]}),
        soft,
        Sample("large, a choice per element", elementwise(dtype, (4099,), (0,), (), (17, 1031))),
        Sample("hard, a choice per element", elementwise(dtype, (4099,), (2, 31)), {"hard": True}),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("empty tensor", make(torch.float32, (), (0, 3), (0, 3), (2,), (2,))),
        Sample("only empty", make(torch.float32, (), (0,), (0,))),
        Sample("empty, a choice per element", elementwise(torch.float32, (0, 3), (2,))),
    ]


def raw_calls():
    choice, a, b, c, d = make(torch.float64, (2, 3), (2, 3, 2), (2, 3, 2), (2,), (2,))
    x, y, w, g = make(torch.float64, (4,), (4,), (4,), (4,))
    raw = torch.ops.pfl_fast

    def tracked(*tensors: Tensor) -> list[Tensor]:
        return [t.clone().requires_grad_() for t in tensors]

    return [
        (raw.mix.default, (tracked(a, c), tracked(b, d), tracked(choice), [2, 0], False)),
        (raw.mix.default, (tracked(x), tracked(y), tracked(w), [], True)),
        (raw.mix_backward.default, ([b, d], [a, c], [b, d], [choice], [2, 0], False, True, True, True)),
        (raw.mix_backward.default, ([b, d], [a, c], [b, d], [choice], [2, 0], False, False, True, False)),
        (raw.mix_backward.default, (tracked(g), tracked(x), tracked(y), tracked(w), [], False, True, True, True)),
    ]


def bad_inputs() -> list[BadInput]:
    x, c = torch.ones(3), torch.tensor([0.5, 0.2])

    def bad(name: str, message: str, *given: Any) -> BadInput:
        return BadInput(name, lambda: ops.mix(*given), f"mix: {message}")

    return [
        bad("count", r"global_ must hold 1 tensors.*got 2", [x], [x, x], c[0]),
        bad("shape", r"global_\[0\] must have the shape of local\[0\].*3.*got .*2", x, x[:2], c[0]),
        bad("dtype", r"global_\[0\] must have the dtype of local\[0\].*got .*(ouble|64)", x, x.double(), c[0]),
        bad("device", r"global_\[0\] must .* device of local\[0\], cpu, got ", x, x.to("meta"), c[0]),
        bad("mixed", r"local\[1\] must have the dtype of local\[0\]", [x, x.half()], [x, x.half()], c[0]),
        bad("integers", r"local\[0\] must be float64.*got .*(Long|int64)", x.long(), x.long(), c[0]),
        bad("choice dtype", r"choice must have the dtype of local, .*got .*(ouble|64)", x, x, c[0].double()),
        bad("choice half", r"choice must have the dtype of local, .*got .*(Half|16)", x, x, c[0].half()),
        bad("no segments", r"choice must be a scalar tensor.*got shape \[2\]", [x], [x], c),
        bad("segments", r"segments must hold 2 numbers.*got 1", [x, x], [x, x], c, [0]),
        bad("segment", r"segments\[1\] must be in \[0, 2\).*got 2", [x, x], [x, x], c, [0, 2]),
        bad("negative", r"segments\[0\] must be in \[0, 2\).*got -1", [x, x], [x, x], c, [-1, 1]),
        bad("no choice", r"choice must be \[\*batch, segments\], got shape \[\]", x, x, c[0], [0]),
        bad("elements", r"choice\[0\] must have the shape of local\[0\].*got .*2", [x], [x], [c]),
        bad("element dtype", r"choice\[0\] must have the dtype of local\[0\]", [x], [x], [x.double()]),
        bad("number", r"choice must be a tensor or a list of tensors, got float", x, x, 0.5),
        bad("list", r"choice must be a tensor with segments, got list", [x], [x], [x], [0]),
        bad("local", r"local\[0\] must be a tensor, got int", [1], [x], c[0]),
    ]


OPERATOR = Operator(
    name="mix",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0, 0, 0), (0, 0, None, 0, None), (None, 1, 2, 0, None), (1, None, None, None, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["mix", "mix_backward"],
)
