"""Runs every CUDA kernel under emulation on CPU tensors and compares it with plain torch."""

import pytest

from tests.emulation import mix_cases, orthogonal_project_cases
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


@pytest.mark.parametrize(
    ("cases", "case"),
    [
        (orthogonal_project_cases, orthogonal_project_cases.Case("many", samples=13, features=5)),
        (mix_cases, mix_cases.Case("many", columns=(5, 3), segments=4)),
    ],
    ids=["orthogonal_project", "mix"],
)
def test_number_of_samples_and_segments_is_not_limited_by_the_grid(emulator, cases, case):
    """The y and z dimensions of a grid end at 65,535 blocks; here they end at 2."""
    problem = cases.Problem(case, seed=0)
    compiled = emulator("plain", OPERATORS / cases.OPERATOR / "cuda_kernel.cu")
    compiled.limit_grid(2)
    try:
        compiled.run(problem.calls)
    finally:
        compiled.limit_grid(65_535)
    problem.check()
