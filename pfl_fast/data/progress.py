"""Progress of downloads: a bar on a terminal, a line every 20 percent elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pfl_fast.data.download import OnProgress

if TYPE_CHECKING:
    from rich.console import Console

STEP = 20  # percent between lines


@contextmanager
def shown(label: str) -> Iterator[OnProgress]:
    """Shows the progress of a download on stderr; yields the ``progress`` argument of ``fetch``."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(label, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _lines(label: str, console: Console) -> OnProgress:
    shown_step = -1

    def say(done: int, total: int | None) -> None:
        nonlocal shown_step
        # Of unknown size: a line whenever the bytes double.
        step = done * 100 // total // STEP if total else done.bit_length()
        if step > shown_step:
            shown_step = step
            progress = f"{step * STEP} % of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
            console.print(f"{label}: {progress}", highlight=False, soft_wrap=True)

    return say
