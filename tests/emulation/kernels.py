"""All kernels that run under emulation: a new operator adds its cases here, and tests and mutants find them."""

from tests.emulation import aggregate_cases, cpn_route_cases, philox_uniform_cases, route_cases

CASES = [aggregate_cases, cpn_route_cases, philox_uniform_cases, route_cases]
