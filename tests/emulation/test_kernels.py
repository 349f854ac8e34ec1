"""Runs every CUDA kernel under emulation on CPU tensors and compares it with plain torch."""

import pytest

from tests.emulation.harness import CSRC
from tests.emulation.kernels import CASES

SEEDS = {"plain": range(6), "asan": range(2), "tsan": range(2)}


@pytest.mark.parametrize("variant", list(SEEDS))
@pytest.mark.parametrize("cases", CASES, ids=lambda module: module.SOURCE)
def test_kernel(emulator, cases, variant):
    compiled = emulator(variant, CSRC / "cuda" / cases.SOURCE)
    problems = [cases.Problem(case, seed) for case in cases.CASES for seed in SEEDS[variant]]
    compiled.run([call for problem in problems for call in problem.calls])
    for problem in problems:
        problem.check()


def test_every_kernel_has_cases():
    assert {module.SOURCE for module in CASES} == {file.name for file in (CSRC / "cuda").glob("*_kernel.cu")}
