"""CUDA devices that do not exist, for tests of device handling on machines without a GPU.

A :class:`FakeTensor` reports ``cuda:i`` and holds its values in a CPU tensor. To C++ it is a meta tensor with index i:
autograd would ask a real CUDA device for its streams. CPU kernels compute all values, so a run must equal the run on
the CPU to the bit. Inside :class:`FakeCuda`, every operator call is checked; :class:`Record` lists the calls that mix
devices, the copies between devices and the synchronisations of the host with a device, each with the lines of pfl_fast
that caused it.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pfl_fast.engine.executors import Executor
from pfl_fast.ops import backend, dispatch

READ_VALUE = {"_local_scalar_dense", "equal", "is_nonzero", "allclose"}  # the host waits for a value
# The host waits for the size of the result.
READ_SIZE = {"nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim", "bincount"}
META = torch.device("meta")
MEMORY = 40 << 30  # of a fake GPU, in bytes
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class Record:
    """What happened on the fake devices: counts by operator and by lines of pfl_fast.

    Attributes:
        mixed: calls with tensors of several devices that real CUDA refuses.
        copies: copies between devices, by direction: ``"to device"``, ``"to host"`` or ``"between devices"``.
        copied_bytes: bytes of the copies.
        synchronisations: calls that make the host wait for a device.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self.clear()

    def clear(self):
        """Forgets everything."""
        self.mixed, self.copies, self.copied_bytes, self.synchronisations = (Counter() for _ in range(4))

    def add(self, counter, what, amount=1):
        """Counts ``what`` at the current lines of pfl_fast."""
        with self._lock:
            counter[what, lines()] += amount

    def copy(self, direction, tensor):
        """Counts a copy between devices."""
        self.add(self.copies, direction)
        self.add(self.copied_bytes, direction, tensor.nbytes)


def lines(most=3):
    """Innermost lines of pfl_fast on the stack, as ``file:line < file:line``."""
    found, frame = [], sys._getframe(1)
    while frame is not None and len(found) < most:
        _, separator, file = frame.f_code.co_filename.rpartition("/pfl_fast/")
        if separator:
            found.append(f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


RECORD = Record()


def as_meta(device):
    """The meta device that stands for a CUDA device in C++; other devices as they are."""
    if device is None or isinstance(device, torch.dtype | bool | torch.memory_format | torch.Tensor):
        return device
    device = torch.device(device)
    return torch.device("meta", device.index or 0) if device.type == "cuda" else device


class FakeTensor(torch.Tensor):
    """Tensor that reports ``cuda:index``; ``values`` is a CPU tensor."""

    @staticmethod
    def __new__(cls, values, index):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device("meta", index),
        )

    def __init__(self, values, index):
        self.values, self.index = values, index

    def __repr__(self):
        return f"FakeTensor({self.values}, cuda:{self.index})"

    @property
    def device(self):
        return torch.device("cuda", self.index)

    @property
    def is_cuda(self):
        return True

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        self.values, self.index = other.values, other.index

    def to(self, *args, **kwargs):
        return super().to(*map(as_meta, args), **{name: as_meta(value) for name, value in kwargs.items()})

    def cpu(self):
        return self.to("cpu")

    def tolist(self):
        return self.to("cpu").tolist()

    def numpy(self, **_kwargs):
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    __array__ = numpy

    def data_ptr(self):
        return self.values.data_ptr()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})


