"""Checks of a CPU kernel: the tests of its operator that compare values, on a library with the changed kernel.

The library has the sources of one operator only. Its kernels are compiled for the best instruction set of the processor
and replace those of the native library when it is loaded.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from pfl_fast.native import build
from tests.emulation.harness import CSRC
from tests.ops.operators import operators
from tests.sanitize.library import SANITIZERS, compiler

TESTS = Path(__file__).parent.parent / "ops"
TORCH = Path(torch.__file__).parent
CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "baseline")
TARGET = (build.TORCH_TARGET[0] << 56) | (build.TORCH_TARGET[1] << 48)
FLAGS = [*build.COMMON_FLAGS, *build.EXACT_FLAGS, "-w", "-O1", f"-DTORCH_TARGET_VERSION={TARGET:#018x}ULL"]
INCLUDES = [f"-I{CSRC}", "-isystem", str(TORCH / "include")]
SANITIZER = {"plain": [], "asan": SANITIZERS["address"][0]}
# Tests of the contract that compile Python code for seconds or do not run kernels.
OTHER_TESTS = {
    "test_opcheck",
    "test_compile_without_graph_breaks",
    "test_torchscript",
    "test_meta_tensors_have_the_right_shapes",
    "test_autocast_does_not_change_the_result",
    "test_invalid_input_raises_a_clear_error",
    "test_kernels_are_registered_for_every_device",
}

operators()  # imports the samples, once for all mutants


def passes(kernel: Path, source: Path, variant: str) -> bool | None:
    """Returns whether the tests pass with ``source`` in place of the kernel, or None if it does not compile.

    Can be called once per process, because the library is loaded. Files are written next to ``source``.
    """
    library = compile_library(kernel, source, variant)
    if library is None:
        return None
    torch.ops.load_library(str(library))
    operator = folder_of(kernel).name
    files = [TESTS / "test_contract.py", TESTS / f"test_{operator}.py"]
    options = ["-qx", "-p", "no:cacheprovider", "--assert=plain", f"--basetemp={source.parent}/tests"]
    return pytest.main([*options, *map(str, files)], plugins=[ValueTests(operator)]) == pytest.ExitCode.OK


class ValueTests:
    """A pytest plugin that runs the tests of one operator that compare values."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        items[:] = [item for item in items if self.is_wanted(item)]
        assert {item.path.name for item in items} == {"test_contract.py", f"test_{self.operator}.py"}

    def is_wanted(self, item: pytest.Function) -> bool:
        if item.get_closest_marker("slow"):
            return False
        if item.path.name != "test_contract.py":
            return True
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        of_operator = "op" in parameters and parameters["op"].name.rstrip("_") == self.operator
        return of_operator and item.originalname not in OTHER_TESTS


def folder_of(kernel: Path) -> Path:
    """Returns the folder of the operator whose tests check the kernel."""
    return CSRC / "ops" / "orthogonal_project" if kernel.parent.name == "simd" else kernel.parent


def compile_library(kernel: Path, source: Path, variant: str) -> Path | None:
    """Compiles ``source`` and links it with the other CPU sources of its operator, which are compiled only once."""
    objects = []
    for file in sorted([*folder_of(kernel).glob("cpu*.cpp"), *(CSRC / "cpu").rglob("*.cpp")]):
        objects.append(source.parent / f"{file.parent.name}_{file.stem}.o")
        if file == kernel or not objects[-1].exists():
            command = [*flags_of(file), "-c", str(source if file == kernel else file), "-o", str(objects[-1])]
            if not succeeds([*command, *SANITIZER[variant]]):
                return None
    library = source.parent / "changed.so"
    linked = succeeds(
        ["-shared", *map(str, objects), "-o", str(library), f"-L{TORCH}/lib", "-ltorch_cpu", *SANITIZER[variant]]
    )
    return library if linked else None


def flags_of(file: Path) -> list[str]:
    """Returns the flags of a source: kernels take the place of those for the baseline, the only ones called."""
    if file.stem.endswith("_kernel"):
        return [*FLAGS, *INCLUDES, "-DPFL_CAPABILITY=baseline", *build.CAPABILITY_FLAGS[CAPABILITY]]
    return [*FLAGS, *INCLUDES, *(["-DPFL_WITH_X86_CAPABILITIES"] if file.stem == "capability" else [])]


def succeeds(arguments: list[str]) -> bool:
    return subprocess.run([compiler(), *arguments], capture_output=True, check=False).returncode == 0
