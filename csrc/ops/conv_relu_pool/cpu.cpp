// `conv_relu_pool` on CPU tensors: splits the work over threads. The kernels are in cpu_*kernel.cpp.
#include "ops/conv_relu_pool/contract.h"

namespace pfl {
namespace {

int64_t grain(int64_t work) {
  return std::max<int64_t>(1, kConvWorkPerThread / std::max<int64_t>(1, work));
}

// Number of products per output channel of a sample, for one pixel of each pooling window.
int64_t products(const ConvReluPoolSizes& s) {
  return s.pooled_height * s.pooled_width * s.channels * s.kernel * s.kernel;
}

template <class Kernel, class Problem>
void run(Kernel kernel, const Problem& p, int64_t tasks, int64_t grain) {
  torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

void forward(const ConvReluPool& p) {
  const ConvReluPoolSizes& s = p.sizes;
  if (conv_uses_winograd(s)) {
    run(PFL_CPU_KERNEL(conv_relu_pool_winograd), p, s.clients * conv_tile_blocks(s.samples * conv_tiles(s)), 1);
  } else {
    run(PFL_CPU_KERNEL(conv_relu_pool), p, s.clients * s.samples, grain(4 * s.outputs * products(s)));
  }
}

void backward(const ConvReluPoolBackward& p) {
  const ConvReluPoolSizes& s = p.sizes;
  const bool winograd = conv_uses_winograd(s);
  if (p.grad_weight.data) {
    run(winograd ? PFL_CPU_KERNEL(conv_relu_pool_winograd_grad_weight) : PFL_CPU_KERNEL(conv_relu_pool_grad_weight), p,
        s.clients * conv_output_blocks(s), winograd ? 2 : grain(kConvOutputs * s.samples * products(s)));
  }
  if (p.grad_x.data && winograd) {
    run(PFL_CPU_KERNEL(conv_relu_pool_winograd_grad_x), p, s.clients * conv_winograd_groups(s), 1);
  } else if (p.grad_x.data) {
    run(PFL_CPU_KERNEL(conv_relu_pool_grad_x), p, s.clients * s.samples, grain(s.outputs * products(s)));
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
