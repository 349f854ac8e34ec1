"""Weighted sum over clients of every tensor of a model.

    out_t[m] = sum_n weights[m, n] * stacked_t[n]

The server's average (FedAvg), one model per client (FedAMP and FedFomo with weights [M, N]), any linear mixture of
clients. Sums are kept in float32 (float64 for float64 tensors) and added in the order of the clients, so that threads
and devices do not change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


@overload
def aggregate(stacked: Tensor, weights: Tensor, *, out: Tensor | None = None) -> Tensor: ...
@overload
def aggregate(stacked: Sequence[Tensor], weights: Tensor, *, out: Sequence[Tensor] | None = None) -> list[Tensor]: ...
def aggregate(
    stacked: Tensor | Sequence[Tensor],
    weights: Tensor,
    *,
    out: Tensor | Sequence[Tensor] | None = None,
) -> Tensor | list[Tensor]:
    """Weighted sum over clients: ``out[m] = sum_n weights[m, n] * stacked[n]``.

    Args:
        stacked: ``[N, *shape]``, row n is client n's tensor; or a list of such tensors, one per parameter of a model,
            which are then summed in one call. float64, float32, bfloat16 or float16, all the same; any strides.
        weights: ``[N]``, or ``[M, N]`` for M different mixtures of the same clients; used as they are, not normalised.
            They must be finite; weights on a GPU are not looked at, as that would stall it.
        out: written to instead of new tensors; not differentiable.

    Returns:
        ``[*shape]`` or ``[M, *shape]`` for each tensor of ``stacked``. Zeros when N is 0. The dtype is that of
        ``stacked``, also under autocast: averaging parameters must not lose digits because a forward pass may.

    Gradients reach ``stacked`` and ``weights``, also twice.

    >>> clients = torch.tensor([[1.0, 2.0], [3.0, 6.0]])          # two clients, two parameters
    >>> aggregate(clients, torch.tensor([0.25, 0.75]))            # one average
    tensor([2.5000, 5.0000])
    >>> aggregate(clients, torch.eye(2))                          # one mixture per client
    tensor([[1., 2.],
            [3., 6.]])
    """
    return _aggregate(stacked, weights, out, False)[0]


@overload
def aggregate_checked(stacked: Tensor, weights: Tensor, *, out: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
@overload
def aggregate_checked(
    stacked: Sequence[Tensor], weights: Tensor, *, out: Sequence[Tensor] | None = None
) -> tuple[list[Tensor], Tensor]: ...
def aggregate_checked(
    stacked: Tensor | Sequence[Tensor],
    weights: Tensor,
    *,
    out: Tensor | Sequence[Tensor] | None = None,
) -> tuple[Tensor | list[Tensor], Tensor]:
    """:func:`aggregate`, and from the same pass over memory a count ``[N]`` of each client's NaN and infinite values.

    >>> clients = torch.tensor([[1.0, 2.0], [float("nan"), 6.0]])
    >>> aggregate_checked(clients, torch.tensor([0.5, 0.5]))[1]   # client 1 has one bad value
    tensor([0, 1])
    """
    return _aggregate(stacked, weights, out, True)


def _aggregate(
    stacked: Tensor | Sequence[Tensor], weights: Tensor, out: Tensor | Sequence[Tensor] | None, count: bool
) -> tuple[Tensor | list[Tensor], Tensor]:
    single = isinstance(stacked, Tensor)
    tensors = _tensors("stacked", stacked)
    _expect_tensor("weights", weights)
    outs = None if out is None else _tensors("out", out)
    if backend.uses_native():
        if outs is None:
            results, nonfinite = torch.ops.pfl_fast.aggregate(tensors, weights, count)
        else:
            results, nonfinite = outs, torch.ops.pfl_fast.aggregate_into(outs, tensors, weights, count)
    else:
        results, nonfinite = _aggregate_reference(tensors, weights, outs, count)
    return (results[0] if single else results), nonfinite


def _aggregate_reference(
    stacked: list[Tensor], weights: Tensor, outs: list[Tensor] | None, count: bool
) -> tuple[list[Tensor], Tensor]:
    check_aggregate(stacked, weights, values=True)
    results = reference.aggregate(stacked, weights)
    if outs is not None:
        _check_out("out", outs, stacked, weights)
        for o, r in zip(outs, results, strict=True):
            o.copy_(r)
        results = outs
    clients = weights.shape[-1]
    return results, reference.count_nonfinite(stacked, clients) if count else _no_counts(weights)


def describe(tensor: Tensor) -> str:
    """dtype, shape and device, for error messages."""
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _tensors(name: str, value: Tensor | Sequence[Tensor]) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"pfl_fast::aggregate: {name} must be a tensor or a list of tensors, got {type(value).__name__}"
        )
    for i, item in enumerate(value):
        _expect_tensor(f"{name}[{i}]", item)
    return list(value)


def _expect_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"pfl_fast::aggregate: {name} must be a tensor, got {type(value).__name__}")


def _no_counts(weights: Tensor) -> Tensor:
    return weights.new_empty(0, dtype=torch.int64)


def check_aggregate(stacked: Sequence[Tensor], weights: Tensor, values: bool, op: str = "aggregate") -> None:
    """The contract in csrc/aggregate.h, for the paths that do not reach it: the reference and shape-only tensors."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise RuntimeError(f"pfl_fast::{op}: {what}")

    floats = "float64, float32, bfloat16 or float16"
    expect(weights.dtype in backend.FLOATS, f"weights must be {floats}, got {weights.dtype}")
    expect(1 <= weights.dim() <= 3, f"weights must be [clients] or [mixtures, clients], got {list(weights.shape)}")
    if values and backend.has_values(weights):
        expect(bool(weights.isfinite().all()), f"weights must be finite, got {weights.tolist()}")
    for t, x in enumerate(stacked):
        expect(x.dtype in backend.FLOATS, f"stacked[{t}] must be {floats}, got {x.dtype}")
        expect(
            x.dtype == stacked[0].dtype,
            f"stacked[{t}] must have the dtype of stacked[0], {stacked[0].dtype}, got {x.dtype}",
        )
        expect(
            x.device == weights.device,
            f"stacked[{t}] must be on the device of weights, {weights.device}, got {x.device}",
        )
        expect(
            x.dim() >= 1 and x.shape[0] == weights.shape[-1],
            f"stacked[{t}] must have {weights.shape[-1]} rows, one per client as in weights, got shape {list(x.shape)}",
        )