def run(operator, args, kwargs):
    """Runs an operator on the CPU values of its arguments, and records what it would do on real devices."""
    name = operator._schema.name.partition("::")[2]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    fakes = [x for x in tensors if isinstance(x, FakeTensor)]
    if name == "_pin_memory":
        return args[0].clone()
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if device == META and not fakes:  # estimates of memory; that of a fake tensor has an index
        return operator(*args, **kwargs)
    index = fakes[0].index if fakes else None
    if device is not None:
        index = None if device.type == "cpu" else device.index or 0
    if name in ("_to_copy", "copy_"):
        record_copy(tensors, index if name == "_to_copy" else _index(args[0]))
    else:
        record_mixture(operator, name, args, tensors, fakes)
        record_synchronisation(name, args, fakes)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = operator(*tree_map(values_of, args), **tree_map(values_of, kwargs))
    own = {id(x.values): x for x in fakes}  # results of in-place operators are their arguments

    def wrap(x):
        if not isinstance(x, torch.Tensor) or index is None:
            return own.get(id(x), x)
        return own[id(x)] if id(x) in own else FakeTensor(x, index)

    return tree_map(wrap, result)


def values_of(x):
    """The CPU values of a fake tensor; anything else as it is."""
    return x.values if isinstance(x, FakeTensor) else x


def _index(tensor):
    return tensor.index if isinstance(tensor, FakeTensor) else None


def record_copy(tensors, to):
    """Records a copy from the last of ``tensors`` to the fake device ``to``; None is the host."""
    source = tensors[-1] if tensors else None  # under vmap, numbers are converted to tensors by _to_copy
    if source is None or _index(source) == to:
        return
    direction = "to host" if to is None else "to device" if _index(source) is None else "between devices"
    RECORD.copy(direction, source)


def record_mixture(operator, name, args, tensors, fakes):
    """Records tensors of several devices, except CPU scalars and CPU indices, which CUDA accepts."""
    devices = sorted({x.index for x in fakes})
    if len(devices) > 1:
        RECORD.add(RECORD.mixed, f"{operator}: devices {devices}")
    own = operator.namespace == "pfl_fast"
    for x in tensors if fakes else ():
        if isinstance(x, FakeTensor):
            continue
        if name in INDEXING and any(x is i for i in args[1]):
            RECORD.add(RECORD.synchronisations, f"{operator}: index on the host")
        elif own or x.dim():
            RECORD.add(RECORD.mixed, f"{operator}: CPU tensor {list(x.shape)} with CUDA tensors")


def record_synchronisation(name, args, fakes):
    """Records operators whose result, or its size, the host must wait for."""
    masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)] if name in INDEXING else []
    if fakes and (masks or name in READ_VALUE | READ_SIZE):
        RECORD.add(RECORD.synchronisations, name)


class FakeStream:
    """The stream of a fake GPU."""

    def synchronize(self):
        """Records that the host waits."""
        RECORD.add(RECORD.synchronisations, "synchronize")


class FakeCuda(TorchDispatchMode):
    """Makes factories accept ``device="cuda:i"``, in the calling thread."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})

    def __enter__(self):
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(1, device="cuda") copies from the host
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(self._before)
        return super().__exit__(*error)


def install(monkeypatch, count):
    """Makes torch report ``count`` GPUs, and enters :class:`FakeCuda` in the threads of executors."""
    torch._C._ensureCUDADeviceGuardSet()
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device=None: (MEMORY, MEMORY))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: FakeStream())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda _: False)
    autocast = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *kind: kind != ("meta",) and autocast(*kind))
    # CPU kernels compute the values, whatever the library was compiled with.
    monkeypatch.setattr(backend, "has_kernel", lambda _op, _device_type: True)
    # The choices of the CPU: those of CUDA round differently.
    monkeypatch.setattr(dispatch, "_traced", "cpu")
    on_idle_worker = Executor.on_idle_worker

    def inside(self, work, unit):
        on_cuda = any(worker.device.type == "cuda" for worker in self.workers)
        with FakeCuda() if on_cuda else nullcontext():
            return on_idle_worker(self, work, unit)

    monkeypatch.setattr(Executor, "on_idle_worker", inside)


@contextmanager
def recorded():
    """Enters :class:`FakeCuda` and yields an empty :class:`Record`."""
    RECORD.clear()
    with FakeCuda():
        yield RECORD
