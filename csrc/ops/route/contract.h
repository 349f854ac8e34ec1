// The contract of `route`: splits each feature of a batch into a global and a personal part.
//
//   h     [*batch, b, K] features
//   a     [*batch, b, 2K] logits: first K for the global share r, last K for the personal share s
//   seed  [*batch] int64, or none
//   tau   temperature
//   logit = (a[.., :K] - a[.., K:] + eps) / tau;   eps = log(u / (1 - u)) with u = philox_uniform(seed, [b, K]);
//           eps = 0 without a seed
//   r = sigmoid(logit), s = sigmoid(-logit)
//   result      r * h, s * h
//   gradients   dh = r * g_global + s * g_personal;   da = [d, -d] with d = r * s / tau * h * (g_global - g_personal)
#pragma once

#include "common/check.h"
#include "common/layout.h"
#include "ops/philox_uniform/contract.h"
#include "ops/route/problem.h"

namespace pfl {

inline void check_route(const char* op, const Tensor& h, const Tensor& a, const std::optional<Tensor>& seed,
                        double tau) {
  check_float(op, "h", h);
  PFL_CHECK(h.dim() >= 2, op, ": h must be [*batch, b, K], got shape ", shape_of(h));
  std::vector<int64_t> pairs = leading_sizes(h, h.dim());
  pairs.back() *= 2;
  check_like(op, "a", a, "h", h, pairs);
  if (seed.has_value()) {
    check_seed(op, *seed);
    check_device(op, "seed", *seed, "h", h);
    const std::vector<int64_t> batch = leading_sizes(h, h.dim() - 2);
    PFL_CHECK(leading_sizes(*seed, seed->dim()) == batch, op, ": seed must have shape ", text_of(batch), " for h ",
              shape_of(h), ", got ", shape_of(*seed));
  }
  PFL_CHECK(std::isfinite(tau) && tau > 0, op, ": tau must be positive and finite, got ", tau);
}

inline void check_route_grads(const char* op, const Tensor& grad_global, const Tensor& grad_personal, const Tensor& h) {
  check_like(op, "grad_global", grad_global, "h", h, leading_sizes(h, h.dim()));
  check_like(op, "grad_personal", grad_personal, "h", h, leading_sizes(h, h.dim()));
}

inline RouteSizes route_sizes(const Tensor& h) {
  int64_t clients = 1;
  for (int64_t d = 0; d < h.dim() - 2; ++d) {
    clients *= h.size(d);
  }
  return {kernel_type(h.scalar_type()), clients, h.size(h.dim() - 2), h.size(h.dim() - 1)};
}

// Contiguous inputs; owns the memory that inputs() points to.
struct RoutePlan {
  Tensor h, a;
  std::optional<Tensor> seed;
  double tau;

  RoutePlan(const Tensor& given_h, const Tensor& given_a, const std::optional<Tensor>& given_seed, double given_tau)
      : h(as_contiguous(given_h)), a(as_contiguous(given_a)), tau(given_tau) {
    if (given_seed.has_value()) {
      seed = as_contiguous(*given_seed);
    }
  }

  RouteInputs inputs() const {
    return {h.const_data_ptr(), a.const_data_ptr(), seed.has_value() ? seed->const_data_ptr<int64_t>() : nullptr, tau};
  }
};

template <class Run>
std::tuple<Tensor, Tensor> route(const Tensor& h, const Tensor& a, const std::optional<Tensor>& seed, double tau,
                                 Run run) {
  check_route("pfl_fast::route", h, a, seed, tau);
  const RoutePlan plan(h, a, seed, tau);
  Tensor global_part = torch::stable::new_empty(h, h.sizes());
  Tensor personal_part = torch::stable::new_empty(h, h.sizes());
  run(RouteForward{route_sizes(h), plan.inputs(), global_part.mutable_data_ptr(), personal_part.mutable_data_ptr()});
  return {std::move(global_part), std::move(personal_part)};
}

template <class Run>
std::tuple<Tensor, Tensor> route_backward(const Tensor& grad_global, const Tensor& grad_personal, const Tensor& h,
                                          const Tensor& a, const std::optional<Tensor>& seed, double tau, Run run) {
  check_route("pfl_fast::route_backward", h, a, seed, tau);
  check_route_grads("pfl_fast::route_backward", grad_global, grad_personal, h);
  const RoutePlan plan(h, a, seed, tau);
  const Tensor given_global = as_contiguous(grad_global);
  const Tensor given_personal = as_contiguous(grad_personal);
  Tensor grad_h = torch::stable::new_empty(h, h.sizes());
  Tensor grad_a = torch::stable::new_empty(h, a.sizes());
  run(RouteBackward{route_sizes(h), plan.inputs(), given_global.const_data_ptr(), given_personal.const_data_ptr(),
                    grad_h.mutable_data_ptr(), grad_a.mutable_data_ptr()});
  return {std::move(grad_h), std::move(grad_a)};
}

}  // namespace pfl
