"""All kernels that run under emulation: a new operator adds its cases here, and tests and mutants find them."""

from tests.emulation import aggregate_cases, mix_cases, philox_uniform_cases, sgd_cases, take_normalized_cases

CASES = [aggregate_cases, mix_cases, philox_uniform_cases, sgd_cases, take_normalized_cases]
