// `orthogonal_project` on CPU tensors: splits the work over threads. The kernels are in cpu_kernel.cpp.
#include "ops/orthogonal_project/contract.h"

namespace pfl {
namespace {

constexpr int64_t kWorkPerThread = 1 << 17;  // multiply-adds below which waking a thread costs more than it saves

template <class Problem, class Kernel>
void run_blocks(const Problem& problem, Kernel kernel) {
  const int64_t samples = std::min(kProjectRows, problem.sizes.samples);
  const int64_t work = 2 * samples * problem.sizes.features * (problem.of_g.rank + problem.of_p.rank);
  torch::stable::parallel_for(0, problem.sizes.clients * project_row_blocks(problem.sizes.samples),
                              std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work)),
                              [&](int64_t begin, int64_t end) { kernel(problem, begin, end); });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> orthogonal_project_cpu(Tensor f_g, Tensor f_p, Tensor basis_g,
                                                                  Tensor basis_p, double alpha, bool relu) {
  return orthogonal_project(f_g, f_p, basis_g, basis_p, alpha, relu, [](const OrthogonalProject& problem) {
    run_blocks(problem, PFL_CPU_KERNEL(orthogonal_project));
  });
}

std::tuple<Tensor, Tensor> orthogonal_project_backward_cpu(std::optional<Tensor> v_g, std::optional<Tensor> v_p,
                                                           std::optional<Tensor> v_fused, std::optional<Tensor> v_inner,
                                                           Tensor g, Tensor p, Tensor basis_g, Tensor basis_p,
                                                           double alpha, bool relu, bool needs_g, bool needs_p) {
  return orthogonal_project_backward(v_g, v_p, v_fused, v_inner, g, p, basis_g, basis_p, alpha, relu, needs_g, needs_p,
                                     [](const OrthogonalProjectBackward& problem) {
                                       run_blocks(problem, PFL_CPU_KERNEL(orthogonal_project_backward));
                                     });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("orthogonal_project", TORCH_BOX(&pfl::orthogonal_project_cpu));
  m.impl("orthogonal_project_backward", TORCH_BOX(&pfl::orthogonal_project_backward_cpu));
}
