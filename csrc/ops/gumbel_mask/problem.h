// Problem structs passed from the tensor code of `gumbel_mask` to its raw kernels. No torch headers, for the reasons in
// ops/aggregate/problem.h.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/gumbel_mask/tuning.h"

namespace pfl {

struct GumbelMask {
  Float dtype;
  int64_t hard;            // 1: hard mask (0 or 1); 0: soft mask m_s
  double logit_threshold;  // tau * log(threshold / (1 - threshold)): m_s >= threshold if logits + noise >= this
  double inverse_tau;      // 1 / tau
};

// C clients with numel values each.
struct GumbelMaskForward {
  GumbelMask mask;
  int64_t clients;       // C
  int64_t numel;         // values per client
  const int64_t* seeds;  // [C], null without noise
  const void* z;         // client c starts at element c * z_stride
  const void* logits;    // client c starts at element c * logits_stride
  int64_t z_stride;      // client stride in elements; 0 if all clients share one row
  int64_t logits_stride;
  void* selected;  // [C, numel]
  void* rest;      // [C, numel]
  void* noisy;     // [C, numel] logits + noise in the accumulation type
};

// All tensors are contiguous, with numel values in total.
struct GumbelMaskBackward {
  GumbelMask mask;
  int64_t numel;
  const void* z;
  const void* noisy;  // from the forward
  const void* grad_selected;
  const void* grad_rest;
  void* grad_z;
  void* grad_logits;
};

namespace {  // one copy per instruction set, see cpu/simd/convert.h
inline int64_t gumbel_tiles(int64_t numel) {
  return (numel + kGumbelTile - 1) / kGumbelTile;
}
}  // namespace

// [begin, end): range of the C * gumbel_tiles(numel) tiles.
PFL_DECLARE_CPU_KERNEL(gumbel_mask_forward, (const GumbelMaskForward& p, int64_t begin, int64_t end))
// [begin, end): range of the gumbel_tiles(numel) tiles.
PFL_DECLARE_CPU_KERNEL(gumbel_mask_backward, (const GumbelMaskBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_gumbel_mask(const pfl::GumbelMaskForward* problem, void* stream);
int pfl_cuda_gumbel_mask_backward(const pfl::GumbelMaskBackward* problem, void* stream);
}
