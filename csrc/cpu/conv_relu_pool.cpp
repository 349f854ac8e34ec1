// `conv_relu_pool` on CPU tensors: how the work is dealt to threads. The arithmetic is in conv_relu_pool_kernel.cpp.
#include "conv_relu_pool.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>

namespace pfl {
namespace {

constexpr int64_t kWorkPerThread = 1 << 18;  // products below which waking a thread costs more than it saves

int64_t grain(int64_t work) {
  return std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work));
}

// Products of one output channel of one sample, at one pixel of each pooling window.
int64_t products(const ConvReluPoolSizes& s) {
  return s.pooled_height * s.pooled_width * s.channels * s.kernel * s.kernel;
}

void forward(const ConvReluPool& p) {
  const ConvReluPoolSizes& s = p.sizes;
  torch::stable::parallel_for(0, s.clients * s.samples, grain(4 * s.outputs * products(s)),
                              [&](int64_t begin, int64_t end) {
                                std::vector<double> scratch(conv_padded_sample(s) + conv_packed_weights(s) + kConvLine);
                                PFL_CPU_KERNEL(conv_relu_pool)(p, begin, end, scratch.data());
                              });
}

void backward(const ConvReluPoolBackward& p) {
  const ConvReluPoolSizes& s = p.sizes;
  const int64_t image = conv_padded_sample(s), grads = conv_staged_grads(s);
  if (p.grad_weight.data) {
    const int64_t blocks = conv_round_up(s.outputs, kConvOutputs) / kConvOutputs;
    torch::stable::parallel_for(0, s.clients * blocks, grain(kConvOutputs * s.samples * products(s)),
                                [&](int64_t begin, int64_t end) {
                                  std::vector<double> scratch(2 * image + grads + conv_weight_sums(s) + kConvLine);
                                  PFL_CPU_KERNEL(conv_relu_pool_grad_weight)(p, begin, end, scratch.data());
                                });
  }
  if (p.grad_x.data) {
    torch::stable::parallel_for(0, s.clients * s.samples, grain(s.outputs * products(s)),
                                [&](int64_t begin, int64_t end) {
                                  std::vector<double> scratch(image + grads + conv_packed_weights(s));
                                  PFL_CPU_KERNEL(conv_relu_pool_grad_x)(p, begin, end, scratch.data());
                                });
  }
}

std::tuple<Tensor, Tensor> conv_relu_pool_cpu(Tensor x, Tensor weight, Tensor bias, int64_t padding) {
  return conv_relu_pool(x, weight, bias, padding, forward);
}

std::tuple<Tensor, Tensor, Tensor> conv_relu_pool_backward_cpu(Tensor grad, Tensor x, Tensor weight, Tensor index,
                                                               int64_t padding, bool needs_x, bool needs_weight) {
  const auto no_parts = [](const ConvReluPoolSizes&) { return int64_t{0}; };
  return conv_relu_pool_backward(grad, x, weight, index, padding, needs_x, needs_weight, no_parts, backward);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("conv_relu_pool", TORCH_BOX(&pfl::conv_relu_pool_cpu));
  m.impl("conv_relu_pool_backward", TORCH_BOX(&pfl::conv_relu_pool_backward_cpu));
}
