// Problem structs passed from the tensor code of `mix` to its raw kernels.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/mix/tuning.h"

namespace pfl {

// T pairs of tensors as rows of contiguous columns. Row strides in elements: stride[4 * t] of local[t],
// stride[4 * t + 1] of global[t], stride[4 * t + 2] of choices[t], stride[4 * t + 3] of grads[t].
// The choice is elementwise (choices[t]), or row r of tensor t uses choice[r, segment[t]].
struct MixTensors {
  Float dtype;
  int64_t tensors;  // T
  int64_t hard;     // rounds the choice to 1 if it is >= 0.5, else to 0
  const void* const* local;
  const void* const* global;
  const void* const* choices;  // [T], null with segments
  const int64_t* rows;         // [T]; equal for all tensors with segments
  const int64_t* columns;      // [T]
  const int64_t* stride;       // [T, 4]
  const void* choice;          // [rows, segments], double for double tensors, else float
  const int64_t* segment;      // [T]
  int64_t segments;
};

// out[t] = local[t] + c * (global[t] - local[t]); exactly local[t] where c is 0 and global[t] where c is 1
struct MixForward {
  MixTensors in;
  void* const* out;  // [T] of [rows, columns]
};

// grad_local = (1 - c) grad, grad_global = c grad, each exactly 0 where its factor is 0.
// grad_choices[t] = grad * (global[t] - local[t]); grad_choice sums it over the columns of all tensors of a segment.
struct MixBackward {
  MixTensors in;
  const void* const* grads;   // [T]
  void* const* grad_local;    // [T] of [rows, columns], or null
  void* const* grad_global;   // [T] of [rows, columns], or null
  void* const* grad_choices;  // [T] of [rows, columns], or null
  double* partial;            // [tiles] sums of the tiles, or null
  double* grad_choice;        // [rows, segments], zeroed, or null
};

inline int64_t mix_tiles_per_row(const MixTensors& in, int64_t t, int64_t tile) {
  return (in.columns[t] + tile - 1) / tile;
}

// first_tile [T + 1]: index of the first tile of each tensor. [begin, end): range of tiles.
PFL_DECLARE_CPU_KERNEL(mix_forward, (const MixForward& p, const int64_t* first_tile, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(mix_backward, (const MixBackward& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Arrays [T] are host memory; the pointers in them are device pointers.
extern "C" {
int pfl_cuda_mix(const pfl::MixForward* problem, void* stream);
int pfl_cuda_mix_backward(const pfl::MixBackward* problem, void* stream);
}
