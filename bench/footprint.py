"""Peak memory and number of kernels of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch._C._profiler import _EventType, _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

# Operators that only view or allocate memory; every other operator that calls no further operator is a kernel.
NO_KERNEL_NAMES = """
    alias as_strided broadcast_tensors chunk contiguous detach diagonal empty empty_like empty_strided expand expand_as
    flatten is_nonzero item lift_fresh movedim narrow new_empty numpy_T ones_like permute reshape resolve_conj
    resolve_neg result_type select set_ slice split squeeze t to transpose unbind unsafe_split unsqueeze view view_as
    zeros_like _local_scalar_dense _reshape_alias _unsafe_view
"""
NO_KERNEL = frozenset(NO_KERNEL_NAMES.split())


def footprint(function: Callable[[], object]) -> tuple[int, int]:
    """Returns peak bytes allocated by one call, and its number of kernels, in all threads."""
    threads = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, experimental_config=threads) as profiled:
        result = function()  # kept alive while profiling: its memory belongs to the call
    events = sorted(walk(profiled.profiler.kineto_results.experimental_event_tree()), key=lambda e: e.start_time_ns)
    allocated = peak = 0
    for event in events:
        if event.tag == _EventType.Allocation:
            allocated += event.extra_fields.alloc_size
            peak = max(peak, allocated)
    del result
    return peak, sum(is_kernel(event) for event in events)


def walk(events: list[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from walk(event.children)


def is_kernel(event: Any) -> bool:
    """Returns True for native operators and for torch operators that call no other operator."""
    if event.tag != _EventType.TorchOp:
        return False
    library, _, name = event.name.partition("::")
    if library == "pfl_fast":
        return True
    inner = any(e.tag == _EventType.TorchOp and "::" in e.name for e in event.children)
    return library == "aten" and not inner and name not in NO_KERNEL
