// What tensor code and the raw kernels of `sgd_` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// T tensors, each as rows of contiguous columns: row r of params[t] begins r * stride[4 * t] elements after its first,
// of grads[t] at stride[4 * t + 1], of momenta[t] at stride[4 * t + 2], of centers[t] at stride[4 * t + 3].
struct Sgd {
  Float dtype;
  int64_t tensors;             // T
  void* const* params;         // [T]
  const void* const* grads;    // [T]
  void* const* momenta;        // [T] or null: no momentum
  const void* const* centers;  // [T] or null: no proximal pull
  const int64_t* rows;         // [T]
  const int64_t* columns;      // [T]
  const int64_t* stride;       // [T, 4]
  double lr, momentum, dampening, weight_decay, proximal;
  int64_t nesterov, first_step;
};

constexpr int64_t kSgdTile =
    2048;  // columns that the CPU updates at once: every operand stays in the first-level cache

// first_tile [T + 1]: number of tiles before each tensor. [begin, end): the tiles to do.
PFL_DECLARE_CPU_KERNEL(sgd, (const Sgd& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Arrays [T] are read on the host, what they point to is on the device.
extern "C" int pfl_cuda_sgd(const pfl::Sgd* problem, void* stream);
