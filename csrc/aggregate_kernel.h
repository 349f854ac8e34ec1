// What tensor code and the raw kernels of `aggregate` agree on. No torch header: CUDA kernels compile in seconds, and
// CPU kernels can be compiled once per instruction set without leaking vector code into shared inline functions.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
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

constexpr int64_t kAggregateTile = 4096;      // columns whose sums stay in the CPU's first-level cache
constexpr int64_t kAggregateCudaParts = 512;  // blocks of the CUDA backward: each owns one set of partial sums

// first_tile [T + 1]: number of tiles before each tensor. [begin, end): the tiles to do. nonfinite [G, N] or null.
PFL_DECLARE_CPU_KERNEL(aggregate_forward, (const AggregateForward& p, const int64_t* first_tile, int64_t begin,
                                           int64_t end, int64_t* nonfinite))

// [begin, end): the parts to do, each with its own partial sums.
PFL_DECLARE_CPU_KERNEL(aggregate_backward,
                       (const AggregateBackward& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Launchers return a cudaError_t as a number. Pointers are device pointers, except the arrays [T] of pointers and
// sizes, which are read on the host. C linkage, and one pointer to a struct of eight-byte fields, so that the tests can
// call the emulated kernels without a compiler.
extern "C" {
int pfl_cuda_aggregate(const pfl::AggregateForward* problem, void* stream);
int pfl_cuda_aggregate_backward(const pfl::AggregateBackward* problem, void* stream);  // sums into the first part
}
