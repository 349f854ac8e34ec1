// Problem structs passed from the tensor code of `mmd_rbf` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/mmd_rbf/tuning.h"

namespace pfl {

constexpr int64_t kMmdMaxBandwidths = 32;  // CUDA kernels take them by value

// C clients with b points x and b points y of K features each. In the accumulation type (double for double):
//   weights [C, 3, b, b]: w(D) = sum_a exp(-D / (2 a)) / a of the pairs (x, x), (y, y), (x, y), saved for the backward;
//                         holds the squared distances D until they are complete
//   out [C]: mean of k(D_xx) + k(D_yy) - 2 k(D_xy) with k(D) = sum_a exp(-D / (2 a))
struct MmdRbf {
  Float dtype;
  int64_t clients;           // C
  int64_t points;            // b
  int64_t features;          // K
  int64_t count;             // number of bandwidths
  const double* bandwidths;  // [count], read on the host
  const void* x;             // [C, b, K]
  const void* y;             // [C, b, K]
  void* weights;             // [C, 3, b, b]
  void* sums;                // [C, b] sums of the rows of k(D_xx) + k(D_yy) - 2 k(D_xy)
  void* out;                 // [C]
};

// grad_x[c, i] = 2 grad[c] / b^2 sum_j (w(D_xy[i, j]) (x_i - y_j) - w(D_xx[i, j]) (x_i - x_j)); likewise for y.
struct MmdRbfBackward {
  Float dtype;
  int64_t clients, points, features;
  const void* grad;     // [C] in the accumulation type
  const void* x;        // [C, b, K]
  const void* y;        // [C, b, K]
  const void* weights;  // [C, 3, b, b]
  void* grad_x;         // [C, b, K] or null
  void* grad_y;         // [C, b, K] or null
};

// The points of a problem, for the choice of its path.
struct MmdPoints {
  Float dtype;
  int64_t points, features;
  const void *x, *y;
};

namespace {  // one copy per instruction set, see cpu/simd/convert.h
inline int64_t mmd_row_blocks(int64_t rows) {
  return (rows + kMmdRows - 1) / kMmdRows;
}

// Tasks of the path with matrix products for `rows` points.
inline int64_t mmd_product_tasks(int64_t rows) {
  return (rows + kMmdProductTaskPoints - 1) / kMmdProductTaskPoints;
}
}  // namespace

// [begin, end): range of the C * mmd_row_blocks(2 b) blocks of rows of [x; y].
PFL_DECLARE_CPU_KERNEL(mmd_rbf_distances, (const MmdRbf& p, int64_t begin, int64_t end))
// [begin, end): range of the C * b rows. Replaces distances by weights and writes the row sums.
PFL_DECLARE_CPU_KERNEL(mmd_rbf_rows, (const MmdRbf& p, int64_t begin, int64_t end))
// [begin, end): range of the 2 * C * mmd_row_blocks(b) blocks of rows, first all of x, then all of y.
PFL_DECLARE_CPU_KERNEL(mmd_rbf_backward, (const MmdRbfBackward& p, int64_t begin, int64_t end))

// Path with matrix products. spread[c] = largest squared distance of a point of client c from the mean of all, or NaN.
PFL_DECLARE_CPU_KERNEL(mmd_rbf_spread, (const MmdPoints& p, int64_t begin, int64_t end, double* spread))
// The points [first, first + kMmdProductTaskPoints) of [x; y], and of x or y in the backward.
PFL_DECLARE_CPU_KERNEL(mmd_rbf_product_distances, (const MmdRbf& p, int64_t client, int64_t first))
PFL_DECLARE_CPU_KERNEL(mmd_rbf_product_backward, (const MmdRbfBackward& p, bool of_y, int64_t client, int64_t first))

}  // namespace pfl

extern "C" {
int pfl_cuda_mmd_rbf(const pfl::MmdRbf* problem, void* stream);
int pfl_cuda_mmd_rbf_backward(const pfl::MmdRbfBackward* problem, void* stream);
}
