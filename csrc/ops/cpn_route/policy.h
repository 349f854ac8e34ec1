// Last steps of the conditional policy network for one feature, forward and backward. Shared by the CPU and CUDA
// kernels of `cpn_route`, so both compute the same formulas.
#pragma once

#include "common/shares.h"

namespace pfl {
namespace {

PFL_HOST_DEVICE float inverse_sqrt(float x) {
  return 1.0f / sqrtf(x);
}
PFL_HOST_DEVICE double inverse_sqrt(double x) {
  return 1.0 / sqrt(x);
}

// Statistics of the 2K logits of one row.
template <class Real>
struct RowStats {
  Real mean, rstd;
};

template <class Real>
PFL_HOST_DEVICE Real normalized(Real a, const RowStats<Real>& stats) {
  return (a - stats.mean) * stats.rstd;
}

// NaN stays NaN.
template <class Real>
PFL_HOST_DEVICE Real relu(Real z) {
  return z < Real(0) ? Real(0) : z;
}

// d loss / d y of the first logit of a pair; the second logit has the negated gradient. scale = 1 / tau.
template <class Real>
PFL_HOST_DEVICE Real pair_gradient(const Shares<Real>& share, Real scale, Real h, Real grad_global,
                                   Real grad_personal) {
  return (share.global * share.personal * scale) * (h * (grad_global - grad_personal));
}

}  // namespace
}  // namespace pfl
