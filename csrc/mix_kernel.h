// What tensor code and the raw kernels of `mix` agree on.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// T pairs of tensors, each as rows of contiguous columns. Row r of local[t] begins r * stride[4 * t] elements after its
// first, of global[t] at stride[4 * t + 1], of choices[t] at stride[4 * t + 2], of grads[t] at stride[4 * t + 3].
// Either each element has a choice of its own, or row r of tensor t has choice[r, segment[t]].
struct MixTensors {
  Float dtype;
  int64_t tensors;  // T
  int64_t hard;     // the choice is taken as 1 from 0.5 on, else as 0
  const void* const* local;
  const void* const* global;
  const void* const* choices;  // [T], or null: the choice belongs to segments
  const int64_t* rows;         // [T]; the same for all tensors if there are segments
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

// grad_local = (1 - c) grad, grad_global = c grad, both exactly 0 where their factor is
// grad_choices[t] = grad * (global[t] - local[t]), and for segments its sum over the columns of all their tensors
struct MixBackward {
  MixTensors in;
  const void* const* grads;   // [T]
  void* const* grad_local;    // [T] of [rows, columns], or null
  void* const* grad_global;   // [T] of [rows, columns], or null
  void* const* grad_choices;  // [T] of [rows, columns], or null
  double* partial;            // [tiles]: the sum of each tile, or null
  double* grad_choice;        // [rows, segments], zeroed, or null
};

constexpr int64_t kMixTile = 1024;      // columns the CPU works on at once
constexpr int64_t kMixCudaTile = 2048;  // columns a block works on

inline int64_t mix_tiles_per_row(const MixTensors& in, int64_t t, int64_t tile) {
  return (in.columns[t] + tile - 1) / tile;
}

// first_tile [T + 1]: number of tiles before each tensor. [begin, end): the tiles to do.
PFL_DECLARE_CPU_KERNEL(mix_forward, (const MixForward& p, const int64_t* first_tile, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(mix_backward, (const MixBackward& p, const int64_t* first_tile, int64_t begin, int64_t end))

}  // namespace pfl

// Arrays [T] are read on the host, what they point to is on the device.
extern "C" {
int pfl_cuda_mix(const pfl::MixForward* problem, void* stream);
int pfl_cuda_mix_backward(const pfl::MixBackward* problem, void* stream);
}
