// `cpn_route` on CPU tensors: splits the rows over threads. The kernels are in cpu_kernel.cpp.
#include "ops/cpn_route/contract.h"

namespace pfl {
namespace {

int64_t grain_of(int64_t features_per_item) {
  return std::max<int64_t>(1, kRouteFeaturesPerThread / std::max<int64_t>(1, features_per_item));
}

// Small batches, such as the usual 10 rows, are one part; large batches have enough parts for all threads.
int64_t rows_per_part(int64_t rows) {
  return rows <= 16 ? 16 : 8;
}

void run_forward(const CpnRouteForward& problem) {
  const int64_t rows = problem.sizes.features > 0 ? problem.sizes.clients * problem.sizes.rows : 0;
  torch::stable::parallel_for(0, rows, grain_of(problem.sizes.features), [&](int64_t begin, int64_t end) {
    PFL_CPU_KERNEL(cpn_route_forward)(problem, begin, end);
  });
}

void run_backward(const CpnRouteBackward& problem) {
  const RouteSizes& sizes = problem.sizes;
  if (sizes.features == 0) {
    return;
  }
  const int64_t rows = std::min(sizes.rows, problem.rows_per_part);
  torch::stable::parallel_for(0, sizes.clients * problem.parts, grain_of(rows * sizes.features),
                              [&](int64_t begin, int64_t end) {
                                std::vector<double> scratch(2 * sizes.features);
                                PFL_CPU_KERNEL(cpn_route_backward)(problem, begin, end, scratch.data());
                              });
  if (problem.gamma_parts != problem.grad_gamma) {
    torch::stable::parallel_for(
        0, sizes.clients, grain_of(problem.parts * sizes.features),
        [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(cpn_route_add_parts)(problem, begin, end); });
  }
}

std::tuple<Tensor, Tensor, Tensor> cpn_route_cpu(Tensor h, Tensor a, Tensor gamma, Tensor beta, double eps,
                                                 std::optional<Tensor> seed, double tau) {
  return cpn_route(h, a, gamma, beta, eps, seed, tau, run_forward);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cpn_route_backward_cpu(Tensor grad_global, Tensor grad_personal, Tensor h,
                                                                  Tensor a, Tensor gamma, Tensor beta, Tensor stats,
                                                                  std::optional<Tensor> seed, double tau) {
  return cpn_route_backward(grad_global, grad_personal, h, a, gamma, beta, stats, seed, tau, rows_per_part,
                            run_backward);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("cpn_route", TORCH_BOX(&pfl::cpn_route_cpu));
  m.impl("cpn_route_backward", TORCH_BOX(&pfl::cpn_route_backward_cpu));
}
