#include "ops/mmd_rbf/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

std::tuple<Tensor, Tensor> mmd_rbf_cuda(Tensor x, Tensor y, std::vector<double> bandwidths) {
  const Launch launch("pfl_fast::mmd_rbf", x);
  return mmd_rbf(x, y, bandwidths, [&](const MmdRbf& problem) { launch(&pfl_cuda_mmd_rbf, problem); });
}

std::tuple<Tensor, Tensor> mmd_rbf_backward_cuda(Tensor grad, Tensor x, Tensor y, Tensor weights, bool needs_x,
                                                 bool needs_y) {
  const Launch launch("pfl_fast::mmd_rbf_backward", x);
  return mmd_rbf_backward(grad, x, y, weights, needs_x, needs_y,
                          [&](const MmdRbfBackward& problem) { launch(&pfl_cuda_mmd_rbf_backward, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("mmd_rbf", TORCH_BOX(&pfl::mmd_rbf_cuda));
  m.impl("mmd_rbf_backward", TORCH_BOX(&pfl::mmd_rbf_backward_cuda));
}
