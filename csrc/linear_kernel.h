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

constexpr int64_t kLinearLine = 16;         // floats in a cache line
constexpr int64_t kLinearOutputs = 16;      // outputs of one task of the CPU's forward
constexpr int64_t kLinearColumns = 64;      // columns of one task of its grad_x, and of a panel
constexpr int64_t kLinearStrip = 512;       // columns whose sums grad_x has in cache
constexpr int64_t kLinearGradOutputs = 48;  // outputs of one task of its grad_weight
constexpr int64_t kLinearDepth = 64;        // terms of grad_x's sums that are added up while a panel is in cache

namespace {  // a copy for each instruction set

inline int64_t linear_blocks(int64_t count, int64_t of) {
  return (count + of - 1) / of;
}
inline int64_t linear_round_up(int64_t count, int64_t to) {
  return linear_blocks(count, to) * to;
}

// What one task needs beside its tensors, in values of the type sums are kept in.
inline int64_t linear_scratch(const LinearSizes& s) {
  const int64_t sums = s.rows * kLinearOutputs * kLinearLine;
  return s.rows * linear_round_up(s.inputs, kLinearLine) + sums + kLinearLine;
}
inline int64_t linear_grad_x_scratch(const LinearSizes& s) {
  const int64_t grads = s.rows * linear_round_up(s.outputs, kLinearDepth);
  return grads + s.rows * kLinearStrip + kLinearDepth * kLinearColumns + kLinearLine;
}
inline int64_t linear_grad_weight_scratch(const LinearSizes& s) {
  return s.rows * (linear_round_up(s.inputs, kLinearColumns) + kLinearGradOutputs) + kLinearLine;
}

}  // namespace

// [begin, end): blocks of kLinearOutputs outputs, of all clients.
PFL_DECLARE_CPU_KERNEL(linear, (const Linear& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): blocks of kLinearColumns columns, of all clients.
PFL_DECLARE_CPU_KERNEL(linear_grad_x, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))
// [begin, end): blocks of kLinearGradOutputs outputs, of all clients. The gradient of the bias, too.
PFL_DECLARE_CPU_KERNEL(linear_grad_weight, (const LinearBackward& p, int64_t begin, int64_t end, void* scratch))

}  // namespace pfl

extern "C" {
int pfl_cuda_linear(const pfl::Linear* problem, void* stream);
int pfl_cuda_linear_backward(const pfl::LinearBackward* problem, void* stream);
}
