// The contract of `mmd_rbf`: squared maximum mean discrepancy of two sets of points under a sum of Gaussian kernels.
//
//   x, y        [*batch, b, K], same shape, dtype and device
//   bandwidths  1 to 32 finite numbers a > 0
//   result      [*batch] float (double for double): mean over i, j of k(D_xx) + k(D_yy) - 2 k(D_xy), with squared
//               distances D and k(D) = sum_a exp(-D / (2 a)); 0 if b is 0
//   weights     [*batch, 3, b, b]: -2 dk/dD of the pairs (x, x), (y, y), (x, y), saved for the backward
#pragma once

#include "common/check.h"
#include "ops/mmd_rbf/problem.h"

namespace pfl {

inline void check_points(const char* op, const Tensor& x, const Tensor& y) {
  check_float(op, "x", x);
  check_float(op, "y", y);
  check_dtype(op, "y", y, "x", x);
  check_device(op, "y", y, "x", x);
  PFL_CHECK(x.dim() >= 2, op, ": x must be [*batch, points, features], got shape ", shape_of(x));
  check_shape(op, "y", y, "x", x);
}

inline void check_bandwidths(const char* op, const std::vector<double>& bandwidths) {
  PFL_CHECK(!bandwidths.empty() && static_cast<int64_t>(bandwidths.size()) <= kMmdMaxBandwidths, op,
            ": bandwidths must hold 1 to ", kMmdMaxBandwidths, " numbers, got ", bandwidths.size());
  for (double a : bandwidths) {
    PFL_CHECK(std::isfinite(a) && a > 0, op, ": bandwidths must be finite and greater than 0, got ", a);
  }
}

inline std::vector<int64_t> mmd_batch(const Tensor& x) {
  return {x.sizes().begin(), x.sizes().end() - 2};
}

inline int64_t mmd_clients(const Tensor& x) {
  int64_t clients = 1;
  for (int64_t size : mmd_batch(x)) {
    clients *= size;
  }
  return clients;
}

inline std::vector<int64_t> mmd_weight_shape(const Tensor& x) {
  std::vector<int64_t> shape = mmd_batch(x);
  shape.insert(shape.end(), {3, x.size(x.dim() - 2), x.size(x.dim() - 2)});
  return shape;
}

template <class Run>
std::tuple<Tensor, Tensor> mmd_rbf(const Tensor& x, const Tensor& y, const std::vector<double>& bandwidths, Run run) {
  check_points("pfl_fast::mmd_rbf", x, y);
  check_bandwidths("pfl_fast::mmd_rbf", bandwidths);
  const Tensor xs = torch::stable::contiguous(x), ys = torch::stable::contiguous(y);
  const ScalarType sum_type = accumulate_type(x.scalar_type());
  const int64_t clients = mmd_clients(x), points = x.size(x.dim() - 2);
  Tensor out = points > 0 ? torch::stable::new_empty(x, mmd_batch(x), sum_type)
                          : torch::stable::new_zeros(x, mmd_batch(x), sum_type);
  Tensor weights = torch::stable::new_empty(x, mmd_weight_shape(x), sum_type);
  const Tensor sums = torch::stable::new_empty(x, std::vector<int64_t>{clients, points}, sum_type);
  if (clients > 0 && points > 0) {
    run(MmdRbf{kernel_type(x.scalar_type()), clients, points, x.size(x.dim() - 1),
               static_cast<int64_t>(bandwidths.size()), bandwidths.data(), xs.const_data_ptr(), ys.const_data_ptr(),
               weights.mutable_data_ptr(), sums.mutable_data_ptr(), out.mutable_data_ptr()});
  }
  return {std::move(out), std::move(weights)};
}

inline void check_mmd_rbf_backward(const char* op, const Tensor& grad, const Tensor& x, const Tensor& weights) {
  const ScalarType sum_type = accumulate_type(x.scalar_type());
  const auto has_shape = [](const Tensor& tensor, const std::vector<int64_t>& shape) {
    return std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end()) == shape;
  };
  PFL_CHECK(grad.scalar_type() == sum_type && has_shape(grad, mmd_batch(x)), op, ": grad must be ", sum_type,
            " with the batch of x ", shape_of(x), ", got ", grad.scalar_type(), " ", shape_of(grad));
  PFL_CHECK(weights.scalar_type() == sum_type && has_shape(weights, mmd_weight_shape(x)), op, ": weights must be ",
            sum_type, " [*batch, 3, points, points] for x ", shape_of(x), ", got ", weights.scalar_type(), " ",
            shape_of(weights));
  check_device(op, "grad", grad, "x", x);
  check_device(op, "weights", weights, "x", x);
}

template <class Run>
std::tuple<Tensor, Tensor> mmd_rbf_backward(const Tensor& grad, const Tensor& x, const Tensor& y, const Tensor& weights,
                                            bool needs_x, bool needs_y, Run run) {
  const char* op = "pfl_fast::mmd_rbf_backward";
  check_points(op, x, y);
  check_mmd_rbf_backward(op, grad, x, weights);
  const auto contiguous = [](const Tensor& tensor) { return torch::stable::contiguous(tensor); };
  const Tensor grads = contiguous(grad), xs = contiguous(x), ys = contiguous(y), all = contiguous(weights);
  const std::vector<int64_t> full(x.sizes().begin(), x.sizes().end()), nothing{0};
  Tensor grad_x = torch::stable::new_empty(x, needs_x ? full : nothing);
  Tensor grad_y = torch::stable::new_empty(x, needs_y ? full : nothing);
  if (x.numel() > 0 && (needs_x || needs_y)) {
    run(MmdRbfBackward{kernel_type(x.scalar_type()), mmd_clients(x), x.size(x.dim() - 2), x.size(x.dim() - 1),
                       grads.const_data_ptr(), xs.const_data_ptr(), ys.const_data_ptr(), all.const_data_ptr(),
                       needs_x ? grad_x.mutable_data_ptr() : nullptr, needs_y ? grad_y.mutable_data_ptr() : nullptr});
  }
  return {std::move(grad_x), std::move(grad_y)};
}

}  // namespace pfl
