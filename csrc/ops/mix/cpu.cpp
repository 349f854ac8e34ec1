#include "ops/mix/contract.h"

namespace pfl {
namespace {

struct CpuKernel {
  static constexpr int64_t kTile = kMixTile;

  explicit CpuKernel(const Tensor&) {
  }

  void forward(const MixForward& problem, const MixPlan& plan) {
    const std::vector<int64_t> first_tile = plan.first_tiles(kTile);
    torch::stable::parallel_for(0, first_tile.back(), kMixTilesPerThread, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(mix_forward)(problem, first_tile.data(), begin, end);
    });
  }

  void backward(const MixBackward& problem, const MixPlan& plan) {
    const std::vector<int64_t> first_tile = plan.first_tiles(kTile);
    torch::stable::parallel_for(0, first_tile.back(), kMixTilesPerThread, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(mix_backward)(problem, first_tile.data(), begin, end);
    });
    if (problem.partial) {
      sum_tiles(problem);
    }
  }

 private:
  // Adds in the order of the tiles, so the sum does not depend on thread timing.
  static void sum_tiles(const MixBackward& problem) {
    const MixTensors& in = problem.in;
    const double* next = problem.partial;
    for (int64_t t = 0; t < in.tensors; ++t) {
      for (int64_t row = 0; row < in.rows[t]; ++row) {
        for (int64_t tile = mix_tiles_per_row(in, t, kTile); tile > 0; --tile) {
          problem.grad_choice[row * in.segments + in.segment[t]] += *next++;
        }
      }
    }
  }
};

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  pfl::register_mix<pfl::CpuKernel>(m);
}
