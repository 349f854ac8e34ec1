// `gumbel_mask` on CPU tensors: splits the work over threads. The kernels are in cpu_kernel.cpp.
#include "ops/gumbel_mask/contract.h"

namespace pfl {
namespace {

template <class Problem>
void run(void (*kernel)(const Problem&, int64_t, int64_t), const Problem& problem, int64_t tiles) {
  torch::stable::parallel_for(0, tiles, kGumbelTilesPerThread,
                              [&](int64_t begin, int64_t end) { kernel(problem, begin, end); });
}

std::tuple<Tensor, Tensor, Tensor> gumbel_mask_cpu(Tensor z, Tensor logits, std::optional<Tensor> seed, double tau,
                                                   double threshold, bool hard) {
  return gumbel_mask(z, logits, seed, tau, threshold, hard, [](const GumbelMaskForward& problem) {
    run(PFL_CPU_KERNEL(gumbel_mask_forward), problem, problem.clients * gumbel_tiles(problem.numel));
  });
}

std::tuple<Tensor, Tensor> gumbel_mask_backward_cpu(Tensor grad_selected, Tensor grad_rest, Tensor z, Tensor noisy,
                                                    double tau, double threshold, bool hard) {
  return gumbel_mask_backward(grad_selected, grad_rest, z, noisy, tau, threshold, hard,
                              [](const GumbelMaskBackward& problem) {
                                run(PFL_CPU_KERNEL(gumbel_mask_backward), problem, gumbel_tiles(problem.numel));
                              });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("gumbel_mask", TORCH_BOX(&pfl::gumbel_mask_cpu));
  m.impl("gumbel_mask_backward", TORCH_BOX(&pfl::gumbel_mask_backward_cpu));
}
