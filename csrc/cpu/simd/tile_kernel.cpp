// Register tiles of the products in tile.h, compiled once per instruction set into namespace PFL_CAPABILITY.
#include "cpu/simd/tile.h"

#include "cpu/simd/lanes.h"

namespace pfl {
namespace PFL_CAPABILITY {
namespace {

// Rows and vectors of the largest register tile.
constexpr int kProductRows = 6;
#if defined(__AVX512F__)
constexpr int kProductVectors = 4;
#else
constexpr int kProductVectors = 2;
#endif

// out[r][..] = sum_k left(r, k) * right(k, ..), added to out if `adds`, for kRows rows and kVectors vectors of columns.
// Lanes lie across columns and every sum has one order. Columns of right and out are contiguous.
template <class A, int kRows, int kVectors>
void multiply_tile(Matrix<const A> left, Matrix<const A> right, int64_t terms, Matrix<A> out, bool adds) {
  using L = Lanes<A>;
  typename L::Vector sum[kRows][kVectors] = {};
  if (adds) {
#pragma GCC unroll 32
    for (int i = 0; i < kRows * kVectors; ++i) {
      sum[i / kVectors][i % kVectors] = L::load(out.data + i / kVectors * out.row + i % kVectors * L::kCount);
    }
  }
  for (int64_t k = 0; k < terms; ++k) {
    const A *values = left.data + k * left.column, *factors = right.data + k * right.row;
    typename L::Vector factor[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      factor[v] = L::load(factors + v * L::kCount);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename L::Vector value = L::broadcast(values + r * left.row);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = multiply_add(value, factor[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows * kVectors; ++i) {
    L::store(sum[i / kVectors][i % kVectors], out.data + i / kVectors * out.row + i % kVectors * L::kCount);
  }
}

template <class A, int kVectors>
void multiply_columns(Matrix<const A> left, Matrix<const A> right, int64_t rows, int64_t terms, Matrix<A> out,
                      bool adds) {
  const auto rest = [&](auto tile, int64_t count) {
    for (; rows >= count; rows -= count) {
      tile(left, right, terms, out, adds);
      left.data += count * left.row;
      out.data += count * out.row;
    }
  };
  rest(multiply_tile<A, kProductRows, kVectors>, kProductRows);
  rest(multiply_tile<A, 4, kVectors>, 4);
  rest(multiply_tile<A, 2, kVectors>, 2);
  rest(multiply_tile<A, 1, kVectors>, 1);
}

template <class A>
void multiply_matrices(Matrix<const A> left, Matrix<const A> right, int64_t rows, int64_t terms, int64_t columns,
                       Matrix<A> out, bool adds) {
  constexpr int64_t kWide = kProductVectors * Lanes<A>::kCount, kHalf = kWide / 2;
  const auto at = [](auto matrix, int64_t column) {
    matrix.data += column;
    return matrix;
  };
  int64_t first = 0;
  for (; first + kWide <= columns; first += kWide) {
    multiply_columns<A, kProductVectors>(left, at(right, first), rows, terms, at(out, first), adds);
  }
  for (; first + kHalf <= columns; first += kHalf) {
    multiply_columns<A, kProductVectors / 2>(left, at(right, first), rows, terms, at(out, first), adds);
  }
  for (; first < columns; first += Lanes<A>::kCount) {
    multiply_columns<A, 1>(left, at(right, first), rows, terms, at(out, first), adds);
  }
}

}  // namespace

void multiply(Matrix<const float> left, Matrix<const float> right, int64_t rows, int64_t terms, int64_t columns,
              Matrix<float> out, bool adds) {
  multiply_matrices(left, right, rows, terms, columns, out, adds);
}

void multiply(Matrix<const double> left, Matrix<const double> right, int64_t rows, int64_t terms, int64_t columns,
              Matrix<double> out, bool adds) {
  multiply_matrices(left, right, rows, terms, columns, out, adds);
}

}  // namespace PFL_CAPABILITY
}  // namespace pfl
