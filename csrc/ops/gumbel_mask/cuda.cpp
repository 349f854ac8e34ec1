#include "ops/gumbel_mask/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

std::tuple<Tensor, Tensor, Tensor> gumbel_mask_cuda(Tensor z, Tensor logits, std::optional<Tensor> seed, double tau,
                                                    double threshold, bool hard) {
  const Launch launch("pfl_fast::gumbel_mask", z);
  return gumbel_mask(z, logits, seed, tau, threshold, hard,
                     [&](const GumbelMaskForward& problem) { launch(&pfl_cuda_gumbel_mask, problem); });
}

std::tuple<Tensor, Tensor> gumbel_mask_backward_cuda(Tensor grad_selected, Tensor grad_rest, Tensor z, Tensor noisy,
                                                     double tau, double threshold, bool hard) {
  const Launch launch("pfl_fast::gumbel_mask_backward", z);
  return gumbel_mask_backward(
      grad_selected, grad_rest, z, noisy, tau, threshold, hard,
      [&](const GumbelMaskBackward& problem) { launch(&pfl_cuda_gumbel_mask_backward, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("gumbel_mask", TORCH_BOX(&pfl::gumbel_mask_cuda));
  m.impl("gumbel_mask_backward", TORCH_BOX(&pfl::gumbel_mask_backward_cuda));
}
