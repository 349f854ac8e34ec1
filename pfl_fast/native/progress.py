"""Progress of a compilation: files compiled, time elapsed and estimated time left, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

INTERVAL_TERMINAL = 1.0  # seconds between updates of one line
INTERVAL_LOG = 10.0  # seconds between lines where stderr is a file or a pipe


class Progress:
    """Reports the progress of a compilation until the ``with`` block ends.

    On a terminal one line is rewritten every second; otherwise a line is written every ten seconds.

    Args:
        costs: estimated cost of each file that will be compiled, in any unit.
        stream: output stream. Default: stderr.
        interval: seconds between two reports. Default: depends on the stream.
    """

    def __init__(self, costs: dict[str, float], stream: TextIO | None = None, interval: float | None = None) -> None:
        self._waiting = dict(costs)
        self._files, self._cost = len(costs), sum(costs.values())
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._interval = interval or (INTERVAL_TERMINAL if self._terminal else INTERVAL_LOG)
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)
        self._reported = False

    def __enter__(self) -> Progress:
        self._reporter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._reporter.join()
        if self._reported:  # a short compilation writes nothing
            self._write(self.line())
            if self._terminal:
                self._stream.write("\n")

    def finish(self, file: str) -> None:
        """Counts ``file`` as compiled."""
        self._waiting.pop(file, None)

    def line(self) -> str:
        """Returns the current state, for example ``compiled 12 of 97 files in 41 s, about 5 min left``."""
        elapsed = time.monotonic() - self._start
        left = sum(list(self._waiting.values()))
        text = f"pfl-fast: compiled {self._files - len(self._waiting)} of {self._files} files in {duration(elapsed)}"
        if 0 < left < self._cost:
            text += f", about {duration(elapsed * left / (self._cost - left))} left"
        return text

    def _report(self) -> None:
        while not self._stop.wait(self._interval):
            self._write(self.line())
            self._reported = True

    def _write(self, text: str) -> None:
        # "\033[K" clears the rest of a longer previous line.
        self._stream.write(f"\r{text}\033[K" if self._terminal else f"{text}\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Returns a duration as text.

    >>> duration(41.3), duration(312)
    ('41 s', '5 min 12 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
