// What tensor code and the raw kernels of `distill_losses` agree on. No torch header, for the reasons in
// aggregate_kernel.h.
//
// Everything comes from d = y - max(y), e = exp(d) and six sums over the classes of a row: S_g, S_p, S_u (of e),
// U = sum e_u d_u, and with q = d_p - d_g: X_g = sum e_g q, X_p = sum e_p q. With p = e / S:
//
//   -log p[t] = log S - d[t]        sum p_u log p_u = U / S_u - log S_u
//   KL(p_p || p_g) + KL(p_g || p_p) = sum (p_p - p_g) (log p_p - log p_g) = X_p / S_p - X_g / S_g
#pragma once

#include <cstdint>

#include "cpu/capability.h"
#include "dtype.h"

namespace pfl {

constexpr int kDistillTerms = 4;          // gce, lce, ent, dis
constexpr int64_t kDistillLanes = 16;     // partial sums over classes, and over rows: CUDA gives a row 16 threads
constexpr int64_t kDistillPartRows = 64;  // rows summed into one set of partial sums

struct DistillInputs {
  Float dtype;
  int64_t clients;
  int64_t rows;     // of one client
  int64_t classes;  // at least one
  const void* y_g;  // [clients, rows, classes], and so y_p and y_u
  const void* y_p;
  const void* y_u;
  const int64_t* target;  // [clients, rows]
};

struct DistillForward {
  DistillInputs in;
  double* partial;           // [clients, parts, terms]
  void* out[kDistillTerms];  // [clients] each, double for double logits, else float: written by the CUDA launcher alone
};

struct DistillBackward {
  DistillInputs in;
  const void* grads[kDistillTerms];  // [clients] each, of the type of `out`
  void* grad_g;                      // [clients, rows, classes]
  void* grad_p;
  void* grad_u;
};

namespace {  // see convert.h: no inline function may be shared by kernels for different instruction sets
inline int64_t distill_parts(int64_t rows) {
  return (rows + kDistillPartRows - 1) / kDistillPartRows;
}
}  // namespace

// [begin, end): the parts to do, of all clients * distill_parts(rows); each writes its partial sums.
PFL_DECLARE_CPU_KERNEL(distill_losses_forward, (const DistillForward& p, int64_t begin, int64_t end))

// [begin, end): the rows to do, of all clients * rows.
PFL_DECLARE_CPU_KERNEL(distill_losses_backward, (const DistillBackward& p, int64_t begin, int64_t end))

}  // namespace pfl

extern "C" {
int pfl_cuda_distill_losses(const pfl::DistillForward* problem, void* stream);
int pfl_cuda_distill_losses_backward(const pfl::DistillBackward* problem, void* stream);
}
