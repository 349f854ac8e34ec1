// The small kernel under products of matrices whose results lie side by side: a tile of sums that is kept in registers.
#pragma once

#include "lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// A tile of sums over i of left[i] * right[i], where left[i] is one value for each of kGroup rows and right[i] a row of
// kWide vectors: lanes lie across results.
template <class A, int kGroup, int kWide>
struct ScaledRows {
  using L = Lanes<A>;
  typename L::Vector sum[kGroup][kWide];

  inline __attribute__((always_inline)) void clear() {
#pragma GCC unroll 32
    for (int i = 0; i < kGroup * kWide; ++i) {
      sum[i / kWide][i % kWide] = typename L::Vector{};
    }
  }

  inline __attribute__((always_inline)) void load(const A* values, int64_t pitch) {
#pragma GCC unroll 32
    for (int i = 0; i < kGroup * kWide; ++i) {
      sum[i / kWide][i % kWide] = L::load(values + i / kWide * pitch + i % kWide * L::kCount);
    }
  }

  inline __attribute__((always_inline)) void store(A* values, int64_t pitch) const {
#pragma GCC unroll 32
    for (int i = 0; i < kGroup * kWide; ++i) {
      L::store(sum[i / kWide][i % kWide], values + i / kWide * pitch + i % kWide * L::kCount);
    }
  }

  // left[r * left_row + i * left_step], i < count
  inline __attribute__((always_inline)) void add(const A* left, int64_t left_row, int64_t left_step, const A* right,
                                                 int64_t right_step, int64_t count) {
    for (int64_t i = 0; i < count; ++i, left += left_step, right += right_step) {
      typename L::Vector factor[kWide];
#pragma GCC unroll 8
      for (int v = 0; v < kWide; ++v) {
        factor[v] = L::load(right + v * L::kCount);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kGroup; ++r) {
        const typename L::Vector value = L::splat(left + r * left_row);
#pragma GCC unroll 8
        for (int v = 0; v < kWide; ++v) {
          sum[r][v] = sum[r][v] + value * factor[v];
        }
      }
    }
  }
};

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
