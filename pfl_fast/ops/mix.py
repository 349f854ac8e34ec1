"""Two sets of parameters blended by a choice, and the gradient of the choice.

    out_t = local_t + c_t * (global_t - local_t)

c is one number (FedAFK, APFL), one number per segment of the model (PartialFed), or one per element (FedALA). Its
gradient is the dot product <grad, global - local> over the tensors that share it, added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


@overload
def mix(
    local: Tensor,
    global_: Tensor,
    choice: Tensor,
    segments: Sequence[int] | None = None,
    *,
    hard: bool = False,
) -> Tensor: ...
@overload
def mix(
    local: Sequence[Tensor],
    global_: Sequence[Tensor],
    choice: Tensor | Sequence[Tensor],
    segments: Sequence[int] | None = None,
    *,
    hard: bool = False,
) -> list[Tensor]: ...
def mix(
    local: Tensor | Sequence[Tensor],
    global_: Tensor | Sequence[Tensor],
    choice: Tensor | Sequence[Tensor],
    segments: Sequence[int] | None = None,
    *,
    hard: bool = False,
) -> Tensor | list[Tensor]:
    """``local + c * (global_ - local)`` for every tensor of a model.

    Args:
        local: a tensor, or a list of them; float64, float32, bfloat16 or float16, all the same; any strides.
        global_: as many, of the same shapes, dtype and device.
        choice: a scalar tensor for all; or ``[S]`` with ``segments``; or one tensor for each of ``local``, of its shape
            and dtype. A choice that is shared by elements may also be float32 for half types.
        segments: for each tensor of ``local`` which entry of ``choice`` it uses.
        hard: the choice is taken as 1 from 0.5 on and as 0 below, with the gradients of the soft choice (straight
            through).

    Returns:
        A tensor or a list like ``local``. Where the choice is exactly 0 or 1 it is the local or the global value bit
        for bit, even if the other one is infinite or NaN.

    Gradients, also twice: ``(1 - c) g`` to local, ``c g`` to global (exactly 0 for the one not chosen), and
    ``<g, global_ - local>`` over the tensors of a segment to its choice.

    >>> local, global_ = torch.tensor([0.0, 1.0]), torch.tensor([4.0, 3.0])
    >>> mix(local, global_, torch.tensor(0.25))
    tensor([1.0000, 1.5000])
    >>> choice = torch.tensor([0.2, 0.9], requires_grad=True)
    >>> mixed = mix([local, local], [global_, global_], choice, segments=[0, 1], hard=True)
    >>> [m.tolist() for m in mixed]
    [[0.0, 1.0], [4.0, 3.0]]
    >>> torch.autograd.grad(mixed[0].sum() + 2 * mixed[1].sum(), choice)
    (tensor([ 6., 12.]),)
    """
    locals_, globals_ = _tensors("local", local), _tensors("global_", global_)
    choices, places = _choices(local, locals_, choice, segments)
    if not locals_ and not globals_:  # without a tensor the dispatcher knows no device
        return []
    if backend.uses_native():
        results: list[Tensor] = torch.ops.pfl_fast.mix(locals_, globals_, choices, places, hard)
    else:
        _check("mix", locals_, globals_, choices, places)
        results = reference.mix(locals_, globals_, choices[0] if places else choices, places or None, hard)
    return results[0] if isinstance(local, Tensor) else results


def _choices(
    local: Tensor | Sequence[Tensor],
    locals_: list[Tensor],
    choice: Tensor | Sequence[Tensor],
    segments: Sequence[int] | None,
) -> tuple[list[Tensor], list[int]]:
    """The choice as the native operator wants it: one tensor [S] and a segment for each tensor, or a list and []."""
    if segments is not None:
        if not isinstance(choice, Tensor):
            raise TypeError(f"pfl_fast::mix: choice must be a tensor with segments, got {type(choice).__name__}")
        return [choice], list(segments)
    if isinstance(choice, Tensor) and choice.dim() == 0:
        return [choice.unsqueeze(0)], [0] * len(locals_)
    if isinstance(choice, Tensor) and not isinstance(local, Tensor):
        raise RuntimeError(  # noqa: TRY004 its shape is wrong, not its type
            "pfl_fast::mix: choice must be a scalar tensor, one with segments, or a list of tensors like local, "
            f"got shape {list(choice.shape)}"
        )
    return _tensors("choice", choice), []


def _tensors(name: str, value: Tensor | Sequence[Tensor]) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"pfl_fast::mix: {name} must be a tensor or a list of tensors, got {type(value).__name__}")
    for i, item in enumerate(value):
        if not isinstance(item, Tensor):
            raise TypeError(f"pfl_fast::mix: {name}[{i}] must be a tensor, got {type(item).__name__}")
    return list(value)


def _check(op: str, local: list[Tensor], global_: list[Tensor], choice: list[Tensor], segments: Sequence[int]) -> None:
    """The contract in csrc/mix.h, for the paths that do not reach it: the reference and shape-only tensors."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise RuntimeError(f"pfl_fast::{op}: {what}")

    def expect_like_local(name: str, tensors: list[Tensor]) -> None:
        expect(
            len(tensors) == len(local),
            f"{name} must hold {len(local)} tensors, one for each of local, got {len(tensors)}",
        )
        for t, (x, like) in enumerate(zip(tensors, local, strict=True)):
            for what in ("shape", "dtype", "device"):
                mine, other = getattr(x, what), getattr(like, what)
                expect(mine == other, f"{name}[{t}] must have the {what} of local[{t}], {other}, got {mine}")

    for t, x in enumerate(local):
        expect(x.dtype in backend.FLOATS, f"local[{t}] must be float64, float32, bfloat16 or float16, got {x.dtype}")
        for what in ("dtype", "device"):
            mine, first = getattr(x, what), getattr(local[0], what)
            expect(mine == first, f"local[{t}] must have the {what} of local[0], {first}, got {mine}")
    expect_like_local("global_", global_)
    if not segments:
        expect_like_local("choice", choice)
        return
    expect(len(choice) == 1, f"choice must be one tensor with segments, got {len(choice)}")
    c, sum_type = choice[0], torch.promote_types(local[0].dtype, torch.float32)
    expect(
        c.dtype in (local[0].dtype, sum_type),
        f"choice must have the dtype of local, {local[0].dtype}, or {sum_type}, got {c.dtype}",
    )
    expect(
        c.device == local[0].device,
        f"choice must be on the device of local[0], {local[0].device}, got {c.device}",
    )
    expect(c.dim() >= 1, f"choice must be [*batch, segments], got shape {list(c.shape)}")
    expect(
        len(segments) == len(local),
        f"segments must hold {len(local)} numbers, one for each of local, got {len(segments)}",
    )
    for t, (segment, x) in enumerate(zip(segments, local, strict=True)):
        expect(
            0 <= segment < c.shape[-1],
            f"segments[{t}] must be in [0, {c.shape[-1]}), the segments of choice, got {segment}",
        )
        expect(
            x.shape[: c.dim() - 1] == c.shape[:-1],
            f"local[{t}] must begin with the batch dimensions of choice {list(c.shape)}, got shape {list(x.shape)}",
        )


