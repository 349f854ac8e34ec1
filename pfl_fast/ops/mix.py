"""Interpolation between local and global parameters by a learnable weight, the choice.

    out_t = local_t + c_t * (global_t - local_t)

c is one number (FedAFK, APFL), one number per segment of the model (PartialFed), or one per element (FedALA). The
gradient of c is the dot product <grad, global - local> over all elements that share it, added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_device, check_float_list, check_list_like, expect, tensor_list

Tensors = list[Tensor]


@overload
def mix(
    local: Tensor, global_: Tensor, choice: Tensor, segments: Sequence[int] | None = None, *, hard: bool = False
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
    """Computes ``local + c * (global_ - local)`` for every tensor of a model.

    Args:
        local: a tensor or a list of tensors, all float64, float32, bfloat16 or float16; any strides.
        global_: a tensor or a list of tensors of the same shapes, dtype and device.
        choice: a scalar tensor shared by all; or ``[S]`` with ``segments``; or one tensor per tensor of ``local``, of
            its shape and dtype. A scalar or ``[S]`` choice may also be float32 for half types.
        segments: index into ``choice`` for each tensor of ``local``.
        hard: True rounds the choice to 1 (from 0.5 on) or 0, with the gradients of the soft choice (straight-through).

    Returns:
        A tensor or a list like ``local``. Where the choice is exactly 0 or 1, the value is bit for bit the local or the
        global one, even if the other one is infinite or NaN.

    Differentiable twice. The gradients are ``(1 - c) g`` for ``local``, ``c g`` for ``global_`` (exactly 0 for the one
    not chosen), and ``<g, global_ - local>`` over the tensors of a segment for ``choice``.

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
    locals_ = tensor_list("mix", "local", local, allow_tensor=True)
    globals_ = tensor_list("mix", "global_", global_, allow_tensor=True)
    choices, indices = _normalize_choice(local, locals_, choice, segments)
    if not locals_ and not globals_:  # the dispatcher needs a tensor to choose the device
        return []
    if backend.runs_native("mix", (locals_ or globals_)[0]):
        results: Tensors = torch.ops.pfl_fast.mix(locals_, globals_, choices, indices, hard)
    else:
        _check("mix", locals_, globals_, choices, indices)
        results = reference.mix(locals_, globals_, choices[0] if indices else choices, indices or None, hard)
    return results[0] if isinstance(local, Tensor) else results


def _normalize_choice(
    local: Tensor | Sequence[Tensor],
    locals_: Tensors,
    choice: Tensor | Sequence[Tensor],
    segments: Sequence[int] | None,
) -> tuple[Tensors, list[int]]:
    """Returns the native operator's form: ``[choice of shape [S]]`` and a segment per tensor, or a list and []."""
    if segments is not None:
        if not isinstance(choice, Tensor):
            raise TypeError(f"pfl_fast::mix: choice must be a tensor with segments, got {type(choice).__name__}")
        return [choice], list(segments)
    if isinstance(choice, Tensor) and choice.dim() == 0:
        return [choice.unsqueeze(0)], [0] * len(locals_)
    if isinstance(choice, Tensor) and not isinstance(local, Tensor):
        raise RuntimeError(  # noqa: TRY004 the shape is wrong, not the type
            "pfl_fast::mix: choice must be a scalar tensor, one with segments, or a list of tensors like local, "
            f"got shape {list(choice.shape)}"
        )
    return tensor_list("mix", "choice", choice, allow_tensor=True), []


def _check(op: str, local: Tensors, global_: Tensors, choice: Tensors, segments: Sequence[int]) -> None:
    """Raises if an argument violates the contract in csrc/ops/mix/contract.h."""
    check_float_list(op, "local", local)
    check_list_like(op, "global_", global_, "local", local)
    if not segments:
        check_list_like(op, "choice", choice, "local", local)
        return
    expect(op, len(choice) == 1, f"choice must be one tensor with segments, got {len(choice)}")
    c, dtype = choice[0], local[0].dtype
    wide = torch.promote_types(dtype, torch.float32)
    expect(op, c.dtype in (dtype, wide), f"choice must have the dtype of local, {dtype}, or {wide}, got {c.dtype}")
    check_device(op, "choice", c, "local[0]", local[0])
    expect(op, c.dim() >= 1, f"choice must be [*batch, segments], got shape {list(c.shape)}")
    expect(
        op,
        len(segments) == len(local),
        f"segments must hold {len(local)} numbers, one for each of local, got {len(segments)}",
    )
    for t, (segment, x) in enumerate(zip(segments, local, strict=True)):
        expect(
            op,
            0 <= segment < c.shape[-1],
            f"segments[{t}] must be in [0, {c.shape[-1]}), the segments of choice, got {segment}",
        )
        expect(
            op,
            x.shape[: c.dim() - 1] == c.shape[:-1],
            f"local[{t}] must begin with the batch dimensions of choice {list(c.shape)}, got shape {list(x.shape)}",
        )