def _out_shape(x: Tensor, weights: Tensor) -> list[Any]:
    return [*weights.shape[-2:-1], *x.shape[1:]]


def _check_out(name: str, out: Sequence[Tensor], stacked: Sequence[Tensor], weights: Tensor) -> None:
    if len(out) != len(stacked):
        raise RuntimeError(
            f"pfl_fast::aggregate: {name} must hold {len(stacked)} tensors, one per stacked tensor, got {len(out)}"
        )
    for t, (o, x) in enumerate(zip(out, stacked, strict=True)):
        if list(o.shape) != _out_shape(x, weights) or o.dtype != x.dtype or o.device != x.device:
            raise RuntimeError(
                f"pfl_fast::aggregate: {name}[{t}] must be {x.dtype} {_out_shape(x, weights)} on {x.device}, "
                f"got {describe(o)}"
            )


@backend.fake("aggregate")
def _(stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> tuple[list[Tensor], Tensor]:
    check_aggregate(stacked, weights, values=False)
    counts = weights.new_empty(weights.shape[-1] if count_nonfinite else 0, dtype=torch.int64)
    return [x.new_empty(_out_shape(x, weights)) for x in stacked], counts


@backend.fake("aggregate_into")
def _(out: list[Tensor], stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Tensor:
    check_aggregate(stacked, weights, values=False)
    _check_out("out", out, stacked, weights)
    return weights.new_empty(weights.shape[-1] if count_nonfinite else 0, dtype=torch.int64)


@backend.fake("aggregate_backward")
def _(
    grads: list[Tensor], stacked: list[Tensor], weights: Tensor, needs_stacked: bool, needs_weights: bool
) -> tuple[list[Tensor], Tensor]:
    check_aggregate(stacked, weights, values=False, op="aggregate_backward")
    _check_out("grads", grads, stacked, weights)
    grad_stacked = [x.new_empty(x.shape) for x in stacked] if needs_stacked else []
    return grad_stacked, weights.new_empty(weights.shape if needs_weights else [0])


def _save_inputs(ctx: Any, inputs: tuple[list[Tensor], Tensor, bool], output: Any) -> None:
    stacked, weights, _ = inputs
    ctx.save_for_backward(weights, *stacked)
    ctx.mark_non_differentiable(output[1])


@backend.gradient("aggregate", setup_context=_save_inputs)
def _(ctx: Any, grads: list[Tensor | None], _: Tensor | None) -> tuple[Any, Tensor | None, None]:
    weights, *stacked = ctx.saved_tensors
    needs_stacked, needs_weights = any(ctx.needs_input_grad[0]), ctx.needs_input_grad[1]
    filled = [x.new_zeros(_out_shape(x, weights)) if g is None else g for g, x in zip(grads, stacked, strict=True)]
    grad_stacked, grad_weights = torch.ops.pfl_fast.aggregate_backward(
        filled, stacked, weights, needs_stacked, needs_weights
    )
    return grad_stacked if needs_stacked else [None] * len(stacked), grad_weights if needs_weights else None, None


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 called by name
    grads, stacked, weights, ctx.needs_stacked, ctx.needs_weights = inputs
    ctx.save_for_backward(weights, *grads, *stacked)


@backend.gradient("aggregate_backward", setup_context=_save_backward_inputs)
def _(ctx: Any, v_stacked: list[Tensor | None], v_weights: Tensor | None) -> tuple[Any, Any, Any, None, None]:
    """The operator is bilinear, so its second derivatives are aggregates again, with the cotangents in one place.

    d/d grads_t[m]   = sum_n weights[m, n] v_stacked_t[n] + sum_n v_weights[m, n] stacked_t[n]
    d/d stacked_t[n] = sum_m v_weights[m, n] grads_t[m]
    d/d weights[m,n] = sum_t <grads_t[m], v_stacked_t[n]>
    """
    weights, *saved = ctx.saved_tensors
    grads, stacked = saved[: len(saved) // 2], saved[len(saved) // 2 :]
    d_grads = [torch.zeros_like(g) for g in grads]
    d_stacked = [torch.zeros_like(x) for x in stacked]
    d_weights = torch.zeros_like(weights)
    if ctx.needs_stacked:
        v = [torch.zeros_like(x) if v is None else v for v, x in zip(v_stacked, stacked, strict=True)]
        parts, _ = torch.ops.pfl_fast.aggregate(v, weights, False)
        d_grads = [a + b for a, b in zip(d_grads, parts, strict=True)]
        _, d_weights = torch.ops.pfl_fast.aggregate_backward(grads, v, weights, False, True)
    if ctx.needs_weights and v_weights is not None:
        parts, _ = torch.ops.pfl_fast.aggregate(stacked, v_weights, False)
        d_grads = [a + b for a, b in zip(d_grads, parts, strict=True)]
        d_stacked, _ = torch.ops.pfl_fast.aggregate_backward(grads, stacked, v_weights, True, False)
    return d_grads, d_stacked, d_weights, None, None


Dims = list[int | None]


def batch_aggregate(
    size: int, dims: Dims, stacked: list[Tensor], weights_dim: int | None, weights: Tensor, count: bool
) -> tuple[tuple[list[Tensor], Tensor], tuple[Dims, int | None]]:
    """``aggregate`` over a batch in one call: wider rows, more mixtures, or both together as groups."""
    if weights_dim is None and not count:
        rows = [x if d is None else _batch_after_clients(x, d) for x, d in zip(stacked, dims, strict=True)]
        place = min(weights.dim(), 2) - 1
        return torch.ops.pfl_fast.aggregate(rows, weights, False), ([None if d is None else place for d in dims], None)
    if weights_dim is not None and weights.dim() <= 3 and all(d is None for d in dims):
        w = weights.movedim(weights_dim, 0)
        results, counts = torch.ops.pfl_fast.aggregate(stacked, w.reshape(-1, w.shape[-1]), count)
        shaped = [r.reshape(*w.shape[:-1], *r.shape[1:]) for r in results]
        return (shaped, counts), ([0] * len(shaped), None)
    results, counts = torch.ops.pfl_fast.aggregate(
        _unbind(stacked, dims, size), _as_groups(weights, weights_dim, size), count
    )
    unbatched = weights.dim() - (weights_dim is not None)
    results = results if unbatched > 1 else [r.squeeze(0) for r in results]
    counts = counts.reshape(size, -1) if unbatched < 3 else counts.reshape(size, -1, weights.shape[-1])
    return (_rebind(results, len(stacked)), counts), ([0] * len(stacked), 0)


def _batch_after_clients(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, 0).movedim(1, 0)


def _to_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _unbind(tensors: list[Tensor], dims: Dims, size: int) -> list[Tensor]:
    """All tensors of the first batch entry, then all of the second, as weights [G, M, N] expect them."""
    batched = [_to_front(x, d, size) for x, d in zip(tensors, dims, strict=True)]
    return [x[b] for b in range(size) for x in batched]


def _rebind(flat: list[Tensor], count: int) -> list[Tensor]:
    return [torch.stack(flat[t::count]) for t in range(count)]


def _as_groups(weights: Tensor, dim: int | None, size: int) -> Tensor:
    """Weights [N], [M, N] or, under nested batching, [G, M, N] of every batch entry as [size * G, M, N]."""
    batched = _to_front(weights, dim, size)
    while batched.dim() < 4:
        batched = batched.unsqueeze(1)
    return batched.flatten(0, 1)


@backend.vmap("aggregate")
def _(info: Any, in_dims: Any, stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Any:
    return batch_aggregate(info.batch_size, in_dims[0], stacked, in_dims[1], weights, count_nonfinite)


@backend.vmap("aggregate_into")
def _(info: Any, in_dims: Any, out: list[Tensor], stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Any:
    (results, counts), (dims, counts_dim) = batch_aggregate(
        info.batch_size, in_dims[1], stacked, in_dims[2], weights, count_nonfinite
    )
    for t, (o, o_dim, r, r_dim) in enumerate(zip(out, in_dims[0], results, dims, strict=True)):
        if o_dim is None and r_dim is not None:
            raise RuntimeError(f"pfl_fast::aggregate: out[{t}] must be batched by vmap as its inputs are")
        target = o if o_dim is None else o.movedim(o_dim, 0)
        target.copy_(r if r_dim is None else r.movedim(r_dim, 0))
    return counts, counts_dim


@backend.vmap("aggregate_backward")
def _(
    info: Any,
    in_dims: Any,
    grads: list[Tensor],
    stacked: list[Tensor],
    weights: Tensor,
    needs_stacked: bool,
    needs_weights: bool,
) -> Any:
    size, count = info.batch_size, len(stacked)
    unbatched = weights.dim() - (in_dims[2] is not None)
    flat_grads = _unbind(grads, in_dims[0], size)
    grad_stacked, grad_weights = torch.ops.pfl_fast.aggregate_backward(
        flat_grads if unbatched > 1 else [g.unsqueeze(0) for g in flat_grads],
        _unbind(stacked, in_dims[1], size),
        _as_groups(weights, in_dims[2], size),
        needs_stacked,
        needs_weights,
    )
    if needs_weights:
        grad_weights = grad_weights.reshape(_to_front(weights, in_dims[2], size).shape)
    return (
        (_rebind(grad_stacked, count) if needs_stacked else [], grad_weights),
        ([0] * count if needs_stacked else [], 0 if needs_weights else None),
    )
