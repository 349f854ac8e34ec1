// Problem struct passed from the tensor code of `sgd_` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/sgd/tuning.h"

namespace pfl {

// T tensors as rows of contiguous columns. Row strides in elements: stride[4 * t] of params[t], stride[4 * t + 1] of
// grads[t], stride[4 * t + 2] of momenta[t], stride[4 * t + 3] of centers[t].
struct Sgd {
  Float dtype;
  int64_t tensors;             // T
  void* const* params;         // [T]
  const void* const* grads;    // [T]
  void* const* momenta;        // [T], null without momentum
  const void* const* centers;  // [T], null without proximal term
  const int64_t* rows;         // [T]
  const int64_t* columns;      // [T]
  const int64_t* stride;       // [T, 4]
  double lr, momentum, dampening, weight_decay, proximal;
  int64_t nesterov, first_step;
};

// first_tile [T + 1]: index of the first tile of each tensor. [begin, end): range of tiles.
PFL_DECLARE_CPU_KERNEL(sgd, (const Sgd& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Arrays [T] are host memory; the pointers in them are device pointers.
extern "C" int pfl_cuda_sgd(const pfl::Sgd* problem, void* stream);
