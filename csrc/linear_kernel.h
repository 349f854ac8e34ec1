// Problem structs passed from the tensor code of `linear` to its raw kernels, tile sizes and sizes of scratch memory.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// C clients with b rows of k inputs each; n outputs.
struct LinearSizes {
  Float dtype;
  int64_t clients;  // C
  int64_t rows;     // b
  int64_t inputs;   // k
  int64_t outputs;  // n
};

// Pointer and strides, in elements, of [C, rows, columns] with contiguous columns. The client stride is 0 if all
// clients share the data.
struct LinearRows {
  const void* data;
  int64_t client, row;
};

// out = x weight^T + bias
struct Linear {
  LinearSizes sizes;
  LinearRows x;       // [C, b, k]
  LinearRows weight;  // [C, n, k]
  LinearRows bias;    // [C, 1, n], null without bias
  void* out;          // [C, b, n]
};

// grad_x = grad weight, grad_weight = grad^T x, grad_bias = sum of grad over rows. Null if not required.
struct LinearBackward {
  LinearSizes sizes;
  LinearRows grad;    // [C, b, n]
  LinearRows x;       // [C, b, k]
  LinearRows weight;  // [C, n, k]
  void* grad_x;       // [C, b, k]
  void* grad_weight;  // [C, n, k]
  void* grad_bias;    // [C, n]
};

// weight = start - lr (grad^T x + weight_decay start), rounded like `sgd_`. start may alias weight.
struct LinearStep {
  LinearSizes sizes;
  LinearRows grad;   // [C, b, n]
  LinearRows x;      // [C, b, k]
  LinearRows start;  // [C, n, k]
  void* weight;      // [C, n, k]
  int64_t weight_client, weight_row;
  double lr, weight_decay;
};

constexpr int64_t kLinearCacheLine = 16;          // floats in a cache line
constexpr int64_t kLinearOutputs = 96;            // outputs per CPU task of forward and grad_weight
constexpr int64_t kLinearAcrossOutputs = 48;      // outputs per block with lanes across rows: their sums stay in cache
constexpr int64_t kLinearDotOutputs = 16;         // outputs per block with lanes along inputs: their sums stay in cache
constexpr int64_t kLinearColumns = 64;            // columns per CPU task of grad_x, and per packed panel
constexpr int64_t kLinearTransposeColumns = 256;  // columns of grad_weight transposed at once
constexpr int64_t kLinearStrip = 512;             // columns of grad_x whose sums stay in cache
constexpr int64_t kLinearDepth = 64;              // depth of a panel: terms accumulated while it is in cache
constexpr int64_t kLinearAcrossMinRows = 17;      // fewest rows for lanes across rows
constexpr int64_t kLinearChunk = 32;              // most rows per tile with lanes across rows
constexpr int64_t kLinearAcrossDepth = 96;        // inputs per block: the inputs of a chunk of rows stay in cache
constexpr int64_t kLinearTileRows = 6;            // most rows of a register tile
constexpr int64_t kLinearSparseTileRows = 3;      // most rows of a register tile if most values are zero

namespace {  // one copy per instruction set, see cpu/convert.h

inline int64_t linear_blocks(int64_t count, int64_t of) {
  return (count + of - 1) / of;
}
inline int64_t linear_round_up(int64_t count, int64_t to) {
  return linear_blocks(count, to) * to;
}

// Returns true if the forward puts rows into lanes, which needs enough rows to fill them; else lanes hold inputs of one
// row. Depends on the number of rows only, because it determines the order of sums.
inline bool linear_lanes_across_rows(int64_t rows) {
  return rows >= kLinearAcrossMinRows && 5 * rows >= 4 * linear_round_up(rows, kLinearCacheLine);
}

// Scratch memory per task, in values of the accumulation type.
inline int64_t linear_scratch(const LinearSizes& s) {
  const int64_t padded_rows = linear_round_up(s.rows, kLinearChunk);
  const int64_t x = padded_rows * linear_round_up(s.inputs, kLinearCacheLine);
  if (!linear_lanes_across_rows(s.rows)) {
    return x + s.rows * kLinearDotOutputs * kLinearCacheLine + kLinearCacheLine;
  }
  const int64_t blocks = linear_blocks(s.inputs, kLinearDepth);
  const int64_t lists = padded_rows * (blocks + 1) + linear_blocks(padded_rows, kLinearCacheLine / 2) * s.inputs;
  return x + (padded_rows + kLinearAcrossDepth) * kLinearOutputs + lists + kLinearCacheLine + 2;
}
inline int64_t linear_grad_x_scratch(const LinearSizes& s) {
  const int64_t groups = linear_blocks(s.rows, kLinearSparseTileRows), blocks = linear_blocks(s.outputs, kLinearDepth);
  const int64_t lists = groups * (s.outputs + blocks + 1);
  return s.rows * (s.outputs + kLinearStrip) + kLinearDepth * kLinearColumns + lists + kLinearCacheLine;
}
inline int64_t linear_grad_weight_scratch(const LinearSizes& s) {
  const int64_t columns = linear_round_up(s.inputs, kLinearColumns);
  const int64_t sums = kLinearTransposeColumns * kLinearOutputs;
  return s.rows * (columns + kLinearOutputs + kLinearTileRows + 1) + sums + columns + 1 + 2 * kLinearCacheLine;
}

}  // namespace

// [begin, end): range of the clients' blocks of kLinearOutputs outputs.
PFL_DECLARE_CPU_KERNEL(linear, (const Linear& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): range of the clients' blocks of kLinearColumns columns.
PFL_DECLARE_CPU_KERNEL(linear_grad_x, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): range of the clients' blocks of kLinearOutputs outputs. Also computes grad_bias.
PFL_DECLARE_CPU_KERNEL(linear_grad_weight, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))

// [begin, end): range of the clients' blocks of kLinearOutputs outputs.
PFL_DECLARE_CPU_KERNEL(linear_step, (const LinearStep& p, int64_t begin, int64_t end, void* scratch))

}  // namespace pfl

extern "C" {
int pfl_cuda_linear(const pfl::Linear* problem, void* stream);
int pfl_cuda_linear_backward(const pfl::LinearBackward* problem, void* stream);
int pfl_cuda_linear_step(const pfl::LinearStep* problem, void* stream);
}
