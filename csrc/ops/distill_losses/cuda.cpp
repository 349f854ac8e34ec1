#include "ops/distill_losses/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

DistillResults distill_losses_cuda(Tensor y_g, Tensor y_p, Tensor y_u, Tensor target) {
  const Launch launch("pfl_fast::distill_losses", y_g);
  return distill_losses(y_g, y_p, y_u, target,
                        [&](const DistillForward& problem) { launch(&pfl_cuda_distill_losses, problem); });
}

std::tuple<Tensor, Tensor, Tensor> distill_losses_backward_cuda(Tensor grad_gce, Tensor grad_lce, Tensor grad_ent,
                                                                Tensor grad_dis, Tensor y_g, Tensor y_p, Tensor y_u,
                                                                Tensor target) {
  const Launch launch("pfl_fast::distill_losses_backward", y_g);
  return distill_losses_backward(
      {grad_gce, grad_lce, grad_ent, grad_dis}, y_g, y_p, y_u, target,
      [&](const DistillBackward& problem) { launch(&pfl_cuda_distill_losses_backward, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("distill_losses", TORCH_BOX(&pfl::distill_losses_cuda));
  m.impl("distill_losses_backward", TORCH_BOX(&pfl::distill_losses_backward_cuda));
}
