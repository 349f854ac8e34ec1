// The contract of `linear`: a fully connected layer for small batches.
//
//   x        [*batch, b, k]
//   weight   [*batch, n, k], one matrix per client
//   bias     [*batch, n], or none
//   result   [*batch, b, n]: x weight^T + bias
//
// The contract of `linear_step_`: an SGD step on the weight of such a layer, from the factors of its gradient:
//
//   grad     [*batch, b, n], gradient of the result
//   start    [*batch, n, k], or none: start from the weight itself
//   weight   becomes start - lr (grad^T x + weight_decay start)
//
// Terms with an exact zero in x or grad may be skipped, so 0 * NaN and 0 * inf may give 0.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "check.h"
#include "linear_kernel.h"

namespace pfl {

inline void check_weight(const char* op, const Tensor& x, const Tensor& weight) {
  check_float(op, "x", x);
  PFL_CHECK(x.dim() >= 2, op, ": x must be [*batch, b, k], got shape ", shape_of(x));
  check_like_x(op, "weight", weight, x);
  PFL_CHECK(weight.dim() == x.dim() &&
                has_shape_after(weight, x, x.dim() - 2, {size_from_last(weight, 2), size_from_last(x, 1)}),
            op, ": weight must be [*batch, n, k] with the batch and the k of x ", shape_of(x), ", got ",
            shape_of(weight));
}

inline LinearSizes linear_sizes(const Tensor& x, const Tensor& weight) {
  int64_t clients = 1;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    clients *= x.size(d);
  }
  return {kernel_type(x.scalar_type()), clients, size_from_last(x, 2), size_from_last(x, 1), size_from_last(weight, 2)};
}

// Returns true if kernels can read the tensor in place: at most one batch dimension before the last `dims` dimensions,
// and a contiguous last dimension.
inline bool has_rows(const Tensor& tensor, int64_t dims) {
  return tensor.dim() <= dims + 1 && (tensor.size(tensor.dim() - 1) <= 1 || tensor.stride(tensor.dim() - 1) == 1);
}

inline Tensor with_rows(const Tensor& tensor, int64_t dims) {
  return has_rows(tensor, dims) || tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// Pointer and strides of a tensor returned by with_rows.
inline LinearRows rows_of(const Tensor& tensor, int64_t dims) {
  const int64_t last = tensor.dim() - 1;
  const int64_t row = dims == 2 ? tensor.stride(last - 1) : 0;
  if (tensor.dim() <= dims) {
    return {tensor.const_data_ptr(), 0, row};
  }
  const int64_t values = dims == 2 ? tensor.size(last - 1) * tensor.size(last) : tensor.size(last);
  return {tensor.const_data_ptr(), has_rows(tensor, dims) ? tensor.stride(last - dims) : values, row};
}

inline std::vector<int64_t> with_last(const Tensor& tensor, int64_t size) {
  std::vector<int64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  shape.back() = size;
  return shape;
}

template <class Run>
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Run run) {
  const char* op = "pfl_fast::linear";
  check_weight(op, x, weight);
  const LinearSizes sizes = linear_sizes(x, weight);
  if (bias) {
    check_like_x(op, "bias", *bias, x);
    PFL_CHECK(has_shape_after(*bias, x, x.dim() - 2, {sizes.outputs}), op, ": bias must be [*batch, n] for weight ",
              shape_of(weight), ", got ", shape_of(*bias));
  }
  Tensor out = torch::stable::new_empty(x, with_last(x, sizes.outputs));
  if (out.numel() > 0) {
    const Tensor xs = with_rows(x, 2), weights = with_rows(weight, 2);
    const std::optional<Tensor> biases = bias ? std::optional<Tensor>(with_rows(*bias, 1)) : std::nullopt;
    run(Linear{sizes, rows_of(xs, 2), rows_of(weights, 2), biases ? rows_of(*biases, 1) : LinearRows{},
               out.mutable_data_ptr()});
  }
  return out;
}

inline void check_grad(const char* op, const Tensor& grad, const Tensor& x, const Tensor& weight) {
  check_like_x(op, "grad", grad, x);
  PFL_CHECK(has_shape_after(grad, x, x.dim() - 1, {size_from_last(weight, 2)}), op,
            ": grad must have the shape of the result, [*batch, b, n] for x ", shape_of(x), " and weight ",
            shape_of(weight), ", got ", shape_of(grad));
}

template <class Run>
std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                   bool needs_x, bool needs_weight, bool needs_bias, Run run) {
  const char* op = "pfl_fast::linear_backward";
  check_weight(op, x, weight);
  const LinearSizes sizes = linear_sizes(x, weight);
  check_grad(op, grad, x, weight);
  const std::vector<int64_t> nothing{0}, of_bias(weight.sizes().begin(), weight.sizes().end() - 1);
  Tensor grad_x = torch::stable::new_empty(x, needs_x ? with_last(x, sizes.inputs) : nothing);
  Tensor grad_weight = torch::stable::new_empty(x, needs_weight ? with_last(weight, sizes.inputs) : nothing);
  Tensor grad_bias = torch::stable::new_empty(x, needs_bias ? of_bias : nothing);
  const auto wanted = [](Tensor& gradient) { return gradient.numel() > 0 ? gradient.mutable_data_ptr() : nullptr; };
  const Tensor grads = with_rows(grad, 2), xs = with_rows(x, 2), weights = with_rows(weight, 2);
  run(LinearBackward{sizes, rows_of(grads, 2), rows_of(xs, 2), rows_of(weights, 2), wanted(grad_x), wanted(grad_weight),
                     wanted(grad_bias)});
  return {std::move(grad_x), std::move(grad_weight), std::move(grad_bias)};
}

inline void check_step(const Tensor& weight, const Tensor& grad, const Tensor& x, const std::optional<Tensor>& start,
                       double lr, double weight_decay) {
  const char* op = "pfl_fast::linear_step_";
  check_weight(op, x, weight);
  check_grad(op, grad, x, weight);
  if (start) {
    check_shape(op, "start", *start, "weight", weight);
    check_like_x(op, "start", *start, x);
  }
  PFL_CHECK(lr >= 0 && std::isfinite(lr), op, ": lr must be finite and not negative, got ", lr);
  PFL_CHECK(weight_decay >= 0 && std::isfinite(weight_decay), op,
            ": weight_decay must be finite and not negative, got ", weight_decay);
  for (int64_t d = 0; d < weight.dim(); ++d) {
    PFL_CHECK(weight.size(d) < 2 || weight.stride(d) != 0, op,
              ": weight must not be expanded, as it is written to, got stride 0 in dimension ", d, " of ",
              shape_of(weight));
  }
}

template <class Run>
void linear_step(Tensor& weight, const Tensor& grad, const Tensor& x, const std::optional<Tensor>& start, double lr,
                 double weight_decay, Run run) {
  check_step(weight, grad, x, start, lr, weight_decay);
  if (weight.numel() == 0) {
    return;
  }
  // A weight that kernels cannot write in place is updated in a copy.
  Tensor target = with_rows(weight, 2);
  const Tensor from = start ? with_rows(*start, 2) : target;
  const Tensor grads = with_rows(grad, 2), xs = with_rows(x, 2);
  const LinearRows written = rows_of(target, 2);
  run(LinearStep{linear_sizes(x, weight), rows_of(grads, 2), rows_of(xs, 2), rows_of(from, 2),
                 target.mutable_data_ptr(), written.client, written.row, lr, weight_decay});
  if (target.const_data_ptr() != weight.const_data_ptr()) {
    torch::stable::copy_(weight, target);
  }
}

}  // namespace pfl
