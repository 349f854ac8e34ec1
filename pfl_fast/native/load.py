"""Finds the native library, compiles it on first use if necessary, and loads it into torch.

Search order: the library in ``PFL_FAST_LIBRARY``, the library compiled at installation, a library in the user's cache,
a new library compiled into that cache under a lock. A library is loaded only if its info matches the current sources
and the hash of the file; stale or damaged libraries are recompiled. The cache must belong to the user alone.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from pfl_fast.native import build
from pfl_fast.paths import UnsafeFolderError, cache_folder, private


@dataclass(frozen=True)
class Native:
    """A loaded library with its info, or the reason why none could be loaded."""

    folder: Path | None
    info: build.BuildInfo | None
    problem: str | None = None

    @property
    def available(self) -> bool:
        """True if the native operators can be called."""
        return self.folder is not None

    @property
    def cuda_problem(self) -> str | None:
        """Why the library has no CUDA kernels, with the remedy; None if it has them or torch does not support CUDA."""
        if self.info is None or self.info.architectures or not torch.version.cuda:
            return None
        if self.info.cuda_problem:
            return f"CUDA kernels could not be compiled: {self.info.cuda_problem}"
        again = "reinstall pfl-fast" if self.folder == installed_folder() else "start again"
        if build.find_nvcc() is None:
            return f"CUDA kernels are not compiled: {build.install_nvcc(torch.version.cuda)}, then {again}"
        return f"CUDA kernels are not compiled: {again} with WITH_CUDA=1"


def installed_folder() -> Path:
    """Returns the folder of the library compiled at installation, inside the package."""
    return Path(__file__).resolve().parent / "lib"


def find_or_build() -> Path:
    """Returns the folder of an undamaged library, after compiling one if necessary."""
    build.check_torch(torch.__version__)
    sources = build.source_hash(build.source_folder())
    if given := os.environ.get("PFL_FAST_LIBRARY"):
        build.check_library(Path(given), sources)
        return Path(given)
    if build.is_sound(installed_folder(), sources):
        return installed_folder()
    plan = build.make_plan(torch.version.cuda)
    home = private(cache_folder() / "native")
    folder, scratch = home / build.cache_key(plan, sources), home / build.scratch_name(plan, build.source_folder())
    private(folder)
    with FileLock(scratch.with_suffix(".lock")):  # a second process waits here and then uses the library of the first
        if not build.is_sound(folder, sources):
            parts = "CPU and CUDA" if plan.cuda else "CPU"
            print(f"pfl-fast: compiling the native library ({parts}) once, into {folder}", file=sys.stderr, flush=True)
            info = build.build(folder, scratch, plan)
            if info.cuda_problem:
                _warn(f"only the CPU kernels are compiled; on GPUs operators run in plain PyTorch. {info.cuda_problem}")
    return folder


def load() -> Native:
    """Loads the library. On failure warns once with the remedy; operators then run as plain PyTorch."""
    try:
        folder = find_or_build()
        torch.ops.load_library(str(folder / build.LIBRARY))
    except (build.BuildError, UnsafeFolderError, OSError) as error:
        _warn(f"its operators run on plain PyTorch, several times slower: {error}")
        return Native(None, None, problem=str(error))
    return Native(folder, build.BuildInfo.read(folder))


def _warn(what: str) -> None:
    warnings.warn(f"pfl-fast: {what}", RuntimeWarning, stacklevel=3)
