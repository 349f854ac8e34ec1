// Building blocks of the CPU kernels of `linear`: dot-product tiles, transposes, row packing and prefetching.
#pragma once

#include "linear_kernel.h"

#include "convert.h"
#include "register_tile.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Register tile sizes: rows and outputs of a tile of dot products, vectors of a RegisterTile.
#if defined(__AVX512F__)
constexpr int kDotRows = 6, kDotOutputs = 4;
constexpr int kVectors = 4;
#elif defined(__AVX2__)
constexpr int kDotRows = 3, kDotOutputs = 2;
constexpr int kVectors = 2;
#else
constexpr int kDotRows = 2, kDotOutputs = 1;
constexpr int kVectors = 2;
#endif
constexpr int kRows = kLinearTileRows;
constexpr int kSparseRows = kLinearSparseTileRows;    // smaller tiles multiply fewer zeros
constexpr int64_t kPrefetchBytes = int64_t{1} << 20;  // above this size, prefetch weights

#if defined(__GNUC__) && !defined(__clang__)
// Adds neighbouring runs of kHalf lanes of a, then of b: each sum then has half as many lanes.
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

// Interleaves the lower halves of a and b, or their upper halves.
template <class A, bool kUpper>
inline __attribute__((always_inline)) typename Lanes<A>::Vector interleave(const typename Lanes<A>::Vector& a,
                                                                           const typename Lanes<A>::Vector& b) {
  typename Lanes<A>::Integers from = {};
#pragma GCC unroll 16
  for (int j = 0; j < Lanes<A>::kCount; ++j) {
    from[j] = j / 2 + (j % 2 ? Lanes<A>::kCount : 0) + (kUpper ? Lanes<A>::kCount / 2 : 0);
  }
  return __builtin_shuffle(a, b, from);
}
#else
template <class A, bool kUpper>
inline typename Lanes<A>::Vector interleave(const typename Lanes<A>::Vector& a, const typename Lanes<A>::Vector& b) {
  typename Lanes<A>::Vector lanes = {};
  for (int j = 0; j < Lanes<A>::kCount; ++j) {
    lanes[j] = (j % 2 ? b : a)[j / 2 + (kUpper ? Lanes<A>::kCount / 2 : 0)];
  }
  return lanes;
}

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

// Reduces kSums sums of kStep lanes each by repeated halving; with kSums == kCount lane i holds total i.
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

// to[j * to_row + i] = from[i * from_row + j] for kCount rows and columns.
template <class A>
inline void transpose(const A* from, int64_t from_row, A* to, int64_t to_row) {
  using L = Lanes<A>;
  constexpr int kCount = L::kCount;
  typename L::Vector row[kCount], next[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    row[i] = L::load(from + i * from_row);
  }
  // Each pass moves one bit of a value's row index into its lane index.
#pragma GCC unroll 4
  for (int bit = 1; bit < kCount; bit *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      next[2 * i] = interleave<A, false>(row[i], row[i + kCount / 2]);
      next[2 * i + 1] = interleave<A, true>(row[i], row[i + kCount / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      row[i] = next[i];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    L::store(row[i], to + i * to_row);
  }
}

// Prefetches kCount values; addresses past the end of an allocation are harmless.
template <int64_t kCount, class T>
inline void prefetch_row(const T* values) {
  for (int64_t i = 0; i < kCount; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(values + i, 0, 2);
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

// Calls use(Constant<count>) for count from 1 to 6.
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

// Splits `count` items into the fewest groups of at most `max_size`, of nearly equal size: 10 rows become 5 and 5,
// because a tile of 4 uses the multipliers less. Calls use(first, size).
template <class Use>
inline __attribute__((always_inline)) void for_groups(int64_t count, int64_t max_size, Use use) {
  const int64_t groups = linear_blocks(count, max_size);
  for (int64_t group = 0, first = 0; group < groups; ++group) {
    const int64_t size = (count - first) / (groups - group);
    use(first, size);
    first += size;
  }
}

// values[0 .. padded) = widened row followed by zeros.
template <class T, class A>
void copy_row(const T* row, int64_t count, int64_t padded, A* values) {
  const A* wide = widen(row, count, values);
  if (wide != values) {
    std::memcpy(values, wide, static_cast<size_t>(count) * sizeof(A));
  }
  for (int64_t j = count; j < padded; ++j) {
    values[j] = A(0);
  }
}

// Number of nonzero values of a client's [rows, columns].
template <class T>
int64_t count_nonzero(const LinearRows& tensor, int64_t client, int64_t rows, int64_t columns) {
  using A = accumulate_t<T>;
  constexpr int64_t kTile = 64;
  const T* from = static_cast<const T*>(tensor.data) + client * tensor.client;
  A buffer[kTile];
  int64_t found = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < columns; k += kTile) {
      const int64_t count = min(kTile, columns - k);
      const A* values = widen(from + r * tensor.row + k, count, buffer);
      int32_t nonzero = 0;
      for (int64_t i = 0; i < count; ++i) {
        nonzero += values[i] != A(0);
      }
      found += nonzero;
    }
  }
  return found;
}

// sums[r][o] += x[r] . w[o] for kGroup rows and kOut outputs; each sum has kStep lanes.
//   x: [steps, kGroup, kStep]; w: one pointer per output; sums: [kGroup, kLinearDotOutputs, kStep]
// prefetch_distance: prefetches the weights this many elements ahead, unless 0.
template <class A, int kGroup, int kOut>
void add_dots(const A* x, const A* const* w, int64_t steps, bool first, A* sums, int64_t prefetch_distance) {
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
        const A* before = sums + (r * kLinearDotOutputs + o) * L::kStep + part * L::kCount;
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
        if (prefetch_distance && part == 0) {
          __builtin_prefetch(row[o] + prefetch_distance + i * L::kStep);
        }
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
        L::store(sum[r][o * kParts + part], sums + (r * kLinearDotOutputs + o) * L::kStep + part * L::kCount);
      }
    }
  }
}

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
