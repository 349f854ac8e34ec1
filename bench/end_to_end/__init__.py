"""Whole rounds of the library against the yardstick; see ``python -m bench.end_to_end --help``."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences the profiler; read when torch is imported
