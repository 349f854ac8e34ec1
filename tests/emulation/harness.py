"""Compiles CUDA kernels with g++ against csrc/emulation and calls them on CPU tensors.

Launchers take one pointer to a struct of 8-byte fields. Here a struct is a list of words: a number, a tensor (its
address), a list of ints or tensors (the address of an array of them), or None (a null pointer).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pfl_fast.native import build

CSRC = build.source_folder()
OPERATORS = CSRC / "ops"  # one folder per operator
WORKER = Path(__file__).with_name("worker.py")
CXX = build.find_compiler()

Word = int | float | Tensor | list[int] | list[Tensor] | None

# By variant: flags of the kernels, flags of the runtime, the sanitizer library to preload and its options.
FLAGS = ["-std=c++17", "-O1", "-g", "-fPIC", "-DPFL_EMULATION", "-ffp-contract=off", "-Wno-unknown-pragmas"]
UNDEFINED = "-fsanitize=undefined", "-fno-sanitize-recover=undefined"
VARIANTS = {
    "plain": ([], [], None, {}),
    "asan": (
        ["-fsanitize=address", *UNDEFINED, "-DPFL_WITH_ASAN"],
        ["-fsanitize=address", *UNDEFINED, "-DPFL_WITH_ASAN"],
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0"},
    ),
    # The runtime is not instrumented, so its accesses do not count as accesses of the kernel's threads.
    "meter": (["-fsanitize=thread"], ["-DPFL_WITH_METER"], None, {}),
    "tsan": (["-fsanitize=thread"], ["-DPFL_WITH_TSAN"], "libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1"}),
}


LOCAL = {"plain", "meter"}  # variants that run in this process


class EmulationError(RuntimeError):
    """A kernel deadlocked or does not compile, a launch was invalid, or a sanitizer reported an error."""


@dataclass
class Call:
    function: str
    words: Sequence[Word]
    seed: int = 0


class Emulator:
    """Kernels compiled as one variant."""

    def __init__(self, variant: str, sources: Sequence[Path], folder: Path, defines: Sequence[str] = ()) -> None:
        self.variant = variant
        self.shared_object = _compile(variant, sources, folder, defines)
        if variant in LOCAL:
            self._loaded = ctypes.CDLL(str(self.shared_object))

    def run(self, calls: Sequence[Call]) -> None:
        """Runs the calls in order; tensors are modified in place."""
        if self.variant in LOCAL:
            for call in calls:
                make_call(self._loaded, call.function, call.seed, [_local(w) for w in call.words])
        else:
            self._run_sanitized(calls)

    def limit_grid(self, limit: int) -> None:
        """Sets the limit of the y and z dimensions of a grid; for variants that run in this process."""
        self._loaded.pfl_emulation_limit_grid(ctypes.c_uint(limit))

    def traffic(self, calls: Sequence[Call]) -> tuple[int, int]:
        """Returns the bytes moved between tensors and blocks, and their minimum; for the meter variant only."""
        self._loaded.pfl_meter_reset()
        for word in {w.data_ptr(): w for call in calls for w in _tensors_in(call.words)}.values():
            self._loaded.pfl_meter_watch(ctypes.c_void_p(word.data_ptr()), ctypes.c_uint64(_span(word)))
        self.run(calls)
        self._loaded.pfl_meter_bytes.restype = self._loaded.pfl_meter_min_bytes.restype = ctypes.c_uint64
        return self._loaded.pfl_meter_bytes(), self._loaded.pfl_meter_min_bytes()

    def _run_sanitized(self, calls: Sequence[Call]) -> None:
        """Runs the calls in a separate process without torch: the sanitizer must be the first library loaded."""
        _, _, preload, options = VARIANTS[self.variant]
        path = subprocess.run(
            [CXX, f"-print-file-name={preload}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        with tempfile.TemporaryDirectory() as folder:
            tensors: dict[tuple[int, int], Tensor] = {}
            described = [
                {"function": c.function, "seed": c.seed, "words": [_remote(w, tensors) for w in c.words]} for c in calls
            ]
            files = {}
            for i, ((address, size), _) in enumerate(tensors.items()):
                files[f"{address}:{size}"] = str(Path(folder) / f"{i}.bin")
                Path(files[f"{address}:{size}"]).write_bytes(ctypes.string_at(address, size) if size else b"")
            request = {"library": str(self.shared_object), "calls": described, "files": files}
            result = subprocess.run(
                [sys.executable, str(WORKER)],
                input=json.dumps(request),
                env={**os.environ, **options, "LD_PRELOAD": path, "PYTHONMALLOC": "malloc"},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if result.returncode != 0:
                raise EmulationError(_gist(result.stderr))
            for name, file in files.items():
                address, size = map(int, name.split(":"))
                ctypes.memmove(address, Path(file).read_bytes(), size)


def make_call(library: ctypes.CDLL, function: str, seed: int, words: Sequence[int]) -> None:
    """Calls a launcher with a struct of these words."""
    library.pfl_emulation_schedule(ctypes.c_uint64(seed))
    library.pfl_emulation_message.restype = ctypes.c_char_p
    problem = (ctypes.c_int64 * len(words))(*words)
    code = getattr(library, function)(ctypes.byref(problem), None)
    if code != 0:
        raise EmulationError(f"{function} returned {code}: {library.pfl_emulation_message().decode()}")


def _compile(variant: str, sources: Sequence[Path], folder: Path, defines: Sequence[str]) -> Path:
    kernel_flags, runtime_flags, _, _ = VARIANTS[variant]
    includes = [f"-I{CSRC}", f"-I{CSRC / 'emulation'}"]
    name = hashlib.sha256("".join([variant, *map(str, sources), *defines]).encode()).hexdigest()[:16]
    objects = []
    runtime = [CSRC / "emulation" / name for name in ["runtime.cpp"] + ["meter.cpp"] * (variant == "meter")]
    units = [(s, [*kernel_flags, *defines]) for s in sources] + [(file, runtime_flags) for file in runtime]
    for i, (source, flags) in enumerate(units):
        objects.append(folder / f"{name}-{i}.o")
        _run([CXX, *FLAGS, *flags, *includes, "-x", "c++", "-c", source, "-o", objects[-1]])
    library = folder / f"{name}.so"
    linked = [f for f in kernel_flags if f.startswith("-fsanitize") and variant != "meter"]
    _run([CXX, "-shared", *linked, *objects, "-o", library])
    return library


def _run(command: Sequence[object]) -> None:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise EmulationError(f"does not compile:\n{result.stderr[-2000:]}")


def _tensors_in(words: Sequence[Word]) -> list[Tensor]:
    return [t for w in words for t in (w if isinstance(w, list) else [w]) if isinstance(t, Tensor) and t.numel()]


def _span(tensor: Tensor) -> int:
    """Returns the bytes from the first to the last element, including the gaps of strided tensors."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _local(word: Word) -> int:
    if word is None:
        return 0
    if isinstance(word, float):
        return _bits_of(word)
    if isinstance(word, Tensor):
        return word.data_ptr()
    if isinstance(word, list):
        array = (ctypes.c_int64 * max(1, len(word)))(*[w.data_ptr() if isinstance(w, Tensor) else w for w in word])
        _keep.append(array)
        return ctypes.addressof(array)
    return word


_keep: list[object] = []  # keeps arrays alive that launchers read


def _remote(word: Word, tensors: dict[tuple[int, int], Tensor]) -> object:
    if isinstance(word, Tensor):
        key = word.data_ptr(), _span(word)
        tensors[key] = word
        return {"tensor": f"{key[0]}:{key[1]}", "alignment": key[0] % 64}
    if isinstance(word, list):
        return [_remote(w, tensors) for w in word]
    return _bits_of(word) if isinstance(word, float) else word


def _bits_of(number: float) -> int:
    return int(struct.unpack("q", struct.pack("d", number))[0])


def _gist(report: str) -> str:
    lines = [line for line in report.splitlines() if line.strip()]
    telling = [
        i for i, line in enumerate(lines) if "Sanitizer" in line or "runtime error" in line or "returned" in line
    ]
    start = telling[0] if telling else max(0, len(lines) - 12)
    return "\n".join(lines[start : start + 12])
