// Input checks of all operators. Messages read "pfl_fast::<op>: <argument> must <expectation>, got <value>".
#pragma once

#include <stdexcept>

#include "common/dtype.h"
#include "common/torch.h"

namespace pfl {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws a RuntimeError (in Python) with this message, without C++ file names and line numbers.
#define PFL_CHECK(condition, ...)                                \
  do {                                                           \
    if (!(condition)) {                                          \
      throw std::runtime_error(::pfl::concatenate(__VA_ARGS__)); \
    }                                                            \
  } while (0)

template <class... Parts>
std::string concatenate(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline bool is_supported_float(ScalarType type) {
  return type == ScalarType::Double || type == ScalarType::Float || type == ScalarType::BFloat16 ||
         type == ScalarType::Half;
}

inline Float kernel_type(ScalarType type) {
  return type == ScalarType::Double     ? Float::kDouble
         : type == ScalarType::Float    ? Float::kFloat
         : type == ScalarType::BFloat16 ? Float::kBFloat16
                                        : Float::kHalf;
}

inline ScalarType accumulate_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

template <class Sizes>
std::string text_of(const Sizes& sizes) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i ? ", " : "") << sizes[i];
  }
  text << ']';
  return text.str();
}

inline std::string shape_of(const Tensor& tensor) {
  return text_of(tensor.sizes());
}

inline std::string device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return "cpu";
  }
  return concatenate(tensor.is_cuda() ? "cuda:" : "device:", tensor.get_device_index());
}

inline void check_float(const char* op, const std::string& name, const Tensor& tensor) {
  PFL_CHECK(is_supported_float(tensor.scalar_type()), op, ": ", name,
            " must be float64, float32, bfloat16 or float16, got ", tensor.scalar_type());
}

inline void check_dtype(const char* op, const std::string& name, const Tensor& tensor, const std::string& other_name,
                        const Tensor& other) {
  PFL_CHECK(tensor.scalar_type() == other.scalar_type(), op, ": ", name, " must have the dtype of ", other_name, ", ",
            other.scalar_type(), ", got ", tensor.scalar_type());
}

inline void check_device(const char* op, const std::string& name, const Tensor& tensor, const std::string& other_name,
                         const Tensor& other) {
  PFL_CHECK(tensor.device() == other.device(), op, ": ", name, " must be on the device of ", other_name, ", ",
            device_of(other), ", got ", device_of(tensor));
}

inline void check_shape(const char* op, const std::string& name, const Tensor& tensor, const std::string& other_name,
                        const Tensor& other) {
  PFL_CHECK(shape_of(tensor) == shape_of(other), op, ": ", name, " must have the shape of ", other_name, ", ",
            shape_of(other), ", got ", shape_of(tensor));
}

inline std::vector<int64_t> leading_sizes(const Tensor& tensor, int64_t count) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.begin() + count};
}

// Checks that the tensor has the dtype and device of another one and this shape.
inline void check_like(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                       const Tensor& other, const std::vector<int64_t>& shape) {
  check_dtype(op, name, tensor, other_name, other);
  check_device(op, name, tensor, other_name, other);
  PFL_CHECK(leading_sizes(tensor, tensor.dim()) == shape, op, ": ", name, " must have shape ", text_of(shape), " for ",
            other_name, " ", shape_of(other), ", got ", shape_of(tensor));
}

// Size of dimension -from_last: 1 is the last dimension.
inline int64_t size_from_last(const Tensor& tensor, int64_t from_last) {
  return tensor.size(tensor.dim() - from_last);
}

// Returns true if the shape of `tensor` is the first `count` dimensions of x followed by `sizes`.
inline bool has_shape_after(const Tensor& tensor, const Tensor& x, int64_t count, const std::vector<int64_t>& sizes) {
  if (tensor.dim() != count + static_cast<int64_t>(sizes.size())) {
    return false;
  }
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != (d < count ? x.size(d) : sizes[d - count])) {
      return false;
    }
  }
  return true;
}

inline void check_like_x(const char* op, const char* name, const Tensor& tensor, const Tensor& x) {
  check_dtype(op, name, tensor, "x", x);
  check_device(op, name, tensor, "x", x);
}

}  // namespace pfl
