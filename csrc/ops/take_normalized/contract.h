// The contract of `take_normalized`: gathers uint8 images by index and normalises them.
//
//   images     [N, H, W, C] uint8, contiguous: it may be a memory-mapped file, which must not be copied implicitly
//   index      [*batch] int64 in [0, N). Checked on the CPU; on a GPU a check would synchronise the stream, so images
//              of an index out of range become NaN
//   mean, std  [C] floating
//   result     [*batch, C, H, W] in the given dtype: (x / 255 - mean) / std in float (double for double), rounded once;
//              with channels_last the memory order of each image is H, W, C
#pragma once

#include "common/check.h"
#include "common/layout.h"
#include "ops/take_normalized/problem.h"

namespace pfl {

inline void check_take_normalized(const Tensor& images, const Tensor& index, const Tensor& mean, const Tensor& std,
                                  ScalarType dtype) {
  const char* op = "pfl_fast::take_normalized";
  PFL_CHECK(images.scalar_type() == ScalarType::Byte, op, ": images must be uint8, got ", images.scalar_type());
  PFL_CHECK(images.dim() == 4, op, ": images must be [count, height, width, channels], got shape ", shape_of(images));
  PFL_CHECK(images.is_contiguous(), op,
            ": images must be contiguous, so that a data set is not copied at each call: call .contiguous() once, got "
            "shape ",
            shape_of(images), " with gaps or another order in memory");
  PFL_CHECK(index.scalar_type() == ScalarType::Long, op, ": index must be an int64 tensor, got ", index.scalar_type());
  check_device(op, "index", index, "images", images);
  for (const auto& [name, tensor] : {std::pair{"mean", &mean}, std::pair{"std", &std}}) {
    check_float(op, name, *tensor);
    check_device(op, name, *tensor, "images", images);
    PFL_CHECK(tensor->dim() == 1 && tensor->size(0) == images.size(3), op, ": ", name, " must be [", images.size(3),
              "], one for each channel of images, got shape ", shape_of(*tensor));
  }
  PFL_CHECK(is_supported_float(dtype), op, ": dtype must be float64, float32, bfloat16 or float16, got ", dtype);
}

inline void check_index_values(const Tensor& contiguous_index, int64_t count) {
  const int64_t* values = contiguous_index.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < contiguous_index.numel(); ++i) {
    PFL_CHECK(values[i] >= 0 && values[i] < count, "pfl_fast::take_normalized: index must be in [0, ", count,
              "), the number of images, got ", values[i]);
  }
}

// Uninitialised result [*batch, C, H, W].
inline Tensor new_images(const Tensor& images, const Tensor& index, bool channels_last, ScalarType dtype) {
  const int64_t height = images.size(1), width = images.size(2), channels = images.size(3);
  std::vector<int64_t> shape(index.sizes().begin(), index.sizes().end());
  if (channels_last) {
    return new_channels_last(images, shape, channels, height, width, dtype);
  }
  shape.insert(shape.end(), {channels, height, width});
  return torch::stable::new_empty(images, shape, dtype);
}

template <class Run>
Tensor take_normalized(const Tensor& images, const Tensor& index, const Tensor& mean, const Tensor& std,
                       bool channels_last, ScalarType dtype, Run run) {
  check_take_normalized(images, index, mean, std, dtype);
  const int64_t height = images.size(1), width = images.size(2), channels = images.size(3);
  // A batch of ten small images takes a few microseconds, so dispatcher calls without effect are avoided.
  const auto contiguous = [](const Tensor& tensor) {
    return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
  };
  const auto in_sum_type = [&](const Tensor& tensor) {
    const ScalarType type = accumulate_type(dtype);
    return contiguous(tensor.scalar_type() == type ? tensor : torch::stable::to(tensor, type));
  };
  const Tensor picks = contiguous(index), means = in_sum_type(mean), stds = in_sum_type(std);
  if (index.is_cpu()) {
    check_index_values(picks, images.size(0));
  }
  Tensor out = new_images(images, index, channels_last, dtype);
  run(TakeNormalized{kernel_type(dtype), images.const_data_ptr<uint8_t>(), images.size(0), height * width, channels,
                     picks.const_data_ptr<int64_t>(), picks.numel(), means.const_data_ptr(), stds.const_data_ptr(),
                     channels_last, out.mutable_data_ptr()});
  return out;
}

}  // namespace pfl
