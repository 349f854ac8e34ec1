// What tensor code and the raw kernels of `linear` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// C clients, b rows each, of k values; n come out.
struct LinearSizes {
  Float dtype;
  int64_t clients;  // C
  int64_t rows;     // b
  int64_t inputs;   // k
  int64_t outputs;  // n
};

// [C, rows, columns]: the columns of a row lie side by side. Distances in elements, 0 where all clients share one.
struct LinearRows {
  const void* data;
  int64_t client, row;
};

// out = x weight^T + bias
struct Linear {
  LinearSizes sizes;
  LinearRows x;       // [C, b, k]
  LinearRows weight;  // [C, n, k]
  LinearRows bias;    // [C, 1, n], null without
  void* out;          // [C, b, n]
};

// grad_x = grad weight, grad_weight = grad^T x, grad_bias = sums of grad over rows. Null where not asked for.
struct LinearBackward {
  LinearSizes sizes;
  LinearRows grad;    // [C, b, n]
  LinearRows x;       // [C, b, k]
  LinearRows weight;  // [C, n, k]
  void* grad_x;       // [C, b, k]
  void* grad_weight;  // [C, n, k]
  void* grad_bias;    // [C, n]
};

// weight = start - lr (grad^T x + weight_decay start), rounded as `sgd_` does it. Start may be the weight itself.
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
constexpr int64_t kLinearOutputs = 96;            // outputs of one task of the CPU's forward and of its grad_weight
constexpr int64_t kLinearAcrossOutputs = 48;      // outputs whose sums across rows are in cache
constexpr int64_t kLinearDotOutputs = 16;         // outputs whose sums along rows are in cache
constexpr int64_t kLinearColumns = 64;            // columns of one task of its grad_x, and of a panel
constexpr int64_t kLinearTransposeColumns = 256;  // columns of grad_weight whose sums are turned around together
constexpr int64_t kLinearStrip = 512;             // columns whose sums grad_x has in cache
constexpr int64_t kLinearDepth = 64;              // terms of grad_x's sums that are added up while a panel is in cache
constexpr int64_t kLinearAcrossMinRows = 17;      // fewest rows whose products are summed side by side
constexpr int64_t kLinearChunk = 32;              // most of them in a tile
constexpr int64_t kLinearAcrossDepth =
    96;                                 // inputs that are multiplied before the next: those of a chunk stay in cache
constexpr int64_t kLinearTileRows = 6;  // most rows of a tile
constexpr int64_t kLinearSparseTileRows = 3;  // the same where most values are zero

namespace {  // a copy for each instruction set

inline int64_t linear_blocks(int64_t count, int64_t of) {
  return (count + of - 1) / of;
}
inline int64_t linear_round_up(int64_t count, int64_t to) {
  return linear_blocks(count, to) * to;
}

// Whether the forward's lanes lie across rows, which fills them only if there are enough rows, or along them. By the
// number of rows alone: the order of sums follows from it.
inline bool linear_lanes_across_rows(int64_t rows) {
  return rows >= kLinearAcrossMinRows && 5 * rows >= 4 * linear_round_up(rows, kLinearCacheLine);
}

// What one task needs beside its tensors, in values of the type sums are kept in.
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

// [begin, end): blocks of kLinearOutputs outputs, of all clients.
PFL_DECLARE_CPU_KERNEL(linear, (const Linear& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): blocks of kLinearColumns columns, of all clients.
PFL_DECLARE_CPU_KERNEL(linear_grad_x, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): blocks of kLinearOutputs outputs, of all clients. The gradient of the bias, too.
PFL_DECLARE_CPU_KERNEL(linear_grad_weight, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))

// The same blocks.
PFL_DECLARE_CPU_KERNEL(linear_step, (const LinearStep& p, int64_t begin, int64_t end, void* scratch))

}  // namespace pfl

extern "C" {
int pfl_cuda_linear(const pfl::Linear* problem, void* stream);
int pfl_cuda_linear_backward(const pfl::LinearBackward* problem, void* stream);
int pfl_cuda_linear_step(const pfl::LinearStep* problem, void* stream);
}
