// Transposes of squares of vectors. In namespace PFL_CAPABILITY for the reason given in cpu/simd/convert.h.
#pragma once

#include <utility>

#include "cpu/simd/lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

#if defined(__GNUC__) && !defined(__clang__)
// Exchanges lanes between vectors at distance kStep, 2 * kStep, ... The lane numbers must be constants of the compiler.
template <class A, int kStep, int... kLane>
inline __attribute__((always_inline)) void exchange(typename Lanes<A>::Vector* square,
                                                    std::integer_sequence<int, kLane...> lanes) {
  using Integers = typename Lanes<A>::Integers;
  constexpr int kCount = sizeof...(kLane);
  if constexpr (kStep < kCount) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      if (!(i & kStep)) {
        const auto upper = square[i], lower = square[i + kStep];
        square[i] = __builtin_shuffle(upper, lower, Integers{(kLane & kStep ? kCount + kLane - kStep : kLane)...});
        square[i + kStep] =
            __builtin_shuffle(upper, lower, Integers{(kLane & kStep ? kCount + kLane : kLane + kStep)...});
      }
    }
    exchange<A, 2 * kStep>(square, lanes);
  }
}
#endif

// Transposes a square of vectors: lane i of vector j becomes lane j of vector i.
template <class A>
inline __attribute__((always_inline)) void transpose(typename Lanes<A>::Vector* square) {
  constexpr int kCount = static_cast<int>(Lanes<A>::kCount);
#if defined(__GNUC__) && !defined(__clang__)
  exchange<A, 1>(square, std::make_integer_sequence<int, kCount>{});
#else
  A values[kCount][kCount];
  std::memcpy(values, square, sizeof values);
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kCount; ++j) {
      square[i][j] = values[j][i];
    }
  }
#endif
}

// out[k * stride + r] = row[r][k] for r < Lanes<A>::kCount and k < count.
template <class A>
void transpose_rows(const A* const* row, int64_t count, A* out, int64_t stride) {
  constexpr int64_t kCount = Lanes<A>::kCount;
  for (int64_t k = 0; k < count; k += kCount) {
    typename Lanes<A>::Vector square[kCount];
    const int64_t columns = min(kCount, count - k);
    for (int64_t r = 0; r < kCount; ++r) {
      square[r] = Lanes<A>::load(row[r] + k, columns);
    }
    transpose<A>(square);
    for (int64_t i = 0; i < columns; ++i) {
      Lanes<A>::store(square[i], out + (k + i) * stride);
    }
  }
}

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
