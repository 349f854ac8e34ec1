// How every operator reports bad input: "pfl_fast::<op>: <argument> <expected>, got <what came>".
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace pfl {

// Throws a RuntimeError (in Python) that says only what the caller needs: no file names, no line numbers.
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

inline std::string shape_of(const torch::stable::Tensor& tensor) {
  std::ostringstream text;
  text << '[';
  const auto sizes = tensor.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i ? ", " : "") << sizes[i];
  }
  text << ']';
  return text.str();
}

inline std::string device_of(const torch::stable::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return "cpu";
  }
  return concatenate(tensor.is_cuda() ? "cuda:" : "device:", tensor.get_device_index());
}

inline bool same_device(const torch::stable::Tensor& a, const torch::stable::Tensor& b) {
  return a.device() == b.device();
}

}  // namespace pfl
