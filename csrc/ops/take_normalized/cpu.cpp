#include "ops/take_normalized/contract.h"

namespace pfl {
namespace {

// Returns true if computing every value is faster than a lookup table. If results have the memory order of the images,
// two vector divisions are faster than scalar lookups; half types would also have to be rounded, and planar results
// would need strided loads.
bool computes_every_value(const TakeNormalized& p) {
  const bool in_order = p.channels == 1 || p.channels_last;
  return in_order && p.channels <= kMaxChannelsInOrder && (p.dtype == Float::kFloat || p.dtype == Float::kDouble);
}

Tensor take_normalized_cpu(Tensor images, Tensor index, Tensor mean, Tensor std, bool channels_last, ScalarType dtype) {
  return take_normalized(images, index, mean, std, channels_last, dtype, [](const TakeNormalized& problem) {
    const int64_t numel = problem.pixels * problem.channels;
    if (numel == 0 || problem.batch == 0) {
      return;
    }
    std::vector<double> table;
    if (!computes_every_value(problem)) {
      table.resize(problem.channels * kByteValues);  // sized for the widest type
      PFL_CPU_KERNEL(take_normalized_table)(problem, table.data());
    }
    const int64_t grain = (kTakeValuesPerThread + numel - 1) / numel;
    torch::stable::parallel_for(0, problem.batch, grain, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(take_normalized)(problem, table.empty() ? nullptr : table.data(), begin, end);
    });
  });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("take_normalized", TORCH_BOX(&pfl::take_normalized_cpu));
}
