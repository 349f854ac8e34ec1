// Products of few rows with a matrix, of which a tile of sums is kept in registers: the small kernels under `linear`.
#pragma once

#include "linear_kernel.h"

#include "convert.h"
#include "scaled_rows.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Sums that registers hold: of a tile of dot products, and of one of scaled rows.
#if defined(__AVX512F__)
constexpr int kDotRows = 6, kDotOutputs = 4;
constexpr int kRows = 6, kVectors = 4;
#elif defined(__AVX2__)
constexpr int kDotRows = 3, kDotOutputs = 2;
constexpr int kRows = 6, kVectors = 2;
#else
constexpr int kDotRows = 2, kDotOutputs = 1;
constexpr int kRows = 6, kVectors = 2;
#endif

#if defined(__GNUC__) && !defined(__clang__)
// Neighbouring runs of kHalf lanes in a and then b, each added to the run behind it: half as many lanes for each sum.
template <class A, int kHalf>
inline __attribute__((always_inline)) typename Lanes<A>::Vector add_halves(const typename Lanes<A>::Vector& a,
                                                                           const typename Lanes<A>::Vector& b) {
  typename Lanes<A>::Integers low = {}, high = {};
#pragma GCC unroll 16
  for (int j = 0; j < Lanes<A>::kCount; ++j) {
    low[j] = j / kHalf * 2 * kHalf + j % kHalf;
    high[j] = low[j] + kHalf;
  }
  return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}
#else
template <class A, int kHalf>
inline typename Lanes<A>::Vector add_halves(const typename Lanes<A>::Vector& a, const typename Lanes<A>::Vector& b) {
  typename Lanes<A>::Vector sum = {};
  for (int j = 0; j < Lanes<A>::kCount; ++j) {
    const int low = j / kHalf * 2 * kHalf + j % kHalf, high = low + kHalf;
    constexpr int kCount = Lanes<A>::kCount;
    sum[j] = (low < kCount ? a[low] : b[low - kCount]) + (high < kCount ? a[high] : b[high - kCount]);
  }
  return sum;
}
#endif

// The totals of kSums sums of kStep lanes each, lanes added up by halves; side by side if kSums is kCount.
template <class A, int kSums>
inline __attribute__((always_inline)) typename Lanes<A>::Vector add_up_lanes(const A* sums) {
  using L = Lanes<A>;
  if constexpr (kSums > 1) {
    return add_halves<A, L::kCount / kSums>(add_up_lanes<A, kSums / 2>(sums),
                                            add_up_lanes<A, kSums / 2>(sums + kSums / 2 * L::kStep));
  } else {
    typename L::Vector part[L::kParts];
#pragma GCC unroll 4
    for (int i = 0; i < L::kParts; ++i) {
      part[i] = L::load(sums + i * L::kCount);
    }
#pragma GCC unroll 2
    for (int half = L::kParts / 2; half > 0; half /= 2) {
#pragma GCC unroll 2
      for (int i = 0; i < half; ++i) {
        part[i] = part[i] + part[i + half];
      }
    }
    return part[0];
  }
}

template <class A>
A* aligned(void* scratch) {
  return reinterpret_cast<A*>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls use(constant) for a number from 1 to 6.
template <class Use>
inline __attribute__((always_inline)) void with_constant(int64_t count, Use use) {
  switch (count) {
    case 1:
      return use(Constant<1>{});
    case 2:
      return use(Constant<2>{});
    case 3:
      return use(Constant<3>{});
    case 4:
      return use(Constant<4>{});
    case 5:
      return use(Constant<5>{});
    default:
      return use(Constant<6>{});
  }
}

// `count` things in as few groups of at most `most` as there can be, of nearly equal size: 10 rows are 5 and 5, as a
// tile of 4 keeps the processor less busy. Calls use(first, size).
template <class Use>
inline __attribute__((always_inline)) void for_groups(int64_t count, int64_t most, Use use) {
  const int64_t groups = linear_blocks(count, most);
  for (int64_t group = 0, first = 0; group < groups; ++group) {
    const int64_t size = (count - first) / (groups - group);
    use(first, size);
    first += size;
  }
}

// values[0 .. room): a row widened, zeros behind its last value.
template <class T, class A>
void copy_row(const T* row, int64_t count, int64_t room, A* values) {
  const A* wide = widen(row, count, values);
  if (wide != values) {
    std::memcpy(values, wide, static_cast<size_t>(count) * sizeof(A));
  }
  for (int64_t j = count; j < room; ++j) {
    values[j] = A(0);
  }
}

// sums[r][o] += x[r] . w[o] for kGroup rows and kOut outputs, where each sum has its own kStep lanes.
//   x: [steps, kGroup, kStep]; w: one pointer per output; sums: [kGroup, kLinearOutputs, kStep]
template <class A, int kGroup, int kOut>
void add_dots(const A* x, const A* const* w, int64_t steps, bool first, A* sums) {
  using L = Lanes<A>;
  constexpr int kParts = L::kParts;
  const A* row[kOut];
  typename L::Vector sum[kGroup][kOut * kParts];
#pragma GCC unroll 8
  for (int o = 0; o < kOut; ++o) {
    row[o] = w[o];
#pragma GCC unroll 8
    for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const A* before = sums + (r * kLinearOutputs + o) * L::kStep + part * L::kCount;
        sum[r][o * kParts + part] = first ? typename L::Vector{} : L::load(before);
      }
    }
  }
  for (int64_t i = 0; i < steps; ++i, x += kGroup * L::kStep) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      typename L::Vector weight[kOut];
#pragma GCC unroll 8
      for (int o = 0; o < kOut; ++o) {
        weight[o] = L::load(row[o] + i * L::kStep + part * L::kCount);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kGroup; ++r) {
        const typename L::Vector value = L::load(x + r * L::kStep + part * L::kCount);
#pragma GCC unroll 8
        for (int o = 0; o < kOut; ++o) {
          sum[r][o * kParts + part] = sum[r][o * kParts + part] + value * weight[o];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOut; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        L::store(sum[r][o * kParts + part], sums + (r * kLinearOutputs + o) * L::kStep + part * L::kCount);
      }
    }
  }
}

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
