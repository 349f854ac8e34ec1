"""Finds the native library, builds it on first use if need be, and loads it into torch.

The order: the library that was compiled at installation; one in the user's cache; a new one, compiled into that cache
under a lock. A library is only loaded when its info names the present sources and its own hash, so a stale or damaged
file is compiled anew instead of crashing the process.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from pfl_fast.native import build
from pfl_fast.paths import cache_folder


@dataclass(frozen=True)
class Native:
    """The outcome: a loaded library with its info, or the reason why there is none."""

    folder: Path | None
    info: build.BuildInfo | None
    problem: str | None = None

    @property
    def available(self) -> bool:
        """Whether the native operators can be called."""
        return self.folder is not None


def installed_folder() -> Path:
    """Where the installation puts the library: inside the package."""
    return Path(__file__).resolve().parent / "lib"


def is_sound(folder: Path, sources: str) -> bool:
    """Whether ``folder`` holds a complete library made of these sources."""
    info = build.BuildInfo.read(folder)
    if info is None or info.sources != sources:
        return False
    try:
        return hashlib.sha256((folder / build.LIBRARY).read_bytes()).hexdigest() == info.sha256
    except OSError:
        return False


def find_or_build() -> Path:
    """The folder of a sound library, compiling one if there is none yet."""
    sources = build.source_hash(build.source_folder())
    if is_sound(installed_folder(), sources):
        return installed_folder()
    plan = build.make_plan(torch_has_cuda=torch.version.cuda is not None)
    home = cache_folder() / "native"
    folder, scratch = home / build.cache_key(plan, sources), home / build.scratch_name(plan, build.source_folder())
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(scratch.with_suffix(".lock")):  # a second process waits here and then finds the first one's library
        if not is_sound(folder, sources):
            kinds = "CPU and CUDA" if plan.cuda else "CPU"
            print(f"pfl-fast: compiling the native library ({kinds}) once, into {folder}", file=sys.stderr, flush=True)
            info = build.build(folder, scratch, plan)
            if info.cuda_problem:
                _warn(f"only the CPU kernels could be compiled; on a GPU operators will fail. {info.cuda_problem}")
    return folder


def load() -> Native:
    """Loads the library. If that cannot be done, warns once, naming the remedy, and the plain-torch reference runs."""
    try:
        folder = find_or_build()
        torch.ops.load_library(str(folder / build.LIBRARY))
    except (build.BuildError, OSError) as error:
        _warn(f"its operators run on plain PyTorch, several times slower: {error}")
        return Native(None, None, problem=str(error))
    return Native(folder, build.BuildInfo.read(folder))


def _warn(what: str) -> None:
    warnings.warn(f"pfl-fast: {what}", RuntimeWarning, stacklevel=3)
