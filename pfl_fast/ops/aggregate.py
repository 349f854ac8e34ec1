"""Weighted sum over clients of every tensor of a model.

    out_t[m] = sum_n weights[m, n] * stacked_t[n]

Computes the server's average (FedAvg), one model per client (FedAMP and FedFomo, with weights [M, N]) or any other
linear combination of clients. Sums are accumulated in float32 (float64 for float64 tensors) in the order of clients,
so the result does not depend on threads or device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import (
    all_to_front,
    check_device,
    check_dtype,
    check_float,
    check_tensors,
    expect,
    is_readable,
    tensor_list,
    to_front,
)

Dims = list[int | None]


@overload
def aggregate(stacked: Tensor, weights: Tensor, *, out: Tensor | None = None) -> Tensor: ...
@overload
def aggregate(stacked: Sequence[Tensor], weights: Tensor, *, out: Sequence[Tensor] | None = None) -> list[Tensor]: ...
def aggregate(
    stacked: Tensor | Sequence[Tensor], weights: Tensor, *, out: Tensor | Sequence[Tensor] | None = None
) -> Tensor | list[Tensor]:
    """Returns the weighted sum over clients, ``out[m] = sum_n weights[m, n] * stacked[n]``.

    Args:
        stacked: ``[N, *shape]``, row n is client n's tensor; or a list of such tensors, one per parameter of a model,
            all summed in one call. All float64, float32, bfloat16 or float16; any strides.
        weights: ``[N]``, or ``[M, N]`` for M mixtures of the same clients; finite, not normalised. CUDA weights are not
            checked, to avoid a synchronisation.
        out: tensor or list of tensors to write the result to; not differentiable.

    Returns:
        ``[*shape]`` or ``[M, *shape]`` for each tensor of ``stacked``; zeros if N is 0. The dtype is that of
        ``stacked``, under autocast too: averaged parameters keep their precision.

    Differentiable twice with respect to ``stacked`` and ``weights``.

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
    stacked: Tensor | Sequence[Tensor], weights: Tensor, *, out: Tensor | Sequence[Tensor] | None = None
) -> tuple[Tensor | list[Tensor], Tensor]:
    """Returns :func:`aggregate` and, from the same pass over memory, each client's number ``[N]`` of non-finite values.

    >>> clients = torch.tensor([[1.0, 2.0], [float("nan"), 6.0]])
    >>> aggregate_checked(clients, torch.tensor([0.5, 0.5]))[1]   # client 1 has one NaN
    tensor([0, 1])
    """
    return _aggregate(stacked, weights, out, True)


def _aggregate(
    stacked: Tensor | Sequence[Tensor], weights: Tensor, out: Tensor | Sequence[Tensor] | None, count: bool
) -> tuple[Tensor | list[Tensor], Tensor]:
    single = isinstance(stacked, Tensor)
    tensors = tensor_list("aggregate", "stacked", stacked, allow_tensor=True)
    check_tensors("aggregate", weights=weights)
    outs = None if out is None else tensor_list("aggregate", "out", out, allow_tensor=True)
    if backend.runs_native("aggregate", [*tensors, weights][0]):
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
    _check(stacked, weights, values=True)
    results = reference.aggregate(stacked, weights)
    if outs is not None:
        _check_out("out", outs, stacked, weights)
        for o, r in zip(outs, results, strict=True):
            o.copy_(r)
        results = outs
    counts = reference.count_nonfinite(stacked, weights.shape[-1]) if count else _new_counts(weights, False)
    return results, counts


def _new_counts(weights: Tensor, count: bool) -> Tensor:
    return weights.new_empty(weights.shape[-1] if count else 0, dtype=torch.int64)


