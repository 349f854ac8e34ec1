"""The operator contract on the CPU kernels of every instruction set of this processor.

A process chooses its instruction set at start, so every test here runs other processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pfl_fast import ops

INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
# These operators add products with one rounding (FMA); the baseline rounds twice.
FUSED = {"conv_relu_pool", "mmd_rbf", "orthogonal_project"}
KERNEL_TESTS = "values or gradients_equal or memory_layout or empty or thread_count"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ops.NATIVE.available, reason=f"no native library: {ops.NATIVE.problem}"),
]

DIGESTS = """
import hashlib, json, torch
from tests.ops.operators import operators
digests = {}
for op in operators():
    digest = hashlib.sha256()
    for dtype in op.dtypes:
        for sample in op.samples(dtype):
            tensors = [t.clone().requires_grad_(op.differentiable and t.is_floating_point()) for t in sample.tensors]
            results = op.call(*tensors, **sample.options)
            tracked = [t for t in tensors if t.requires_grad]
            gradients = torch.autograd.grad(results, tracked, [torch.ones_like(r) for r in results]) if tracked else []
            for t in [*results, *gradients]:
                digest.update(bytes(t.detach().contiguous().flatten().view(torch.uint8).tolist()))
    digests[op.name] = digest.hexdigest()
print(json.dumps([torch.ops.pfl_fast.cpu_capability(), digests]))
"""


def run(instruction_set, *arguments):
    """Runs Python with the kernels of an instruction set; skips if the processor lacks it."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PFL_FAST_CPU_CAPABILITY": instruction_set},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def digests(instruction_set):
    """Returns a hash of all results and gradients of the contract's samples, by operator."""
    process = run(instruction_set, "-c", DIGESTS)
    assert process.returncode == 0, process.stderr
    used, found = json.loads(process.stdout)
    if used != instruction_set:
        pytest.skip(f"this processor has no {instruction_set}, best is {used}")
    return found


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_contract_holds(instruction_set):
    digests(instruction_set)  # skips
    test = Path(__file__).with_name("test_contract.py")
    process = run(instruction_set, "-m", "pytest", "-p", "no:cacheprovider", str(test), "-k", KERNEL_TESTS)
    assert process.returncode == 0, process.stdout
    assert f"CPU kernels: {instruction_set}" in process.stdout


def test_avx2_and_avx512_give_the_same_bits():
    assert digests("avx2") == digests("avx512")


def test_baseline_gives_the_same_bits_except_for_fused_products():
    baseline, avx2 = digests("baseline"), digests("avx2")
    assert {op for op in baseline if baseline[op] != avx2[op]} == FUSED
