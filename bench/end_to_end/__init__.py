"""The library against the yardstick, whole rounds at a time; ``python -m bench.end_to_end --help`` says more."""
