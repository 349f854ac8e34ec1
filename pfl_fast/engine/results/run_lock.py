"""The lock of a folder: one process at a time may train a run, or the runs of a comparison."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pfl_fast.engine.results.disk_errors import RunFolderError


class RunLock:
    """A file that names the process that writes to a folder.

    The operating system locks the file for the process and unlocks it when the process ends. Where a file system has
    no locks, process id and start time tell whether the process still runs. A lock of another host is never removed,
    because nothing tells whether its process runs.

    Args:
        folder: folder to lock.
        name: ``"run"`` or ``"comparison"``.

    Attributes:
        trains: True while the rounds of the run are trained.
    """

    # Locks that this process holds, which nothing else can find after their experiments are gone.
    _held: ClassVar[dict[Path, RunLock]] = {}

    def __init__(self, folder: Path, name: str = "run") -> None:
        self.trains = False
        self.name, self.file = name, folder / f"{name}.lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        return self._descriptor is not None

    def acquire(self, log: Callable[[str], None]) -> None:
        """Locks the folder, or raises with the process that holds the lock; does nothing if this object holds it.

        Args:
            log: receives a message if the lock was left behind by a process that has ended.
        """
        if self.held:
            return
        try:
            descriptor, locked = self._open()
        except OSError as error:
            raise RunFolderError(
                f"{self.file}: cannot be written ({error.strerror}); free some space, or make the folder writable"
            ) from error
        try:
            self._take_over(_owner(descriptor), locked, log)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise RunFolderError(f"{self.file}: cannot be written ({error.strerror}); free some space") from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._held[self.file.resolve()] = self

    def take_from_this_process(self) -> None:
        """Releases the lock of another object of this process, unless it trains: that of an earlier run of a cell."""
        other = self._held.get(self.file.resolve())
        if other is not None and not other.trains:
            other.release()

    def holder(self) -> str | None:
        """Returns the process that trains the run, None if there is none; does not touch the lock."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY)
        except OSError:
            return None
        owner = _owner(descriptor)
        os.close(descriptor)
        if owner.get("host") not in (None, socket.gethostname()):
            return f"process {owner.get('pid')} on host {owner['host']}"
        running = owner and owner.get("start") == _start_of(int(owner.get("pid", 0)))
        return f"process {owner['pid']}" if running else None

    def release(self) -> None:
        """Removes the lock if this object holds it."""
        if self._descriptor is not None:
            with suppress(OSError):
                self.file.unlink()
            os.close(self._descriptor)
            self._descriptor, self.trains = None, False
            self._held.pop(self.file.resolve(), None)

    def _open(self) -> tuple[int, bool]:
        """Opens the lock file; returns its descriptor, and whether the operating system locked it."""
        while True:
            descriptor, locked = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666), True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = _owner(descriptor)
                os.close(descriptor)
                raise self._in_use(owner) from None
            except OSError:  # a file system without locks
                locked = False
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.file.stat()):
                    return descriptor, locked
            os.close(descriptor)  # its owner removed the file in the meantime

    def _take_over(self, owner: dict[str, Any], locked: bool, log: Callable[[str], None]) -> None:
        here = _this_process()
        if not owner:
            return
        if owner.get("host") != here["host"]:
            raise RunFolderError(
                f"{self.file}: process {owner.get('pid')} on host {owner.get('host')} trains this {self.name}; if it "
                f"has ended, delete {self.file}"
            )
        if not locked and owner == {**owner, "start": _start_of(int(owner.get("pid", 0)))}:
            raise self._in_use(owner)
        if owner != here:
            log(f"{self.file}: left behind by process {owner.get('pid')}, which has ended; this process takes it over")

    def _in_use(self, owner: dict[str, Any]) -> RunFolderError:
        who = "this process" if owner.get("pid") == os.getpid() else f"process {owner.get('pid', '(starting)')}"
        remedy = "close the other Experiment" if owner.get("pid") == os.getpid() else "wait until it ends, or stop it"
        return RunFolderError(f"{self.file.parent}: {who} trains this {self.name} on this host; {remedy}")


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "start": _start_of(os.getpid())}


def _start_of(pid: int) -> str | None:
    """Returns the start time of a running process in clock ticks, "unknown" without /proc, None if it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it runs as another user
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "unknown"


def _owner(descriptor: int) -> dict[str, Any]:
    try:
        return dict(json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):  # empty or cut short: its process was killed while it wrote
        return {}