@backend.fake("mix")
def _(
    local: list[Tensor],
    global_: list[Tensor],
    choice: list[Tensor],
    segments: list[int],
    hard: bool,  # noqa: ARG001 called by name
) -> list[Tensor]:
    _check("mix", local, global_, choice, segments)
    return [x.new_empty(x.shape) for x in local]


@backend.fake("mix_backward")
def _(
    grads: list[Tensor],  # noqa: ARG001 called by name
    local: list[Tensor],
    global_: list[Tensor],
    choice: list[Tensor],
    segments: list[int],
    hard: bool,  # noqa: ARG001 called by name
    needs_local: bool,
    needs_global: bool,
    needs_choice: bool,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    _check("mix_backward", local, global_, choice, segments)

    def like(tensors: list[Tensor], wanted: bool) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in tensors] if wanted else []

    return like(local, needs_local), like(global_, needs_global), like(choice, needs_choice)


Tensors = list[Tensor]


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    local, global_, choice, ctx.segments, ctx.hard = inputs
    ctx.save_for_backward(*local, *global_, *choice)
    ctx.count = len(local)


def _saved(ctx: Any, lists: int) -> list[Tensors]:
    """The saved tensors as ``lists`` lists of one per parameter, and what is left over: the choice."""
    saved, n = list(ctx.saved_tensors), ctx.count
    return [*[saved[i * n : (i + 1) * n] for i in range(lists)], saved[lists * n :]]


