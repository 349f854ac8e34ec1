"""Compiles the library that makes file operations fail, and controls it in the process that it is preloaded into."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
READ, CREATE, DATA, REMOVE = 1, 2, 4, 8
ANY = READ | CREATE | DATA | REMOVE
# Operations that can fail with an error.
FAILING = {
    errno.ENOSPC: CREATE | DATA,
    errno.EDQUOT: CREATE | DATA,
    errno.EIO: ANY,
    errno.EROFS: CREATE | REMOVE,
    errno.EMFILE: READ | CREATE,
}
NO_CLOCK_JUMP = 1 << 40  # readings are counted only if a jump is planned


def compile_shim(folder: Path) -> Path:
    """Compiles the library into a folder and returns its path."""
    library = folder / "shim.so"
    command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def fail_files(
    folder: Path, kinds: int = ANY, at: int = 0, error: int = 0, lasting: bool = False, kill: int = 0, budget: int = -1
) -> None:
    """Counts file operations below ``folder`` from now on, and lets some fail; called once in a process.

    Args:
        folder: folder of the run.
        kinds: operations that may fail: any of READ, CREATE, DATA and REMOVE.
        at: number of the first operation that fails; 0: none.
        error: errno of failing operations.
        lasting: True if all later operations fail too.
        kill: signal that the process receives before the operation, instead of an error.
        budget: bytes that fit on the disk; -1: unlimited.
    """
    _library().chaos_files(os.fsencode(folder), kinds, at, error, int(lasting), kill, ctypes.c_long(budget))


def jump_clock(at: int = NO_CLOCK_JUMP, wall: int = 0, steady: int = 0) -> None:
    """Adds seconds to the wall clock and the monotonic clock from reading ``at`` on."""
    _library().chaos_clock(ctypes.c_long(at), ctypes.c_long(wall), ctypes.c_long(steady))


def operations(kinds: int = ANY) -> int:
    """Returns the number of file operations of some kinds since :func:`fail_files`."""
    return int(_library().chaos_operations(kinds))


def readings() -> int:
    """Returns the number of readings of a clock."""
    return int(_library().chaos_readings())


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # the preloaded library is part of the process
