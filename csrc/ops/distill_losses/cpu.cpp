// `distill_losses` on CPU tensors: splits the work over threads. The kernels are in cpu_kernel.cpp.
#include "ops/distill_losses/contract.h"

namespace pfl {
namespace {

constexpr int64_t kLogitsPerThread = 1 << 13;  // with fewer, waking a thread costs more than it saves

int64_t grain(int64_t logits) {
  return std::max<int64_t>(1, kLogitsPerThread / std::max<int64_t>(1, logits));
}

// Computes the means; partial sums are added in the order of the parts.
template <class A>
void finish(const DistillForward& p) {
  const int64_t parts = distill_parts(p.in.rows);
  for (int64_t client = 0; client < p.in.clients; ++client) {
    for (int term = 0; term < kDistillTerms; ++term) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) {
        sum += p.partial[(client * parts + part) * kDistillTerms + term];
      }
      static_cast<A*>(p.out[term])[client] = static_cast<A>(sum / static_cast<double>(p.in.rows));
    }
  }
}

DistillResults distill_losses_cpu(Tensor y_g, Tensor y_p, Tensor y_u, Tensor target) {
  return distill_losses(y_g, y_p, y_u, target, [](const DistillForward& p) {
    const auto kernel = PFL_CPU_KERNEL(distill_losses_forward);
    const int64_t part_rows = std::min(p.in.rows, kDistillPartRows);
    torch::stable::parallel_for(0, p.in.clients * distill_parts(p.in.rows), grain(part_rows * p.in.classes),
                                [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
    p.in.dtype == Float::kDouble ? finish<double>(p) : finish<float>(p);
  });
}

std::tuple<Tensor, Tensor, Tensor> distill_losses_backward_cpu(Tensor grad_gce, Tensor grad_lce, Tensor grad_ent,
                                                               Tensor grad_dis, Tensor y_g, Tensor y_p, Tensor y_u,
                                                               Tensor target) {
  return distill_losses_backward(
      {grad_gce, grad_lce, grad_ent, grad_dis}, y_g, y_p, y_u, target, [](const DistillBackward& p) {
        const auto kernel = PFL_CPU_KERNEL(distill_losses_backward);
        torch::stable::parallel_for(0, p.in.clients * p.in.rows, grain(p.in.classes),
                                    [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
      });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("distill_losses", TORCH_BOX(&pfl::distill_losses_cpu));
  m.impl("distill_losses_backward", TORCH_BOX(&pfl::distill_losses_backward_cpu));
}
