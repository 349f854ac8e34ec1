"""Weighted sum of state dicts: the drop-in for servers that hold one state dict per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend
from pfl_fast.ops.aggregate import aggregate, batch_aggregate, describe


def aggregate_state_dicts(
    state_dicts: Sequence[Mapping[str, Tensor]], weights: Tensor | Sequence[float]
) -> dict[str, Tensor]:
    """Weighted sum of state dicts, as other trainers keep them: ``out[k] = sum_n weights[n] * dicts[n][k]``.

    Clients' tensors are read where they are, each once, without stacking or copying them.

    Args:
        state_dicts: one per client, with the same keys, shapes and dtypes. The order of keys is that of the first.
        weights: ``[N]``, used as they are; divide sample counts by their sum for an average.

    Returns:
        A new state dict. Floating tensors are summed. Integer and boolean tensors, such as BatchNorm's
        ``num_batches_tracked``, are copied from the first client: a weighted sum of counters has no meaning.

    >>> a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> mean = aggregate_state_dicts([a.state_dict(), b.state_dict()], [0.5, 0.5])
    >>> torch.allclose(mean["bias"], (a.bias + b.bias) / 2)
    True
    """
    dicts = list(state_dicts)
    _check_state_dicts(dicts)
    result = {name: tensor.clone() for name, tensor in dicts[0].items() if not tensor.is_floating_point()}
    for names in _names_by_kind(dicts[0]).values():
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
    if backend.uses_native() and not tracked:
        flat = [x for row in rows for x in row]
        return cast(list[Tensor], torch.ops.pfl_fast.aggregate_rows(flat, weights, False)[0])
    return aggregate([torch.stack(row) for row in rows], weights)


def _names_by_kind(state_dict: Mapping[str, Tensor]) -> dict[tuple[torch.dtype, torch.device], list[str]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in state_dict.items():
        if tensor.is_floating_point():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(name)
    return kinds


def _check_state_dicts(dicts: list[Mapping[str, Tensor]]) -> None:
    if not dicts:
        raise ValueError("aggregate_state_dicts: state_dicts must hold at least one state dict, got none")
    for n, state_dict in enumerate(dicts):
        if state_dict.keys() != dicts[0].keys():
            odd = sorted(state_dict.keys() ^ dicts[0].keys())
            raise ValueError(
                f"aggregate_state_dicts: state_dicts[{n}] must have the keys of state_dicts[0], differs in {odd}"
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
    batched = [
        x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in zip(rows, in_dims[0], strict=True)
    ]
    stacked = [torch.stack(batched[i : i + clients]) for i in range(0, len(rows), clients)]
    return batch_aggregate(size, [1] * len(stacked), stacked, in_dims[1], weights, count_nonfinite)
