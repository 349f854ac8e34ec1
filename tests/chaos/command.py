"""Runs ``pfl-fast`` in a forked child, which starts with torch and this package imported."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pfl_fast.cli import main

PATIENCE = 300.0  # seconds; a run takes less than one
OUTPUT_BYTES = 1 << 20  # of a command, read when it has ended
PACKAGE = f"{os.sep}pfl_fast{os.sep}"


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: exit code; negative: the signal that ended it; None: it did not end.
        output: text on stdout and stderr.
    """

    code: int | None
    output: str

    @property
    def problem(self) -> str:
        """Why no command may end like this, else an empty text."""
        if self.code is None:
            return f"hang: no end after {PATIENCE:g} s"
        if self.code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL):
            return f"crash: {signal.Signals(-self.code).name}"
        if "Traceback (most recent call last)" in self.output:
            return "traceback"
        if self.code > 0 and not any(word in self.output for word in ("Error: ", "Interrupted", "Aborted!")):
            return f"exit code {self.code} without a message"
        return ""


class Command:
    """A command that runs in a child process.

    Args:
        arguments: arguments of ``pfl-fast``.
        prepare: called in the child before the command.
        report: called in the child after the command; its text is appended to the output.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        prepare: Callable[[], object] = lambda: None,
        report: Callable[[], str] = lambda: "",
    ) -> None:
        self._output, output = os.pipe()  # no limit of file sizes binds it
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, OUTPUT_BYTES)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_run(arguments, output, prepare, report))
        os.close(output)

    def wait(self) -> Ended:
        """Waits for the end of the command; kills it when patience is exhausted."""
        handle = os.pidfd_open(self.pid)
        try:
            ended = bool(select.select([handle], [], [], PATIENCE)[0])
        finally:
            os.close(handle)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with os.fdopen(self._output, errors="replace") as output:
            return Ended(code if ended else None, output.read())


def _run(arguments: Sequence[str], output: int, prepare: Callable[[], object], report: Callable[[], str]) -> int:
    """Does what a new interpreter would do with the command line; returns the exit code."""
    for stream in (1, 2):
        os.dup2(output, stream)
    code: Any = 0
    try:
        prepare()
        main(list(arguments))
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.setprofile(None)
    print(report(), end="", flush=True)
    return int(code)


class Calls:
    """Counts calls of the package's functions, by file and name, in the main thread and in new ones."""

    def __init__(self, act: Callable[[tuple[str, str], int], object] | None = None) -> None:
        self.act = act
        self.counts: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """Counts from now on, in this process."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in code.co_filename and not code.co_name.startswith("<"):
            place = code.co_filename.rpartition(PACKAGE)[2], code.co_name
            self.counts[place] += 1
            if self.act:
                self.act(place, self.counts[place])
