// `aggregate` on CPU tensors: splits the work over threads. The kernels are in cpu_kernel.cpp.

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <mutex>

#include "ops/aggregate/contract.h"

namespace pfl {
namespace {

struct CpuKernel {
  static constexpr int64_t kMaxParts = kAggregateParts;

  explicit CpuKernel(const Tensor&) {
  }

  void prepare_rows(AggregateRows&, const AggregatePlan&) {
  }

  // Asks for huge pages: the first write to each small page of a large result takes longer than its sums.
  static void prepare_result(const Tensor& out) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
    const uintptr_t data = reinterpret_cast<uintptr_t>(out.mutable_data_ptr());
    const uintptr_t size = static_cast<uintptr_t>(out.numel()) * out.element_size();
    const uintptr_t begin = (data + kHugePage - 1) / kHugePage * kHugePage, end = (data + size) / kHugePage * kHugePage;
    if (end > begin) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // may fail: small pages work, too
    }
#endif
  }

  void forward(const AggregateForward& problem) {
    const auto kernel = PFL_CPU_KERNEL(aggregate_forward);
    const std::vector<int64_t> first_tile = count_tiles(problem.sizes, problem.rows);
    const int64_t counted = problem.nonfinite ? problem.sizes.groups * problem.sizes.clients : 0;
    std::mutex counting;
    torch::stable::parallel_for(0, first_tile.back(), tiles_per_thread(problem.sizes), [&](int64_t begin, int64_t end) {
      std::vector<int64_t> counts(counted);
      kernel(problem, first_tile.data(), begin, end, problem.nonfinite ? counts.data() : nullptr);
      const std::lock_guard<std::mutex> lock(counting);
      for (int64_t i = 0; i < counted; ++i) {
        problem.nonfinite[i] += counts[i];
      }
    });
  }

  void backward(const AggregateBackward& problem) {
    const auto kernel = PFL_CPU_KERNEL(aggregate_backward);
    const std::vector<int64_t> first_tile = count_tiles(problem.sizes, problem.rows);
    const int64_t tiles_per_part = std::max<int64_t>(1, first_tile.back() / problem.parts);
    const int64_t grain = (tiles_per_thread(problem.sizes) + tiles_per_part - 1) / tiles_per_part;
    torch::stable::parallel_for(0, problem.parts, grain,
                                [&](int64_t begin, int64_t end) { kernel(problem, first_tile.data(), begin, end); });
    if (problem.grad_weights) {
      sum_parts(problem);
    }
  }

 private:
  static std::vector<int64_t> count_tiles(const AggregateSizes& sizes, const AggregateRows& rows) {
    std::vector<int64_t> first_tile{0};
    for (int64_t t = 0; t < sizes.tensors; ++t) {
      first_tile.push_back(first_tile.back() + (rows.numel[t] + kAggregateTile - 1) / kAggregateTile);
    }
    return first_tile;
  }

  static int64_t tiles_per_thread(const AggregateSizes& sizes) {
    const int64_t work_per_tile = kAggregateTile * std::max<int64_t>(1, sizes.clients * sizes.mixtures);
    return std::max<int64_t>(1, kAggregateWorkPerThread / work_per_tile);
  }

  // Adds in the order of the parts, so the sum does not depend on thread timing.
  static void sum_parts(const AggregateBackward& problem) {
    const int64_t pairs = problem.sizes.groups * problem.sizes.mixtures * problem.sizes.clients;
    for (int64_t part = 1; part < problem.parts; ++part) {
      for (int64_t i = 0; i < pairs; ++i) {
        problem.grad_weights[i] += problem.grad_weights[part * pairs + i];
      }
    }
  }
};

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  pfl::register_aggregate<pfl::CpuKernel>(m);
}
