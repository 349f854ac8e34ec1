// `route` on CPU tensors: splits the rows over threads. The kernels are in cpu_kernel.cpp.
#include "ops/route/contract.h"

namespace pfl {
namespace {

template <class Problem>
void run_rows(void (*kernel)(const Problem&, int64_t, int64_t), const Problem& problem) {
  const int64_t features = problem.sizes.features;
  const int64_t grain = std::max<int64_t>(1, kRouteFeaturesPerThread / std::max<int64_t>(1, features));
  torch::stable::parallel_for(0, features > 0 ? problem.sizes.clients * problem.sizes.rows : 0, grain,
                              [&](int64_t begin, int64_t end) { kernel(problem, begin, end); });
}

std::tuple<Tensor, Tensor> route_cpu(Tensor h, Tensor a, std::optional<Tensor> seed, double tau) {
  return route(h, a, seed, tau, [](const RouteForward& p) { run_rows(PFL_CPU_KERNEL(route_forward), p); });
}

std::tuple<Tensor, Tensor> route_backward_cpu(Tensor grad_global, Tensor grad_personal, Tensor h, Tensor a,
                                              std::optional<Tensor> seed, double tau) {
  return route_backward(grad_global, grad_personal, h, a, seed, tau,
                        [](const RouteBackward& p) { run_rows(PFL_CPU_KERNEL(route_backward), p); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("route", TORCH_BOX(&pfl::route_cpu));
  m.impl("route_backward", TORCH_BOX(&pfl::route_backward_cpu));
}
