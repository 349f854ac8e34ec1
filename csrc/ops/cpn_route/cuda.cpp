// `cpn_route` on CUDA tensors: device, stream, launch. The arithmetic is in cuda_kernel.cu.
#include "ops/cpn_route/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

// Each part is one block; few rows per block let a small batch fill the device.
int64_t rows_per_part(int64_t) {
  return 4;
}

std::tuple<Tensor, Tensor, Tensor> cpn_route_cuda(Tensor h, Tensor a, Tensor gamma, Tensor beta, double eps,
                                                  std::optional<Tensor> seed, double tau) {
  const Launch launch("pfl_fast::cpn_route", h);
  return cpn_route(h, a, gamma, beta, eps, seed, tau,
                   [&](const CpnRouteForward& p) { launch(&pfl_cuda_cpn_route, p); });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cpn_route_backward_cuda(Tensor grad_global, Tensor grad_personal, Tensor h,
                                                                   Tensor a, Tensor gamma, Tensor beta, Tensor stats,
                                                                   std::optional<Tensor> seed, double tau) {
  const Launch launch("pfl_fast::cpn_route_backward", h);
  return cpn_route_backward(grad_global, grad_personal, h, a, gamma, beta, stats, seed, tau, rows_per_part,
                            [&](const CpnRouteBackward& p) { launch(&pfl_cuda_cpn_route_backward, p); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("cpn_route", TORCH_BOX(&pfl::cpn_route_cuda));
  m.impl("cpn_route_backward", TORCH_BOX(&pfl::cpn_route_backward_cuda));
}
