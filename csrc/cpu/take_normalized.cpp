#include "take_normalized.h"

#include <torch/csrc/stable/library.h>

namespace pfl {
namespace {

constexpr int64_t kValuesPerThread = 1 << 14;  // fewer, and waking a thread costs more than it saves

Tensor take_normalized_cpu(Tensor images, Tensor index, Tensor mean, Tensor std, bool channels_last, ScalarType dtype) {
  return take_normalized(images, index, mean, std, channels_last, dtype, [](const TakeNormalized& problem) {
    const int64_t numel = problem.pixels * problem.channels;
    if (numel == 0 || problem.batch == 0) {
      return;
    }
    std::vector<double> table;
    if (!take_normalized_computes(problem)) {
      table.resize(problem.channels * kByteValues);  // room for the widest type
      PFL_CPU_KERNEL(take_normalized_table)(problem, table.data());
    }
    const int64_t grain = (kValuesPerThread + numel - 1) / numel;
    torch::stable::parallel_for(0, problem.batch, grain, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(take_normalized)(problem, table.data(), begin, end);
    });
  });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("take_normalized", TORCH_BOX(&pfl::take_normalized_cpu));
}
