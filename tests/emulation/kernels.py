"""All kernels that run under emulation: a new operator adds its cases here, and tests and mutants find them."""

from tests.emulation import aggregate_cases, distill_losses_cases, gumbel_mask_cases, philox_uniform_cases

CASES = [aggregate_cases, distill_losses_cases, gumbel_mask_cases, philox_uniform_cases]