def describe(tensor: Tensor) -> str:
    """Returns dtype, shape and device for an error message."""
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _check(stacked: Sequence[Tensor], weights: Tensor, values: bool, op: str = "aggregate") -> None:
    """Raises if an argument violates csrc/ops/aggregate/contract.h; ``values`` checks that weights are finite."""
    check_float(op, "weights", weights)
    expect(op, 1 <= weights.dim() <= 3, f"weights must be [clients] or [mixtures, clients], got {list(weights.shape)}")
    if values and is_readable(weights):
        expect(op, bool(weights.isfinite().all()), f"weights must be finite, got {weights.tolist()}")
    clients = weights.shape[-1]
    for t, x in enumerate(stacked):
        check_float(op, f"stacked[{t}]", x)
        check_dtype(op, f"stacked[{t}]", x, "stacked[0]", stacked[0])
        check_device(op, f"stacked[{t}]", x, "weights", weights)
        expect(
            op,
            x.dim() >= 1 and x.shape[0] == clients,
            f"stacked[{t}] must have {clients} rows, one per client as in weights, got shape {list(x.shape)}",
        )


def _out_shape(x: Tensor, weights: Tensor) -> list[Any]:
    return [*weights.shape[-2:-1], *x.shape[1:]]


def _check_out(name: str, out: Sequence[Tensor], stacked: Sequence[Tensor], weights: Tensor) -> None:
    expect(
        "aggregate",
        len(out) == len(stacked),
        f"{name} must hold {len(stacked)} tensors, one per stacked tensor, got {len(out)}",
    )
    for t, (o, x) in enumerate(zip(out, stacked, strict=True)):
        shape = _out_shape(x, weights)
        expect(
            "aggregate",
            list(o.shape) == shape and o.dtype == x.dtype and o.device == x.device,
            f"{name}[{t}] must be {x.dtype} {shape} on {x.device}, got {describe(o)}",
        )


@backend.fake("aggregate")
def _(stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> tuple[list[Tensor], Tensor]:
    _check(stacked, weights, values=False)
    return [x.new_empty(_out_shape(x, weights)) for x in stacked], _new_counts(weights, count_nonfinite)


@backend.fake("aggregate_into")
def _(out: list[Tensor], stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Tensor:
    _check(stacked, weights, values=False)
    _check_out("out", out, stacked, weights)
    return _new_counts(weights, count_nonfinite)


@backend.fake("aggregate_backward")
def _(
    grads: list[Tensor], stacked: list[Tensor], weights: Tensor, needs_stacked: bool, needs_weights: bool
) -> tuple[list[Tensor], Tensor]:
    _check(stacked, weights, values=False, op="aggregate_backward")
    _check_out("grads", grads, stacked, weights)
    grad_stacked = [x.new_empty(x.shape) for x in stacked] if needs_stacked else []
    return grad_stacked, weights.new_empty(weights.shape if needs_weights else [0])


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], Tensor, bool], output: Any) -> None:
    stacked, weights, _ = inputs
    ctx.save_for_backward(weights, *stacked)
    ctx.mark_non_differentiable(output[1])


@backend.backward("aggregate", setup_context=_setup_context)
def _(ctx: Any, grads: list[Tensor | None], _: Tensor | None) -> tuple[Any, Tensor | None, None]:
    weights, *stacked = ctx.saved_tensors
    needs_stacked, needs_weights = any(ctx.needs_input_grad[0]), ctx.needs_input_grad[1]
    filled = [x.new_zeros(_out_shape(x, weights)) if g is None else g for g, x in zip(grads, stacked, strict=True)]
    grad_stacked, grad_weights = torch.ops.pfl_fast.aggregate_backward(
        filled, stacked, weights, needs_stacked, needs_weights
    )
    return grad_stacked if needs_stacked else [None] * len(stacked), grad_weights if needs_weights else None, None


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grads, stacked, weights, ctx.needs_stacked, ctx.needs_weights = inputs
    ctx.save_for_backward(weights, *grads, *stacked)


