#include "ops/philox_uniform/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

Tensor philox_uniform_cuda(Tensor seed, std::vector<int64_t> shape) {
  const Launch launch("pfl_fast::philox_uniform", seed);
  return philox_uniform(seed, shape, [&](const PhiloxUniform& problem) { launch(&pfl_cuda_philox_uniform, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("philox_uniform", TORCH_BOX(&pfl::philox_uniform_cuda));
}
