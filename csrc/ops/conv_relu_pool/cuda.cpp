#include "ops/conv_relu_pool/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

constexpr int64_t kMaxParts = 32;  // per client: enough blocks for a GPU, few partial sums

std::tuple<Tensor, Tensor> conv_relu_pool_cuda(Tensor x, Tensor weight, Tensor bias, int64_t padding) {
  const Launch launch("pfl_fast::conv_relu_pool", x);
  return conv_relu_pool(x, weight, bias, padding,
                        [&](const ConvReluPool& problem) { launch(&pfl_cuda_conv_relu_pool, problem); });
}

int64_t samples_per_part(const ConvReluPoolSizes& sizes) {
  return sizes.samples <= kMaxParts ? 1 : (sizes.samples + kMaxParts - 1) / kMaxParts;
}

std::tuple<Tensor, Tensor, Tensor> conv_relu_pool_backward_cuda(Tensor grad, Tensor x, Tensor weight, Tensor index,
                                                                int64_t padding, bool needs_x, bool needs_weight) {
  const Launch launch("pfl_fast::conv_relu_pool_backward", x);
  return conv_relu_pool_backward(
      grad, x, weight, index, padding, needs_x, needs_weight, samples_per_part,
      [&](const ConvReluPoolBackward& problem) { launch(&pfl_cuda_conv_relu_pool_backward, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("conv_relu_pool", TORCH_BOX(&pfl::conv_relu_pool_cuda));
  m.impl("conv_relu_pool_backward", TORCH_BOX(&pfl::conv_relu_pool_backward_cuda));
}