@backend.fake("mix")
def _(local: Tensors, global_: Tensors, choice: Tensors, segments: list[int], hard: bool) -> Tensors:
    _check("mix", local, global_, choice, segments)
    return [x.new_empty(x.shape) for x in local]


@backend.fake("mix_backward")
def _(
    grads: Tensors,
    local: Tensors,
    global_: Tensors,
    choice: Tensors,
    segments: list[int],
    hard: bool,
    needs_local: bool,
    needs_global: bool,
    needs_choice: bool,
) -> tuple[Tensors, Tensors, Tensors]:
    _check("mix_backward", local, global_, choice, segments)

    def empty(tensors: Tensors, needed: bool) -> Tensors:
        return [x.new_empty(x.shape) for x in tensors] if needed else []

    return empty(local, needs_local), empty(global_, needs_global), empty(choice, needs_choice)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    local, global_, choice, ctx.segments, ctx.hard = inputs
    ctx.save_for_backward(*local, *global_, *choice)
    ctx.count = len(local)


def _saved_lists(ctx: Any, lists: int) -> list[Tensors]:
    """Returns the saved tensors as ``lists`` lists with one tensor per parameter, followed by the choice."""
    saved, n = list(ctx.saved_tensors), ctx.count
    return [*[saved[i * n : (i + 1) * n] for i in range(lists)], saved[lists * n :]]


def _none_to_zeros(tensors: Sequence[Tensor | None], like: Tensors) -> Tensors:
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tensors, like, strict=True)]


def _no_segment_gradient(segments: Sequence[int]) -> list[None] | None:
    """Returns no gradient in the form torch requires: it takes an empty list of numbers for a list of tensors."""
    return None if segments else []


@backend.backward("mix", setup_context=_setup_context)
def _(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    local, global_, choice = _saved_lists(ctx, 2)
    needs = [any(n) for n in ctx.needs_input_grad[:3]]
    results = torch.ops.pfl_fast.mix_backward(
        _none_to_zeros(grads, local), local, global_, choice, ctx.segments, ctx.hard, *needs
    )
    counts = (len(local), len(local), len(choice))
    gradients = [r if n else [None] * count for r, n, count in zip(results, needs, counts, strict=True)]
    return *gradients, _no_segment_gradient(ctx.segments), None


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grads, local, global_, choice, ctx.segments, ctx.hard, *ctx.needs = inputs
    ctx.save_for_backward(*grads, *local, *global_, *choice)
    ctx.count = len(local)


@backend.backward("mix_backward", setup_context=_setup_backward_context)
def _(
    ctx: Any, v_local: list[Tensor | None], v_global: list[Tensor | None], v_choice: list[Tensor | None]
) -> tuple[Any, ...]:
    """Second derivatives: ``mix`` is bilinear in (1, choice) and (local, global - local), so they are mixes too.

    d/d grads  = mix(v_local, v_global, choice) + v_choice * (global - local)
    d/d local  = -v_choice * grads,  d/d global = v_choice * grads
    d/d choice = <grads, v_global - v_local>
    """
    grads, local, global_, choice = _saved_lists(ctx, 3)
    needs_local, needs_global, needs_choice = ctx.needs
    d_grads, d_local, d_global, d_choice = (
        [torch.zeros_like(x) for x in tensors] for tensors in (grads, local, global_, choice)
    )
    if needs_local or needs_global:
        v_locals = _none_to_zeros(v_local, local) if needs_local else [torch.zeros_like(x) for x in local]
        v_globals = _none_to_zeros(v_global, local) if needs_global else [torch.zeros_like(x) for x in local]
        arguments = (v_locals, v_globals, choice, ctx.segments, ctx.hard)
        d_grads = torch.ops.pfl_fast.mix(*arguments)
        d_choice = torch.ops.pfl_fast.mix_backward(grads, *arguments, False, False, True)[2]
    if needs_choice:
        factors = _broadcast_choice(_none_to_zeros(v_choice, choice), ctx.segments, local)
        d_grads = [d + f * (y - x) for d, f, x, y in zip(d_grads, factors, local, global_, strict=True)]
        d_global = [f * g for f, g in zip(factors, grads, strict=True)]
        d_local = [-d for d in d_global]
    return d_grads, d_local, d_global, d_choice, _no_segment_gradient(ctx.segments), *[None] * 4


def _broadcast_choice(choice: Tensors, segments: Sequence[int], like: Tensors) -> Tensors:
    """Returns the choice of each tensor in a shape that broadcasts to the tensor."""
    if not segments:
        return choice
    batch = choice[0].dim() - 1
    columns = [choice[0].select(-1, segment).to(x.dtype) for segment, x in zip(segments, like, strict=True)]
    return [c.reshape([*c.shape, *[1] * (x.dim() - batch)]) for c, x in zip(columns, like, strict=True)]


backend.vmap_to_leading_dimension("mix")
backend.vmap_to_leading_dimension("mix_backward")
