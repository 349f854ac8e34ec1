"""The library against the yardstick, whole rounds at a time; ``python -m bench.end_to_end --help`` says more."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's own messages; read when torch is imported
