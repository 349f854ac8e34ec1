"""Runs every CUDA kernel under emulation on CPU tensors and compares it with plain torch."""

import pytest

from tests.emulation.harness import OPERATORS
from tests.emulation.kernels import CASES

SEEDS = {"plain": range(6), "asan": range(2), "tsan": range(2)}


@pytest.mark.parametrize("variant", list(SEEDS))
@pytest.mark.parametrize("cases", CASES, ids=lambda module: module.OPERATOR)
def test_kernel(emulator, cases, variant):
    compiled = emulator(variant, OPERATORS / cases.OPERATOR / "cuda_kernel.cu")
    problems = [cases.Problem(case, seed) for case in cases.CASES for seed in SEEDS[variant]]
    compiled.run([call for problem in problems for call in problem.calls])
    for problem in problems:
        problem.check()


def test_every_kernel_has_cases():
    assert {module.OPERATOR for module in CASES} == {file.parent.name for file in OPERATORS.glob("*/cuda_kernel.cu")}


def test_every_operator_has_the_same_files():
    files = {"contract.h", "problem.h", "cpu.cpp", "cpu_kernel.cpp", "cuda.cpp", "cuda_kernel.cu"}
    assert {folder.name: files - {file.name for file in folder.iterdir()} for folder in OPERATORS.iterdir()} == {
        module.OPERATOR: set() for module in CASES
    }
