// The contract of `conv_relu_pool`: 2 x 2 max pooling of relu(conv2d(x, weight) + bias).
//
//   x        [*batch, b, c, h, w]
//   weight   [*batch, o, c, k, k], one set of kernels per client, 1 <= k <= 7
//   bias     [*batch, o]
//   padding  zeros on each side of an image, 0 <= padding < k
//   result   [*batch, b, o, ho / 2, wo / 2], floored, with ho = h + 2 padding - k + 1 and wo likewise. The memory order
//            is [*batch, b, ho / 2, wo / 2, o]
//   index    uint8 with the shape of the result: row-major position 0 to 3 of the maximum in its window, or 4 where
//            ReLU returned 0. Ties go to the first pixel, NaN to the last one, as in torch's max_pool2d
//   gradients flow through the pixel at `index` only
#pragma once

#include "common/check.h"
#include "common/layout.h"
#include "ops/conv_relu_pool/problem.h"

namespace pfl {

inline void check_kernels(const char* op, const Tensor& x, const Tensor& weight, int64_t padding) {
  check_float(op, "x", x);
  PFL_CHECK(x.dim() >= 4, op, ": x must be [*batch, b, c, h, w], got shape ", shape_of(x));
  check_like_x(op, "weight", weight, x);
  PFL_CHECK(weight.dim() == x.dim() && has_shape_after(weight, x, x.dim() - 4,
                                                       {size_from_last(weight, 4), size_from_last(x, 3),
                                                        size_from_last(weight, 1), size_from_last(weight, 1)}),
            op, ": weight must be [*batch, o, c, k, k] with the batch and the c of x ", shape_of(x), ", got ",
            shape_of(weight));
  const int64_t k = size_from_last(weight, 1);
  PFL_CHECK(k >= 1 && k <= kConvMaxKernel && size_from_last(weight, 4) > 0 && size_from_last(weight, 3) > 0, op,
            ": weight must have k from 1 to ", kConvMaxKernel, " and at least one channel, got ", shape_of(weight),
            "; other sizes run as conv2d, relu and max_pool2d");
  PFL_CHECK(padding >= 0 && padding < k, op, ": padding must be from 0 to k - 1 = ", k - 1, ", got ", padding);
  for (int64_t side : {size_from_last(x, 2), size_from_last(x, 1)}) {
    PFL_CHECK(side + 2 * padding - k + 1 >= 2, op, ": x must be at least ", k + 1 - 2 * padding,
              " pixels high and wide for kernels of ", k, " and padding ", padding, ", got shape ", shape_of(x));
  }
  PFL_CHECK(size_from_last(x, 3) * size_from_last(x, 2) * size_from_last(x, 1) <= kConvMaxValues, op,
            ": x must have at most ", kConvMaxValues, " values in a sample, got shape ", shape_of(x));
}

inline ConvReluPoolSizes conv_sizes(const Tensor& x, const Tensor& weight, int64_t padding) {
  int64_t clients = 1;
  for (int64_t d = 0; d < x.dim() - 4; ++d) {
    clients *= x.size(d);
  }
  const int64_t h = size_from_last(x, 2), w = size_from_last(x, 1), k = size_from_last(weight, 1);
  return {kernel_type(x.scalar_type()),
          clients,
          size_from_last(x, 4),
          size_from_last(x, 3),
          h,
          w,
          size_from_last(weight, 4),
          k,
          padding,
          (h + 2 * padding - k + 1) / 2,
          (w + 2 * padding - k + 1) / 2};
}

// Merges all batch dimensions into one, [clients, ...]; a view where possible. One client may have no batch dimension.
inline Tensor one_batch_dimension(const Tensor& tensor) {
  if (tensor.dim() <= 5) {
    return tensor;
  }
  int64_t clients = 1;
  for (int64_t d = 0; d < tensor.dim() - 4; ++d) {
    clients *= tensor.size(d);
  }
  std::vector<int64_t> shape(tensor.sizes().end() - 4, tensor.sizes().end());
  shape.insert(shape.begin(), clients);
  return torch::stable::reshape(tensor, shape);
}

template <class Pointer>
Strided<Pointer> strided(const Tensor& tensor, Pointer data) {
  const auto stride = [&](int64_t from_last) { return tensor.stride(tensor.dim() - from_last); };
  return {data, tensor.dim() == 5 ? stride(5) : 0, stride(4), stride(3), stride(2), stride(1)};
}

inline Strided<const void*> strided_input(const Tensor& tensor) {
  return strided(tensor, tensor.const_data_ptr());
}

// Uninitialised tensor; keeps the memory order of `like` if that has at most one batch dimension.
inline Tensor new_gradient(const Tensor& like) {
  return like.dim() <= 5 ? torch::stable::empty_like(like) : torch::stable::new_empty(like, like.sizes());
}

inline Strided<void*> strided_gradient(const Tensor& tensor, bool needed) {
  return needed ? strided(one_batch_dimension(tensor), tensor.mutable_data_ptr()) : Strided<void*>{};
}

template <class Run>
std::tuple<Tensor, Tensor> conv_relu_pool(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t padding,
                                          Run run) {
  const char* op = "pfl_fast::conv_relu_pool";
  check_kernels(op, x, weight, padding);
  check_like_x(op, "bias", bias, x);
  const ConvReluPoolSizes sizes = conv_sizes(x, weight, padding);
  PFL_CHECK(has_shape_after(bias, x, x.dim() - 4, {sizes.outputs}), op, ": bias must be [*batch, o] for weight ",
            shape_of(weight), ", got ", shape_of(bias));
  const Tensor xs = one_batch_dimension(x), weights = one_batch_dimension(weight);
  const Tensor biases = bias.is_contiguous() ? bias : torch::stable::contiguous(bias);
  const std::vector<int64_t> batch(x.sizes().begin(), x.sizes().end() - 3);
  const auto new_result = [&](ScalarType type) {
    return new_channels_last(x, batch, sizes.outputs, sizes.pooled_height, sizes.pooled_width, type);
  };
  Tensor out = new_result(x.scalar_type()), index = new_result(ScalarType::Byte);
  if (out.numel() > 0) {
    run(ConvReluPool{sizes, strided_input(xs), strided_input(weights), biases.const_data_ptr(), out.mutable_data_ptr(),
                     index.mutable_data_ptr<uint8_t>()});
  }
  return {std::move(out), std::move(index)};
}

inline void check_conv_relu_pool_grads(const char* op, const Tensor& grad, const Tensor& index, const Tensor& x,
                                       const ConvReluPoolSizes& s) {
  check_like_x(op, "grad", grad, x);
  check_device(op, "index", index, "x", x);
  PFL_CHECK(index.scalar_type() == ScalarType::Byte, op, ": index must be uint8, got ", index.scalar_type());
  const std::vector<int64_t> shape{s.outputs, s.pooled_height, s.pooled_width};
  for (const auto& [name, tensor] : {std::pair{"grad", &grad}, std::pair{"index", &index}}) {
    PFL_CHECK(has_shape_after(*tensor, x, x.dim() - 3, shape), op, ": ", name,
              " must have the shape of the result, [*batch, b, ", shape[0], ", ", shape[1], ", ", shape[2], "] for x ",
              shape_of(x), ", got ", shape_of(*tensor));
  }
}

// samples_per_part(sizes): number of samples per partial sum of the weight gradient, 0 if the device needs none.
template <class SamplesPerPart, class Run>
std::tuple<Tensor, Tensor, Tensor> conv_relu_pool_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                           const Tensor& index, int64_t padding, bool needs_x,
                                                           bool needs_weight, SamplesPerPart samples_per_part,
                                                           Run run) {
  const char* op = "pfl_fast::conv_relu_pool_backward";
  check_kernels(op, x, weight, padding);
  const ConvReluPoolSizes sizes = conv_sizes(x, weight, padding);
  check_conv_relu_pool_grads(op, grad, index, x, sizes);
  const Tensor grads = one_batch_dimension(grad), winners = one_batch_dimension(index);
  const Tensor xs = one_batch_dimension(x), weights = one_batch_dimension(weight);
  const std::vector<int64_t> nothing{0}, bias_shape(weight.sizes().begin(), weight.sizes().end() - 3);
  Tensor grad_x = needs_x ? new_gradient(x) : torch::stable::new_empty(x, nothing);
  Tensor grad_weight = needs_weight ? new_gradient(weight) : torch::stable::new_empty(x, nothing);
  Tensor grad_bias = torch::stable::new_empty(x, needs_weight ? bias_shape : nothing);
  const int64_t part_samples = needs_weight ? samples_per_part(sizes) : 0;
  const int64_t parts = part_samples > 0 ? (sizes.samples + part_samples - 1) / part_samples : 0;
  const std::vector<int64_t> parts_shape{sizes.clients, parts, sizes.channels * sizes.kernel * sizes.kernel + 1,
                                         sizes.outputs};
  const Tensor sums = torch::stable::new_empty(x, parts_shape, accumulate_type(x.scalar_type()));
  if (sizes.clients > 0) {
    run(ConvReluPoolBackward{sizes, strided_input(grads), strided(winners, winners.const_data_ptr<uint8_t>()),
                             strided_input(xs), strided_input(weights), strided_gradient(grad_x, needs_x),
                             strided_gradient(grad_weight, needs_weight), grad_bias.mutable_data_ptr(),
                             sums.mutable_data_ptr(), parts, part_samples});
  }
  return {std::move(grad_x), std::move(grad_weight), std::move(grad_bias)};
}

}  // namespace pfl
