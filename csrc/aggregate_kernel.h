// What tensor code and the raw kernels of `aggregate` agree on. No torch header: CUDA kernels compile in seconds, and
// CPU kernels can be compiled once per instruction set without leaking vector code into shared inline functions.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace pfl {

// T stacked tensors of N client rows each. Tensor t belongs to group t / (T / G), which has its own [M, N] weights.
struct AggregateSizes {
  Float dtype;
  int64_t tensors;   // T
  int64_t groups;    // G
  int64_t mixtures;  // M
  int64_t clients;   // N
};

// Where row n of tensor t starts: in a table [T, N] of pointers if there is one, else base[t] + n * stride[t] elements.
struct AggregateRows {
  const void* const* base;   // [T]
  const int64_t* stride;     // [T]
  const int64_t* numel;      // [T] elements in one row
  const void* const* table;  // [T, N] or null
};

// out[t][m, :] = sum_n weights[g, m, n] * row(t, n)[:]. Also counts values that are NaN or infinite, per client.
struct AggregateForward {
  AggregateSizes sizes;
  AggregateRows rows;
  const void* weights;  // [G, M, N], double for double tensors, else float
  void* const* out;     // [T] of [M, numel]
  int64_t* nonfinite;   // [G, N] added to, or null
};

// grad_rows[t][n, :] = sum_m weights[g, m, n] * grads[t][m, :]
// grad_weights[g, m, n] = sum_t sum_j grads[t][m, j] * row(t, n)[j]
struct AggregateBackward {
  AggregateSizes sizes;
  AggregateRows rows;
  const void* weights;       // [G, M, N]
  const void* const* grads;  // [T] of [M, numel]
  void* const* grad_rows;    // [T] of [N, numel], or null
  double* grad_weights;      // [parts, G, M, N] zeroed partial sums, or null
  int64_t parts;
};

// Sums are cut into a number of parts that depends on the sizes alone, never on threads, so that results repeat to the
// bit; bounded so that the partial sums stay within 32 MiB.
inline int64_t aggregate_parts(const AggregateSizes& sizes, int64_t most) {
  const int64_t pairs = sizes.groups * sizes.mixtures * sizes.clients;
  const int64_t affordable = (int64_t{1} << 22) / (pairs > 0 ? pairs : 1);
  return affordable < 1 ? 1 : (affordable < most ? affordable : most);
}

}  // namespace pfl
