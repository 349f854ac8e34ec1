"""The native library with CPU kernels compiled for a sanitizer, and the environment of a process that loads it."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

from pfl_fast.native import build
from pfl_fast.paths import cache_folder

# Flags of the compiler, libraries to preload, options.
SANITIZERS = {
    "address": (
        ["-fsanitize=address,undefined"],
        ["libasan.so", "libstdc++.so"],  # AddressSanitizer intercepts exceptions, so it must find the C++ library
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
    ),
    "thread": (
        ["-fsanitize=thread"],
        ["libtsan.so"],
        {"TSAN_OPTIONS": "halt_on_error=1"},
    ),
}
LEVEL = ["-O1", "-g", "-fno-omit-frame-pointer"]


def compiler() -> str:
    """Returns the C++ compiler."""
    path = build.find_compiler()
    if path is None:
        raise build.BuildError("no C++ compiler found")
    return path


def library(sanitizer: str) -> Path:
    """Returns the folder of the library compiled for this sanitizer; recompiles changed files only."""
    home = cache_folder() / "sanitize" / sanitizer
    home.mkdir(parents=True, exist_ok=True)
    script = f'#!/bin/sh\nexec {shlex.join([compiler()])} "$@" {shlex.join(flags(sanitizer))}\n'
    # Other flags are another compiler for ninja, which then recompiles everything.
    wrapper = home / f"c++-{hashlib.sha256(script.encode()).hexdigest()[:8]}"
    wrapper.write_text(script)
    wrapper.chmod(0o755)
    build.build(home / "lib", home / "objects", build.BuildPlan(str(wrapper), None, (), debug=False))
    return home / "lib"


def flags(sanitizer: str) -> list[str]:
    """Returns the flags of the compiler."""
    return [*LEVEL, *SANITIZERS[sanitizer][0]]


def environment(sanitizer: str, library: Path, instruction_set: str = "") -> dict[str, str]:
    """Returns the environment of a Python process that loads this library."""
    _, preloaded, options = SANITIZERS[sanitizer]
    paths = [
        subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in preloaded
    ]
    return {
        **os.environ,
        **options,
        "LD_PRELOAD": " ".join(path.strip() for path in paths),
        "PFL_FAST_LIBRARY": str(library),
        "PFL_FAST_CPU_CAPABILITY": instruction_set,
        "PYTHONMALLOC": "malloc",
    }
