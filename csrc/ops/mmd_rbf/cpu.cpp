// `mmd_rbf` on CPU tensors: splits the work over threads. The kernels are in cpu_kernel.cpp.
#include "ops/mmd_rbf/contract.h"

namespace pfl {
namespace {

constexpr int64_t kWorkPerThread = 1 << 17;  // squared differences below which waking a thread costs more than it saves
constexpr int64_t kPairsPerThread = 1 << 11;

int64_t grain(int64_t enough, int64_t work) {
  return std::max<int64_t>(1, enough / std::max<int64_t>(1, work));
}

// Adds in the order of the rows.
template <class A>
void sum_rows(const MmdRbf& p) {
  const A pairs = static_cast<A>(p.points * p.points);
  for (int64_t client = 0; client < p.clients; ++client) {
    A sum = 0;
    for (int64_t i = 0; i < p.points; ++i) {
      sum += static_cast<const A*>(p.sums)[client * p.points + i];
    }
    static_cast<A*>(p.out)[client] = sum / pairs;
  }
}

void forward(const MmdRbf& p) {
  const int64_t per_block = kMmdRows * p.points * p.features;
  torch::stable::parallel_for(0, p.clients * mmd_row_blocks(2 * p.points), grain(kWorkPerThread, per_block),
                              [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_distances)(p, begin, end); });
  torch::stable::parallel_for(0, p.clients * p.points, grain(kPairsPerThread, p.points * p.count),
                              [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_rows)(p, begin, end); });
  p.dtype == Float::kDouble ? sum_rows<double>(p) : sum_rows<float>(p);
}

void backward(const MmdRbfBackward& p) {
  const int64_t blocks = p.clients * mmd_row_blocks(p.points);
  torch::stable::parallel_for(p.grad_x ? 0 : blocks, p.grad_y ? 2 * blocks : blocks,
                              grain(kWorkPerThread, kMmdRows * p.points * p.features),
                              [&](int64_t begin, int64_t end) { PFL_CPU_KERNEL(mmd_rbf_backward)(p, begin, end); });
}

std::tuple<Tensor, Tensor> mmd_rbf_cpu(Tensor x, Tensor y, std::vector<double> bandwidths) {
  return mmd_rbf(x, y, bandwidths, forward);
}

std::tuple<Tensor, Tensor> mmd_rbf_backward_cpu(Tensor grad, Tensor x, Tensor y, Tensor weights, bool needs_x,
                                                bool needs_y) {
  return mmd_rbf_backward(grad, x, y, weights, needs_x, needs_y, backward);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("mmd_rbf", TORCH_BOX(&pfl::mmd_rbf_cpu));
  m.impl("mmd_rbf_backward", TORCH_BOX(&pfl::mmd_rbf_backward_cpu));
}