def _filled(tensors: Sequence[Tensor | None], like: Tensors) -> Tensors:
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tensors, like, strict=True)]


def _nothing(segments: Sequence[int]) -> list[None] | None:
    """No gradient, in the form torch wants: it takes an empty list of numbers for a list of tensors."""
    return None if segments else []


@backend.gradient("mix", setup_context=_save_inputs)
def _(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    local, global_, choice = _saved(ctx, 2)
    needs = [any(n) for n in ctx.needs_input_grad[:3]]
    results = torch.ops.pfl_fast.mix_backward(
        _filled(grads, local), local, global_, choice, ctx.segments, ctx.hard, *needs
    )
    counts = (len(local), len(local), len(choice))
    filled = [r if n else [None] * count for r, n, count in zip(results, needs, counts, strict=True)]
    return filled[0], filled[1], filled[2], _nothing(ctx.segments), None


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    grads, local, global_, choice, ctx.segments, ctx.hard, *ctx.needs = inputs
    ctx.save_for_backward(*grads, *local, *global_, *choice)
    ctx.count = len(local)


@backend.gradient("mix_backward", setup_context=_save_backward_inputs)
def _(
    ctx: Any, v_local: list[Tensor | None], v_global: list[Tensor | None], v_choice: list[Tensor | None]
) -> tuple[Any, ...]:
    """The operator is bilinear in (1, choice) and (local, global - local), so its second derivatives are mixes again.

    d/d grads  = mix(v_local, v_global, choice) + v_choice * (global - local)
    d/d local  = -v_choice * grads,  d/d global = v_choice * grads
    d/d choice = <grads, v_global - v_local>
    """
    grads, local, global_, choice = _saved(ctx, 3)
    needs_local, needs_global, needs_choice = ctx.needs
    d_grads, d_local, d_global, d_choice = ([torch.zeros_like(x) for x in x] for x in (grads, local, global_, choice))
    if needs_local or needs_global:
        to_local = _filled(v_local, local) if needs_local else [torch.zeros_like(x) for x in local]
        to_global = _filled(v_global, local) if needs_global else [torch.zeros_like(x) for x in local]
        where = (to_local, to_global, choice, ctx.segments, ctx.hard)
        d_grads = torch.ops.pfl_fast.mix(*where)
        d_choice = torch.ops.pfl_fast.mix_backward(grads, *where, False, False, True)[2]
    if needs_choice:
        factors = _spread(_filled(v_choice, choice), ctx.segments, local)
        d_grads = [d + f * (y - x) for d, f, x, y in zip(d_grads, factors, local, global_, strict=True)]
        d_global = [f * g for f, g in zip(factors, grads, strict=True)]
        d_local = [-d for d in d_global]
    return d_grads, d_local, d_global, d_choice, _nothing(ctx.segments), *[None] * 4


def _spread(choice: Tensors, segments: Sequence[int], like: Tensors) -> Tensors:
    """For each tensor its choice, in a shape that meets the tensor's."""
    if not segments:
        return choice
    batch = choice[0].dim() - 1
    columns = [choice[0].select(-1, segment).to(x.dtype) for segment, x in zip(segments, like, strict=True)]
    return [c.reshape([*c.shape, *[1] * (x.dim() - batch)]) for c, x in zip(columns, like, strict=True)]


def _front(size: int, tensors: Tensors, dims: Sequence[int | None]) -> Tensors:
    return [x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in zip(tensors, dims, strict=True)]


@backend.vmap("mix")
def _(
    info: Any, in_dims: Any, local: Tensors, global_: Tensors, choice: Tensors, segments: list[int], hard: bool
) -> Any:
    lists = [_front(info.batch_size, x, d) for x, d in zip((local, global_, choice), in_dims[:3], strict=True)]
    return torch.ops.pfl_fast.mix(*lists, segments, hard), [0] * len(local)


@backend.vmap("mix_backward")
def _(info: Any, in_dims: Any, grads: Tensors, local: Tensors, global_: Tensors, choice: Tensors, *options: Any) -> Any:
    given = (grads, local, global_, choice)
    lists = [_front(info.batch_size, x, d) for x, d in zip(given, in_dims[:4], strict=True)]
    results = torch.ops.pfl_fast.mix_backward(*lists, *options)
    return results, tuple([0] * len(r) for r in results)
