"""Ctrl-C, SIGTERM and SIGHUP: the first one ends the run before the next step, the second one immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; raised between two steps.

    Attributes:
        signal: number of the signal, if a signal asked.
    """

    signal: int | None = None


class StopFlag(threading.Event):
    """Set when the run was asked to stop.

    Attributes:
        signal: number of the received signal, if any.
        listening: True while signals set the flag.
    """

    signal: int | None = None
    listening: bool = False


def raise_if_stopped(flag: threading.Event) -> None:
    """Raises :class:`Interrupted` if ``flag`` is set."""
    if flag.is_set():
        raise Interrupted


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[None]:
    """Lets signals set ``flag`` inside the block. Outside the main thread, signals are not handled.

    Signals that the process ignores stay ignored: ``nohup`` ignores SIGHUP, so the run outlives its terminal.
    Nested blocks of the same flag have no effect, so a second signal still ends the run immediately.
    """
    if threading.current_thread() is not threading.main_thread() or flag.listening:
        yield
        return
    flag.listening = True
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) != signal.SIG_IGN}

    def ask(number: int, _frame: FrameType | None) -> None:
        flag.signal = number
        flag.set()
        for each, handler in before.items():  # a second signal ends the run immediately
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        flag.listening = False
        for number, handler in before.items():
            signal.signal(number, handler)
