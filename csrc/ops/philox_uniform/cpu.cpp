#include "ops/philox_uniform/contract.h"

namespace pfl {
namespace {

Tensor philox_uniform_cpu(Tensor seed, std::vector<int64_t> shape) {
  return philox_uniform(seed, shape, [](const PhiloxUniform& problem) {
    torch::stable::parallel_for(0, problem.clients * problem.numel, 1 << 14, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(philox_uniform)(problem, begin, end);
    });
  });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("philox_uniform", TORCH_BOX(&pfl::philox_uniform_cpu));
}
