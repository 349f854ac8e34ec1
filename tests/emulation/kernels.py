"""All kernels that run under emulation: the modules ``*_cases.py`` in this folder, one per operator.

A module defines OPERATOR (its folder in csrc/ops), CASES, TYPICAL (cases of the memory traffic report) and
Problem(case, seed), which has ``calls`` and ``check()``.
"""

import importlib
from pathlib import Path

CASES = [
    importlib.import_module(f"tests.emulation.{file.stem}") for file in sorted(Path(__file__).parent.glob("*_cases.py"))
]
