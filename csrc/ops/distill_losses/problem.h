// Problem structs passed from the tensor code of `distill_losses` to its raw kernels. No torch headers, for the reasons
// in ops/aggregate/problem.h.
//
// All terms follow from d = y - max(y), e = exp(d) and six sums over the classes of a row: S_g, S_p, S_u (sums of e),
// U = sum e_u d_u, X_g = sum e_g q and X_p = sum e_p q with q = d_p - d_g. With p = e / S:
//
//   -log p[t] = log S - d[t]        sum p_u log p_u = U / S_u - log S_u
//   KL(p_p || p_g) + KL(p_g || p_p) = sum (p_p - p_g) (log p_p - log p_g) = X_p / S_p - X_g / S_g
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "cpu/capability.h"
#include "ops/distill_losses/tuning.h"

namespace pfl {

constexpr int kDistillTerms = 4;       // gce, lce, ent, dis
constexpr int64_t kDistillLanes = 16;  // lanes of sums over classes and over rows; CUDA uses 16 threads per row

struct DistillInputs {
  Float dtype;
  int64_t clients;
  int64_t rows;     // rows per client
  int64_t classes;  // at least one
  const void* y_g;  // [clients, rows, classes]; y_p and y_u likewise
  const void* y_p;
  const void* y_u;
  const int64_t* target;  // [clients, rows]
};

struct DistillForward {
  DistillInputs in;
  double* partial;           // [clients, parts, terms]
  void* out[kDistillTerms];  // [clients] each, double for double logits, else float; written by the CUDA launcher only
};

struct DistillBackward {
  DistillInputs in;
  const void* grads[kDistillTerms];  // [clients] each, in the type of `out`
  void* grad_g;                      // [clients, rows, classes]
  void* grad_p;
  void* grad_u;
};

namespace {  // one copy per instruction set, see cpu/simd/convert.h
inline int64_t distill_parts(int64_t rows) {
  return (rows + kDistillPartRows - 1) / kDistillPartRows;
}
}  // namespace

// [begin, end): range of the clients * distill_parts(rows) parts; each writes its partial sums.
PFL_DECLARE_CPU_KERNEL(distill_losses_forward, (const DistillForward& p, int64_t begin, int64_t end))

// [begin, end): range of the clients * rows rows.
PFL_DECLARE_CPU_KERNEL(distill_losses_backward, (const DistillBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_distill_losses(const pfl::DistillForward* problem, void* stream);
int pfl_cuda_distill_losses_backward(const pfl::DistillBackward* problem, void* stream);
}