@backend.backward("aggregate_backward", setup_context=_setup_backward_context)
def _(ctx: Any, v_stacked: list[Tensor | None], v_weights: Tensor | None) -> tuple[Any, Any, Any, None, None]:
    """Second derivatives: ``aggregate`` is bilinear, so they are aggregates too.

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


def vmap_aggregate(
    size: int, dims: Dims, stacked: list[Tensor], weights_dim: int | None, weights: Tensor, count: bool
) -> tuple[tuple[list[Tensor], Tensor], tuple[Dims, int | None]]:
    """Runs a batched ``aggregate`` as one call with wider rows, more mixtures, or groups of both."""
    if weights_dim is None and not count:
        rows = [x if d is None else _batch_after_clients(x, d) for x, d in zip(stacked, dims, strict=True)]
        out_dim = min(weights.dim(), 2) - 1
        out_dims: Dims = [None if d is None else out_dim for d in dims]
        return torch.ops.pfl_fast.aggregate(rows, weights, False), (out_dims, None)
    if weights_dim is not None and weights.dim() <= 3 and all(d is None for d in dims):
        w = weights.movedim(weights_dim, 0)
        results, counts = torch.ops.pfl_fast.aggregate(stacked, w.reshape(-1, w.shape[-1]), count)
        results = [r.reshape(*w.shape[:-1], *r.shape[1:]) for r in results]
        return (results, counts), ([0] * len(results), None)
    results, counts = torch.ops.pfl_fast.aggregate(
        _unbind(stacked, dims, size), _as_groups(weights, weights_dim, size), count
    )
    weights_rank = weights.dim() - (weights_dim is not None)
    results = results if weights_rank > 1 else [r.squeeze(0) for r in results]
    counts = counts.reshape(size, -1) if weights_rank < 3 else counts.reshape(size, -1, weights.shape[-1])
    return (_stack_entries(results, len(stacked)), counts), ([0] * len(stacked), 0)


def _batch_after_clients(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, 0).movedim(1, 0)


def _unbind(tensors: list[Tensor], dims: Dims, size: int) -> list[Tensor]:
    """Returns all tensors of the first batch entry, then all of the second, in the order of weights [G, M, N]."""
    batched = all_to_front(tensors, dims, size)
    return [x[b] for b in range(size) for x in batched]


def _stack_entries(flat: list[Tensor], count: int) -> list[Tensor]:
    """Inverse of :func:`_unbind` for ``count`` tensors per batch entry, with the batch dimension in front."""
    return [torch.stack(flat[t::count]) for t in range(count)]


def _as_groups(weights: Tensor, dim: int | None, size: int) -> Tensor:
    """Returns weights [N], [M, N] or (nested vmap) [G, M, N] of all batch entries as [size * G, M, N]."""
    batched = to_front(weights, dim, size)
    while batched.dim() < 4:
        batched = batched.unsqueeze(1)
    return batched.flatten(0, 1)


@backend.vmap("aggregate")
def _(info: Any, in_dims: Any, stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Any:
    return vmap_aggregate(info.batch_size, in_dims[0], stacked, in_dims[1], weights, count_nonfinite)


@backend.vmap("aggregate_into")
def _(info: Any, in_dims: Any, out: list[Tensor], stacked: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Any:
    (results, counts), (dims, counts_dim) = vmap_aggregate(
        info.batch_size, in_dims[1], stacked, in_dims[2], weights, count_nonfinite
    )
    for t, (o, o_dim, r, r_dim) in enumerate(zip(out, in_dims[0], results, dims, strict=True)):
        if o_dim is None and r_dim is not None:
            raise RuntimeError(f"pfl_fast::aggregate: out[{t}] must be batched by vmap, as its inputs are")
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
    weights_rank = weights.dim() - (in_dims[2] is not None)
    flat_grads = _unbind(grads, in_dims[0], size)
    grad_stacked, grad_weights = torch.ops.pfl_fast.aggregate_backward(
        flat_grads if weights_rank > 1 else [g.unsqueeze(0) for g in flat_grads],
        _unbind(stacked, in_dims[1], size),
        _as_groups(weights, in_dims[2], size),
        needs_stacked,
        needs_weights,
    )
    if needs_weights:
        grad_weights = grad_weights.reshape(to_front(weights, in_dims[2], size).shape)
    return (
        (_stack_entries(grad_stacked, count) if needs_stacked else [], grad_weights),
        ([0] * count if needs_stacked else [], 0 if needs_weights else None),
    )
