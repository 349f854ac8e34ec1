"""Tensors of BatchNorm layers, found by the type of the module rather than its name."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm


def batch_norm_tensors(module: nn.Module) -> dict[str, str]:
    """Returns a dictionary from full name to short name of all parameters and buffers of BatchNorm layers.

    Short names are ``"weight"``, ``"bias"``, ``"running_mean"``, ``"running_var"`` and ``"num_batches_tracked"``.
    InstanceNorm layers with running statistics, which describe the client's data too, are included.

    >>> batch_norm_tensors(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))
    {'1.running_mean': 'running_mean', '1.running_var': 'running_var', '1.num_batches_tracked': 'num_batches_tracked'}
    """
    found = {}
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            names = [name for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]]
            found.update({f"{path}.{name}" if path else name: name for name in names})
    return found
