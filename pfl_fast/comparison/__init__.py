"""Comparison of several runs: methods, seeds and grids of options on the same data."""
