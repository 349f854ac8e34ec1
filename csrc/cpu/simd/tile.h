// Matrix products of CPU kernels: register tiles of sums, compiled once per instruction set in tile_kernel.cpp. Lanes
// lie across columns, every sum adds its terms in order, and each product is added with one rounding (multiply_add).
#pragma once

#include <cstdint>

#include "cpu/capability.h"

namespace pfl {
namespace PFL_CAPABILITY {

// Matrix with row and column stride in elements.
template <class A>
struct Matrix {
  A* data;
  int64_t row, column;
};

// out = left * right, added to out if `adds`. Columns of right and out are contiguous; `columns` is a multiple of
// Lanes<A>::kCount.
void multiply(Matrix<const float> left, Matrix<const float> right, int64_t rows, int64_t terms, int64_t columns,
              Matrix<float> out, bool adds);
void multiply(Matrix<const double> left, Matrix<const double> right, int64_t rows, int64_t terms, int64_t columns,
              Matrix<double> out, bool adds);

}  // namespace PFL_CAPABILITY
}  // namespace pfl
