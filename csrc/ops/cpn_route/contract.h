// The contract of `cpn_route`: LayerNorm over 2K logits, affine map, ReLU and `route` in one pass.
//
//   h            [*batch, b, K] features
//   a            [*batch, b, 2K] output of the last linear layer of the policy network
//   gamma, beta  [*batch, 2K], one pair per client
//   eps          added to the variance;   seed, tau: as in `route`
//   y = max(0, x * gamma + beta) with x = (a - mean(a)) / sqrt(var(a) + eps) over the 2K of a row (biased variance)
//   result       route(h, y, seed, tau)
//   stats        [*batch, b, 2] float (double for double): mean and 1 / sqrt(var + eps) of each row, for the backward
//   gradients    d = r * s / tau * h * (g_global - g_personal);  dz = [d, -d] where y > 0, else 0
//                dgamma = sum over rows dz * x;  dbeta = sum over rows dz
//                da = (t - mean(t) - x * mean(t * x)) / sqrt(var(a) + eps) with t = dz * gamma
#pragma once

#include "ops/cpn_route/problem.h"
#include "ops/route/contract.h"

namespace pfl {

inline void check_cpn_route(const char* op, const Tensor& h, const Tensor& a, const Tensor& gamma, const Tensor& beta,
                            const std::optional<Tensor>& seed, double tau) {
  check_route(op, h, a, seed, tau);
  std::vector<int64_t> shape = leading_sizes(h, h.dim() - 2);
  shape.push_back(2 * h.size(h.dim() - 1));
  check_like(op, "gamma", gamma, "h", h, shape);
  check_like(op, "beta", beta, "h", h, shape);
}

// Shape of the statistics: [*batch, b, 2].
inline std::vector<int64_t> stats_shape(const Tensor& h) {
  std::vector<int64_t> shape = leading_sizes(h, h.dim() - 1);
  shape.push_back(2);
  return shape;
}

// One contiguous row per client: the tensor itself if contiguous or one row expanded to all clients, else a copy.
inline Tensor client_rows(const Tensor& tensor) {
  const bool shared = tensor.dim() == 2 && tensor.stride(0) == 0 && tensor.stride(1) == 1;
  return shared ? tensor : as_contiguous(tensor);
}

inline int64_t client_stride(const Tensor& rows) {
  return rows.dim() == 2 ? rows.stride(0) : rows.size(rows.dim() - 1);
}

// Inputs as raw pointers and strides; owns the memory that inputs() points to.
struct CpnRoutePlan {
  RoutePlan route;
  Tensor gamma, beta;

  CpnRoutePlan(const Tensor& h, const Tensor& a, const Tensor& given_gamma, const Tensor& given_beta,
               const std::optional<Tensor>& seed, double tau)
      : route(h, a, seed, tau), gamma(client_rows(given_gamma)), beta(client_rows(given_beta)) {
  }

  CpnRouteInputs inputs() const {
    return {route.inputs(), gamma.const_data_ptr(), beta.const_data_ptr(), client_stride(gamma), client_stride(beta)};
  }
};

template <class Run>
std::tuple<Tensor, Tensor, Tensor> cpn_route(const Tensor& h, const Tensor& a, const Tensor& gamma, const Tensor& beta,
                                             double eps, const std::optional<Tensor>& seed, double tau, Run run) {
  const char* op = "pfl_fast::cpn_route";
  check_cpn_route(op, h, a, gamma, beta, seed, tau);
  PFL_CHECK(std::isfinite(eps) && eps > 0, op, ": eps must be positive and finite, got ", eps);
  const CpnRoutePlan plan(h, a, gamma, beta, seed, tau);
  Tensor global_part = torch::stable::new_empty(h, h.sizes());
  Tensor personal_part = torch::stable::new_empty(h, h.sizes());
  Tensor stats = torch::stable::new_empty(h, stats_shape(h), accumulate_type(h.scalar_type()));
  run(CpnRouteForward{route_sizes(h), plan.inputs(), eps, global_part.mutable_data_ptr(),
                      personal_part.mutable_data_ptr(), stats.mutable_data_ptr()});
  return {std::move(global_part), std::move(personal_part), std::move(stats)};
}

// rows_per_part(b): number of rows per partial sum of gamma and beta gradients, chosen by the device.
template <class RowsPerPart, class Run>
std::tuple<Tensor, Tensor, Tensor, Tensor> cpn_route_backward(const Tensor& grad_global, const Tensor& grad_personal,
                                                              const Tensor& h, const Tensor& a, const Tensor& gamma,
                                                              const Tensor& beta, const Tensor& stats,
                                                              const std::optional<Tensor>& seed, double tau,
                                                              RowsPerPart rows_per_part, Run run) {
  const char* op = "pfl_fast::cpn_route_backward";
  check_cpn_route(op, h, a, gamma, beta, seed, tau);
  check_route_grads(op, grad_global, grad_personal, h);
  const ScalarType sum_type = accumulate_type(h.scalar_type());
  PFL_CHECK(stats.scalar_type() == sum_type && leading_sizes(stats, stats.dim()) == stats_shape(h), op,
            ": stats must be ", sum_type, " ", text_of(stats_shape(h)), " for h ", shape_of(h), ", got ",
            stats.scalar_type(), " ", shape_of(stats));
  check_device(op, "stats", stats, "h", h);
  const CpnRoutePlan plan(h, a, gamma, beta, seed, tau);
  const Tensor given_stats = as_contiguous(stats);
  const Tensor given_global = as_contiguous(grad_global);
  const Tensor given_personal = as_contiguous(grad_personal);
  Tensor grad_h = torch::stable::new_empty(h, h.sizes());
  Tensor grad_a = torch::stable::new_empty(h, a.sizes());
  Tensor grad_gamma = torch::stable::new_empty(h, gamma.sizes());
  Tensor grad_beta = torch::stable::new_empty(h, beta.sizes());
  const RouteSizes sizes = route_sizes(h);
  const int64_t rows = rows_per_part(sizes.rows);
  // A client without rows still has one part, whose sums are zero.
  const int64_t parts = sizes.rows > rows ? (sizes.rows + rows - 1) / rows : 1;
  Tensor gamma_parts = grad_gamma, beta_parts = grad_beta;
  if (parts > 1 || sum_type != h.scalar_type()) {
    const std::vector<int64_t> shape{sizes.clients, parts, 2 * sizes.features};
    gamma_parts = torch::stable::new_empty(h, shape, sum_type);
    beta_parts = torch::stable::new_empty(h, shape, sum_type);
  }
  run(CpnRouteBackward{sizes, plan.inputs(), given_stats.const_data_ptr(), given_global.const_data_ptr(),
                       given_personal.const_data_ptr(), grad_h.mutable_data_ptr(), grad_a.mutable_data_ptr(),
                       gamma_parts.mutable_data_ptr(), beta_parts.mutable_data_ptr(), parts, rows,
                       grad_gamma.mutable_data_ptr(), grad_beta.mutable_data_ptr()});
  return {std::move(grad_h), std::move(grad_a), std::move(grad_gamma), std::move(grad_beta)};
}

}  // namespace pfl
