"""All kernels that run under emulation: the modules ``*_cases.py`` beside this one, one per CUDA source.

A module has SOURCE (the kernel's file), CASES, TYPICAL (those for the report on memory traffic), EQUIVALENT (mutants
that cannot change behaviour, with the reason) and Problem(case, seed) with the calls to make and check() to judge them.
"""

import importlib
from pathlib import Path

CASES = [
    importlib.import_module(f"tests.emulation.{file.stem}") for file in sorted(Path(__file__).parent.glob("*_cases.py"))
]
