// Global and personal share of one feature and their logistic noise. Used by `route` and `cpn_route` on CPU and CUDA.
#pragma once

#include "common/elementary.h"

namespace pfl {
namespace {

template <class Real>
struct Shares {
  Real global, personal;
};

// exp(-|logit|)
template <class Real>
PFL_HOST_DEVICE Real share_exponential(Real logit) {
  return exp_of_nonpositive(logit < Real(0) ? logit : -logit);
}

// sigmoid(logit) and sigmoid(-logit) from e = share_exponential(logit). Neither is computed as 1 - other, so the
// smaller share does not lose digits.
template <class Real>
PFL_HOST_DEVICE Shares<Real> shares_from(Real logit, Real e) {
  const Real larger = Real(1) / (Real(1) + e);
  const Real smaller = e * larger;
  return {logit < Real(0) ? smaller : larger, logit < Real(0) ? larger : smaller};
}

template <class Real>
PFL_HOST_DEVICE Shares<Real> shares_of(Real logit) {
  return shares_from(logit, share_exponential(logit));
}

// The difference of two Gumbel variables is logistic: one uniform number per pair. 1 - u is exact in float.
template <class Real>
PFL_HOST_DEVICE Real logistic_from(float u) {
  return log_of(Real(u) / Real(1.0f - u));
}

}  // namespace
}  // namespace pfl
