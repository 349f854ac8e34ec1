#include "ops/orthogonal_project/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> orthogonal_project_cuda(Tensor f_g, Tensor f_p, Tensor basis_g,
                                                                   Tensor basis_p, double alpha, bool relu) {
  const Launch launch("pfl_fast::orthogonal_project", f_g);
  return orthogonal_project(f_g, f_p, basis_g, basis_p, alpha, relu,
                            [&](const OrthogonalProject& problem) { launch(&pfl_cuda_orthogonal_project, problem); });
}

std::tuple<Tensor, Tensor> orthogonal_project_backward_cuda(std::optional<Tensor> v_g, std::optional<Tensor> v_p,
                                                            std::optional<Tensor> v_fused,
                                                            std::optional<Tensor> v_inner, Tensor g, Tensor p,
                                                            Tensor basis_g, Tensor basis_p, double alpha, bool relu,
                                                            bool needs_g, bool needs_p) {
  const Launch launch("pfl_fast::orthogonal_project_backward", g);
  return orthogonal_project_backward(
      v_g, v_p, v_fused, v_inner, g, p, basis_g, basis_p, alpha, relu, needs_g, needs_p,
      [&](const OrthogonalProjectBackward& problem) { launch(&pfl_cuda_orthogonal_project_backward, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("orthogonal_project", TORCH_BOX(&pfl::orthogonal_project_cuda));
  m.impl("orthogonal_project_backward", TORCH_BOX(&pfl::orthogonal_project_backward_cuda));
}
