// `conv_relu_pool` on CPU tensors: splits the work over threads. The kernels are in cpu_*kernel.cpp.
#include "ops/conv_relu_pool/contract.h"

namespace pfl {
namespace {

constexpr int64_t kWorkPerThread = 1 << 18;  // products below which waking a thread costs more than it saves

int64_t grain(int64_t work) {
  return std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work));
}

// Number of products per output channel of a sample, for one pixel of each pooling window.
int64_t products(const ConvReluPoolSizes& s) {
  return s.pooled_height * s.pooled_width * s.channels * s.kernel * s.kernel;
}

// Uninitialised, because it takes megabytes.
std::unique_ptr<double[]> winograd_scratch(const ConvReluPoolSizes& s, int64_t values) {
  const int64_t bytes = s.dtype == Float::kDouble ? 8 : 4;
  return std::unique_ptr<double[]>(new double[(conv_winograd_scratch(s) + values) * bytes / 8 + kConvCacheLine]);
}

void winograd_forward(const ConvReluPool& p) {
  const ConvReluPoolSizes& s = p.sizes;
  torch::stable::parallel_for(0, s.clients * conv_tile_blocks(s.samples * conv_tiles(s)), 1,
                              [&](int64_t begin, int64_t end) {
                                const auto scratch = winograd_scratch(s, 0);
                                PFL_CPU_KERNEL(conv_relu_pool_winograd)(p, begin, end, scratch.get());
                              });
}

void winograd_backward(const ConvReluPoolBackward& p) {
  const ConvReluPoolSizes& s = p.sizes;
  if (p.grad_weight.data) {
    torch::stable::parallel_for(0, s.clients * conv_output_blocks(s), 2, [&](int64_t begin, int64_t end) {
      const auto scratch = winograd_scratch(s, 0);
      PFL_CPU_KERNEL(conv_relu_pool_winograd_grad_weight)(p, begin, end, scratch.get());
    });
  }
  if (p.grad_x.data) {
    torch::stable::parallel_for(0, s.clients * conv_winograd_groups(s), 1, [&](int64_t begin, int64_t end) {
      const auto scratch = winograd_scratch(s, conv_winograd_samples(s) * conv_winograd_image(s));
      PFL_CPU_KERNEL(conv_relu_pool_winograd_grad_x)(p, begin, end, scratch.get());
    });
  }
}

void forward(const ConvReluPool& p) {
  const ConvReluPoolSizes& s = p.sizes;
  if (conv_uses_winograd(s)) {
    return winograd_forward(p);
  }
  torch::stable::parallel_for(
      0, s.clients * s.samples, grain(4 * s.outputs * products(s)), [&](int64_t begin, int64_t end) {
        std::vector<double> scratch(conv_padded_sample(s) + conv_packed_weights(s) + kConvCacheLine);
        PFL_CPU_KERNEL(conv_relu_pool)(p, begin, end, scratch.data());
      });
}

void backward(const ConvReluPoolBackward& p) {
  const ConvReluPoolSizes& s = p.sizes;
  if (conv_uses_winograd(s)) {
    return winograd_backward(p);
  }
  const int64_t image = conv_padded_sample(s), grads = conv_staged_grads(s);
  if (p.grad_weight.data) {
    torch::stable::parallel_for(0, s.clients * conv_output_blocks(s), grain(kConvOutputs * s.samples * products(s)),
                                [&](int64_t begin, int64_t end) {
                                  std::vector<double> scratch(2 * image + grads + conv_weight_sums(s) + kConvCacheLine);
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
