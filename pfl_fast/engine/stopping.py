"""Ctrl-C and SIGTERM: the first ends the run at the next step, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag(threading.Event):
    """Set when the run was asked to stop.

    Attributes:
        signal: which signal asked, if one did.
        listening: whether signals set it now.
    """

    signal: int | None = None
    listening: bool = False


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[None]:
    """Inside the block signals set the flag; elsewhere than in the main thread they are left as they are.

    A block inside another one of the same flag changes nothing, so that a second signal still ends the run at once.
    """
    if threading.current_thread() is not threading.main_thread() or flag.listening:
        yield
        return
    flag.listening = True
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, _frame: FrameType | None) -> None:
        flag.signal = number
        flag.set()
        for each, handler in before.items():  # a second one is not to wait
            signal.signal(each, handler)

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        flag.listening = False
        for number, handler in before.items():
            signal.signal(number, handler)
