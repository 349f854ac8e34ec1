"""Reports: one HTML file with curves, bars, partition, times, traffic and settings of runs.

The file needs no network and has no scripts. Switches for runs and for light and dark are CSS.
"""

from __future__ import annotations

from pfl_fast.report.page import write

__all__ = ["write"]
