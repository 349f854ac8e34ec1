// Register-tiled products of a few rows with a matrix, for `orthogonal_project`. Vectors lie across results, never
// along a sum, so all instruction sets add in the same order.
#pragma once

#include "ops/orthogonal_project/problem.h"

#include "cpu/simd/convert.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

constexpr int64_t kRows = kProjectRows;
constexpr int64_t kDepth = 128;  // terms per pass: both operands stay in cache
constexpr int64_t kBlock = 64;   // features of g and p per block of results

inline int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// 32 bytes: one AVX2 register, or two baseline registers.
template <class A>
struct Lanes {
  typedef A Vector __attribute__((vector_size(32)));
  typedef A Unaligned __attribute__((vector_size(32), aligned(alignof(A)), may_alias));
  static constexpr int64_t kCount = 32 / sizeof(A);
  static constexpr int64_t kPanel = 2 * kCount;  // columns of a tile
};

// out[r][0 .. kVectors * kCount) += sum_i left[r][i] * right[i * stride ..], for kGroup rows r.
template <class A, int kGroup, int kVectors>
void add_products(const A* const* left, const A* right, int64_t stride, int64_t depth, A* const* out) {
  using Vector = typename Lanes<A>::Vector;
  using Unaligned = typename Lanes<A>::Unaligned;
  Vector sum[kGroup][kVectors] = {};
  for (int64_t i = 0; i < depth; ++i) {
    Vector factor[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      factor[v] = *reinterpret_cast<const Unaligned*>(right + i * stride + v * Lanes<A>::kCount);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      const A value = left[r][i];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = sum[r][v] + value * factor[v];
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Unaligned* target = reinterpret_cast<Unaligned*>(out[r] + v * Lanes<A>::kCount);
      *target = *target + sum[r][v];
    }
  }
}

template <class A, int kVectors>
void add_products_of_rows(const A* const* left, int64_t rows, const A* right, int64_t stride, int64_t depth,
                          A* const* out) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    add_products<A, 4, kVectors>(left + r, right, stride, depth, out + r);
  }
  if (r + 2 <= rows) {
    add_products<A, 2, kVectors>(left + r, right, stride, depth, out + r);
    r += 2;
  }
  if (r < rows) {
    add_products<A, 1, kVectors>(left + r, right, stride, depth, out + r);
  }
}

// True if values must be widened before they are multiplied.
template <class T>
constexpr bool kNarrow = sizeof(T) < sizeof(accumulate_t<T>);

// Packs `depth` rows and `count` columns of a basis into rows of kPanel values, zero-padded.
template <class T>
void pack(const T* basis, int64_t rank, int64_t depth, int64_t count, accumulate_t<T>* panel) {
  using A = accumulate_t<T>;
  constexpr int64_t kPanel = Lanes<A>::kPanel;
  A buffer[kPanel];
  for (int64_t i = 0; i < depth; ++i) {
    const A* row = widen(basis + i * rank, count, buffer);
    for (int64_t k = 0; k < count; ++k) {
      panel[i * kPanel + k] = row[k];
    }
    for (int64_t k = count; k < kPanel; ++k) {
      panel[i * kPanel + k] = A(0);
    }
  }
}

#if defined(__GNUC__) && !defined(__clang__)
constexpr bool kHasTranspose8x8 = true;

// Transposes 8 x 8 values: out[k * stride + d] = row[d][k].
inline void transpose(const float* const* row, float* out, int64_t stride) {
  using Vector = Lanes<float>::Vector;
  using Unaligned = Lanes<float>::Unaligned;
  typedef int32_t Order __attribute__((vector_size(32)));
  Vector x[8], y[8];
#pragma GCC unroll 8
  for (int d = 0; d < 8; ++d) {
    x[d] = *reinterpret_cast<const Unaligned*>(row[d]);
  }
  // Exchanges single values, pairs and halves between rows at distance 1, 2 and 4.
#pragma GCC unroll 4
  for (int d = 0; d < 8; d += 2) {
    y[d] = __builtin_shuffle(x[d], x[d + 1], Order{0, 8, 2, 10, 4, 12, 6, 14});
    y[d + 1] = __builtin_shuffle(x[d], x[d + 1], Order{1, 9, 3, 11, 5, 13, 7, 15});
  }
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    const int from = d % 2 + 4 * (d / 2);
    x[from] = __builtin_shuffle(y[from], y[from + 2], Order{0, 1, 8, 9, 4, 5, 12, 13});
    x[from + 2] = __builtin_shuffle(y[from], y[from + 2], Order{2, 3, 10, 11, 6, 7, 14, 15});
  }
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    *reinterpret_cast<Unaligned*>(out + d * stride) =
        __builtin_shuffle(x[d], x[d + 4], Order{0, 1, 2, 3, 8, 9, 10, 11});
    *reinterpret_cast<Unaligned*>(out + (d + 4) * stride) =
        __builtin_shuffle(x[d], x[d + 4], Order{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

#else
constexpr bool kHasTranspose8x8 = false;
void transpose(const float* const*, float*, int64_t) {
}
#endif

// Packs the transpose of `count` rows and `depth` columns of a basis: `depth` rows of kPanel values, zero-padded.
template <class T>
void pack_transposed(const T* basis, int64_t rank, int64_t count, int64_t depth, accumulate_t<T>* panel) {
  using A = accumulate_t<T>;
  constexpr int64_t kPanel = Lanes<A>::kPanel;
  A buffers[kPanel][kDepth];
  const A* row[kPanel];
  for (int64_t d = 0; d < kPanel; ++d) {
    row[d] = buffers[d];
    if (d < count) {
      row[d] = widen(basis + d * rank, depth, buffers[d]);
    } else {
      for (int64_t k = 0; k < depth; ++k) {
        buffers[d][k] = A(0);
      }
    }
  }
  int64_t k = 0;
  if constexpr (kHasTranspose8x8 && sizeof(A) == sizeof(float)) {
    for (; k + 8 <= depth; k += 8) {
      for (int64_t d = 0; d < kPanel; d += 8) {
        const A* at[8];
        for (int i = 0; i < 8; ++i) {
          at[i] = row[d + i] + k;
        }
        transpose(at, panel + k * kPanel + d, kPanel);
      }
    }
  }
  for (; k < depth; ++k) {
    for (int64_t d = 0; d < kPanel; ++d) {
      panel[k * kPanel + d] = row[d][k];
    }
  }
}

}  // namespace
}  // namespace PFL_CAPABILITY
}  // namespace pfl
