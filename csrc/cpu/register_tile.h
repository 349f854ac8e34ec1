// Register tile of a matrix product: the micro-kernel of `linear` and of the Winograd convolution.
#pragma once

#include "lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Offset in elements of term i of a sum: strided, or gathered through an index list.
struct StridedIndex {
  int64_t step;
  inline int64_t operator()(int64_t i) const {
    return i * step;
  }
};
struct GatherIndex {
  const int32_t* at;
  int64_t first, step;
  inline int64_t operator()(int64_t i) const {
    return (at[i] - first) * step;
  }
};

// kGroup x kWide vectors of sums over i of left[i] * right[i]: left[i] has one value per row, which is broadcast, and
// right[i] has kWide vectors. Lanes lie across results.
template <class A, int kGroup, int kWide>
struct RegisterTile {
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

  // Accumulates left[r * left_row + left_at(i)] * right[right_at(i) ..] for i < count.
  template <class LeftAt, class RightAt>
  inline __attribute__((always_inline)) void add(const A* left, int64_t left_row, LeftAt left_at, const A* right,
                                                 RightAt right_at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const A *values = left + left_at(i), *factors = right + right_at(i);
      typename L::Vector factor[kWide];
#pragma GCC unroll 8
      for (int v = 0; v < kWide; ++v) {
        factor[v] = L::load(factors + v * L::kCount);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kGroup; ++r) {
        const typename L::Vector value = L::broadcast(values + r * left_row);
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
