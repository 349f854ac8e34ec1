// Problem structs passed from the tensor code of `aggregate` to its raw kernels. No torch headers here: CUDA kernels
// compile in seconds, and CPU kernels are compiled once per instruction set without leaking vector code into inline
// functions that the linker shares.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/aggregate/tuning.h"

namespace pfl {

// T stacked tensors of N client rows each. Tensor t belongs to group t / (T / G), which has its own [M, N] weights.
struct AggregateSizes {
  Float dtype;
  int64_t tensors;   // T
  int64_t groups;    // G
  int64_t mixtures;  // M
  int64_t clients;   // N
};

// Row n of tensor t starts at table[t, n] if there is a table, else at base[t] + n * stride[t] elements.
struct AggregateRows {
  const void* const* base;   // [T]
  const int64_t* stride;     // [T]
  const int64_t* numel;      // [T] elements in one row
  const void* const* table;  // [T, N] or null
};

// out[t][m, :] = sum_n weights[g, m, n] * row(t, n)[:]. Also counts NaN and infinite values per client.
struct AggregateForward {
  AggregateSizes sizes;
  AggregateRows rows;
  const void* weights;  // [G, M, N], double for double tensors, else float
  void* const* out;     // [T] of [M, numel]
  int64_t* nonfinite;   // [G, N], incremented, or null
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

// Number of partial sums of the backward. It depends on the sizes only, never on the number of threads, so results are
// reproducible to the bit; it is bounded so that all partial sums fit into 32 MiB.
inline int64_t aggregate_parts(const AggregateSizes& sizes, int64_t max_parts) {
  const int64_t pairs = sizes.groups * sizes.mixtures * sizes.clients;
  const int64_t affordable = (int64_t{1} << 22) / (pairs > 0 ? pairs : 1);
  return affordable < 1 ? 1 : (affordable < max_parts ? affordable : max_parts);
}

// first_tile [T + 1]: index of the first tile of each tensor. [begin, end): range of tiles. nonfinite [G, N] or null.
PFL_DECLARE_CPU_KERNEL(aggregate_forward, (const AggregateForward& p, const int64_t* first_tile, int64_t begin,
                                           int64_t end, int64_t* nonfinite))

// [begin, end): range of parts, each with its own partial sums.
PFL_DECLARE_CPU_KERNEL(aggregate_backward,
                       (const AggregateBackward& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Launchers return a cudaError_t as an int. Pointers are device pointers, except the arrays [T] of pointers and sizes,
// which are read on the host. Launchers have C linkage and take one pointer to a struct of 8-byte fields, so tests can
// call the emulated kernels through ctypes.
extern "C" {
int pfl_cuda_aggregate(const pfl::AggregateForward* problem, void* stream);
int pfl_cuda_aggregate_backward(const pfl::AggregateBackward* problem, void* stream);  // result in the first part
}
