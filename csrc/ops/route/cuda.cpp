// `route` on CUDA tensors: device, stream, launch. The arithmetic is in cuda_kernel.cu.
#include "ops/route/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

std::tuple<Tensor, Tensor> route_cuda(Tensor h, Tensor a, std::optional<Tensor> seed, double tau) {
  const Launch launch("pfl_fast::route", h);
  return route(h, a, seed, tau, [&](const RouteForward& p) { launch(&pfl_cuda_route, p); });
}

std::tuple<Tensor, Tensor> route_backward_cuda(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a,
                                               std::optional<Tensor> seed, double tau) {
  const Launch launch("pfl_fast::route_backward", h);
  return route_backward(grad_global, grad_personal, h, a, seed, tau,
                        [&](const RouteBackward& p) { launch(&pfl_cuda_route_backward, p); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("route", TORCH_BOX(&pfl::route_cuda));
  m.impl("route_backward", TORCH_BOX(&pfl::route_backward_cuda));
}
