// What tensor code and the raw kernels of `gumbel_mask` agree on. No torch header, for the reasons in
// aggregate_kernel.h.
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

// C clients with numel values each, the same number for every tensor.
struct GumbelMask {
  Float dtype;
  int64_t clients;         // C
  int64_t numel;           // values of one client
  int64_t hard;            // 1: the mask is 0 or 1; 0: it is m_s
  double logit_threshold;  // tau * log(threshold / (1 - threshold)): m_s >= threshold where logits + noise >= cut
  double inverse_tau;      // 1 / tau
  const int64_t* seeds;    // [C], or null without noise
  const void* z;           // client c starts at c * z_stride values
  const void* logits;      // client c starts at c * logits_stride values
  int64_t z_stride;        // numel, or anything else for rows that lie apart; 0 for one row that serves all clients
  int64_t logits_stride;
};

struct GumbelMaskForward {
  GumbelMask mask;
  void* selected;  // [C, numel]
  void* rest;      // [C, numel]
};

struct GumbelMaskBackward {
  GumbelMask mask;
  const void* grad_selected;  // [C, numel]
  const void* grad_rest;      // [C, numel]
  void* grad_z;               // [C, numel]
  void* grad_logits;          // [C, numel]
};

constexpr int64_t kGumbelTile = 256;  // values worked on at once by the CPU kernel, in first-level cache

namespace {  // see convert.h: no inline function may be shared by kernels for different instruction sets
inline int64_t gumbel_tiles_per_client(int64_t numel) {
  return (numel + kGumbelTile - 1) / kGumbelTile;
}
}  // namespace

// [begin, end): the tiles to do, of all C * gumbel_tiles_per_client(numel).
PFL_DECLARE_CPU_KERNEL(gumbel_mask_forward, (const GumbelMaskForward& p, int64_t begin, int64_t end))
PFL_DECLARE_CPU_KERNEL(gumbel_mask_backward, (const GumbelMaskBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_gumbel_mask(const pfl::GumbelMaskForward* problem, void* stream);
int pfl_cuda_gumbel_mask_backward(const pfl::GumbelMaskBackward* problem, void* stream);
}
