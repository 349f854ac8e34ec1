"""Weighted sum of state dicts, for servers that hold one state dict per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend
from pfl_fast.ops.aggregate import aggregate, describe, vmap_aggregate
from pfl_fast.ops.support import all_to_front


def aggregate_state_dicts(
    state_dicts: Sequence[Mapping[str, Tensor]], weights: Tensor | Sequence[float]
) -> dict[str, Tensor]:
    """Returns the weighted sum of state dicts, ``out[k] = sum_n weights[n] * state_dicts[n][k]``.

    Tensors are read in place, each once, without stacking or copying.

    Args:
        state_dicts: one per client, with the same keys, shapes and dtypes. The result has the key order of the first.
        weights: ``[N]``, not normalised; divide sample counts by their sum for an average.

    Returns:
        A new state dict. Floating-point tensors are summed. Integer and boolean tensors, such as BatchNorm's
        ``num_batches_tracked``, are copied from the first client: a weighted sum of counters has no meaning.

    >>> a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> mean = aggregate_state_dicts([a.state_dict(), b.state_dict()], [0.5, 0.5])
    >>> torch.allclose(mean["bias"], (a.bias + b.bias) / 2)
    True
    """
    dicts = list(state_dicts)
    _check_state_dicts(dicts)
    result = {name: tensor.clone() for name, tensor in dicts[0].items() if not tensor.is_floating_point()}
    for names in _group_names(dicts[0]).values():
        first = dicts[0][names[0]]
        w = torch.as_tensor(weights, dtype=torch.promote_types(first.dtype, torch.float32), device=first.device)
        if w.shape != (len(dicts),):
            raise ValueError(
                f"aggregate_state_dicts: weights must have {len(dicts)} entries, one per state dict, "
                f"got shape {list(w.shape)}"
            )
        result.update(zip(names, _aggregate_rows([[d[name] for d in dicts] for name in names], w), strict=True))
    return {name: result[name] for name in dicts[0]}


def _aggregate_rows(rows: list[list[Tensor]], weights: Tensor) -> list[Tensor]:
    tracked = torch.is_grad_enabled() and any(x.requires_grad for row in rows for x in row)
    if not tracked and backend.runs_native("aggregate_rows", weights):
        flat = [x for row in rows for x in row]
        return cast(list[Tensor], torch.ops.pfl_fast.aggregate_rows(flat, weights, False)[0])
    return aggregate([torch.stack(row) for row in rows], weights)


def _group_names(state_dict: Mapping[str, Tensor]) -> dict[tuple[torch.dtype, torch.device], list[str]]:
    """Groups the names of floating-point tensors by dtype and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in state_dict.items():
        if tensor.is_floating_point():
            groups.setdefault((tensor.dtype, tensor.device), []).append(name)
    return groups


def _check_state_dicts(dicts: list[Mapping[str, Tensor]]) -> None:
    if not dicts:
        raise ValueError("aggregate_state_dicts: state_dicts must hold at least one state dict, got none")
    for n, state_dict in enumerate(dicts):
        if state_dict.keys() != dicts[0].keys():
            differing = sorted(state_dict.keys() ^ dicts[0].keys())
            raise ValueError(
                f"aggregate_state_dicts: state_dicts[{n}] must have the keys of state_dicts[0], differs in {differing}"
            )
        for name, tensor in state_dict.items():
            expected = dicts[0][name]
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"aggregate_state_dicts: state_dicts[{n}][{name!r}] must be a tensor, got {type(tensor).__name__}"
                )
            if tensor.shape != expected.shape or tensor.dtype != expected.dtype or tensor.device != expected.device:
                raise ValueError(
                    f"aggregate_state_dicts: state_dicts[{n}][{name!r}] must be like state_dicts[0][{name!r}], "
                    f"{describe(expected)}, got {describe(tensor)}"
                )


@backend.fake("aggregate_rows")
def _(rows: list[Tensor], weights: Tensor, count_nonfinite: bool) -> tuple[list[Tensor], Tensor]:
    clients = weights.shape[-1]
    counts = weights.new_empty(clients if count_nonfinite else 0, dtype=torch.int64)
    return [x.new_empty([*weights.shape[:-1], *x.shape]) for x in rows[::clients]], counts


@backend.vmap("aggregate_rows")
def _(info: Any, in_dims: Any, rows: list[Tensor], weights: Tensor, count_nonfinite: bool) -> Any:
    size, clients = info.batch_size, weights.shape[-1] if in_dims[1] != weights.dim() - 1 else weights.shape[-2]
    batched = all_to_front(rows, in_dims[0], size)
    stacked = [torch.stack(batched[i : i + clients]) for i in range(0, len(rows), clients)]
    return vmap_aggregate(size, [1] * len(stacked), stacked, in_dims[1], weights, count_nonfinite)
