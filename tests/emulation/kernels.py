"""All kernels that run under emulation: a new operator adds its cases here, and tests and mutants find them."""

from tests.emulation import aggregate_cases, mmd_rbf_cases, orthogonal_project_cases, philox_uniform_cases

CASES = [aggregate_cases, mmd_rbf_cases, orthogonal_project_cases, philox_uniform_cases]
