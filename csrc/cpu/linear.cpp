// `linear` and `linear_step_` on CPU tensors: splits the work over threads, never a sum. The kernels are in
// linear_kernel.cpp, linear_grad_x_kernel.cpp and linear_grad_weight_kernel.cpp.
#include "linear.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <memory>

namespace pfl {
namespace {

constexpr int64_t kWorkPerThread = 1 << 18;  // products below which waking a thread costs more than it saves

// Calls kernel(problem, begin, end, scratch) for all blocks of all clients; each block costs `products` products.
template <class Problem, class Kernel>
void run_blocks(const Problem& problem, Kernel kernel, int64_t blocks, int64_t products, int64_t scratch) {
  const LinearSizes& s = problem.sizes;
  const int64_t bytes = scratch * (s.dtype == Float::kDouble ? sizeof(double) : sizeof(float));
  torch::stable::parallel_for(0, s.clients * blocks,
                              std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, products)),
                              [&](int64_t begin, int64_t end) {
                                const std::unique_ptr<char[]> memory(new char[bytes]);
                                kernel(problem, begin, end, memory.get());
                              });
}

void forward(const Linear& p) {
  const LinearSizes& s = p.sizes;
  run_blocks(p, PFL_CPU_KERNEL(linear), linear_blocks(s.outputs, kLinearOutputs), kLinearOutputs * s.rows * s.inputs,
             linear_scratch(s));
}

void backward(const LinearBackward& p) {
  const LinearSizes& s = p.sizes;
  if (p.grad_weight || p.grad_bias) {
    run_blocks(p, PFL_CPU_KERNEL(linear_grad_weight), linear_blocks(s.outputs, kLinearOutputs),
               kLinearOutputs * s.rows * (p.grad_weight ? s.inputs : 1), linear_grad_weight_scratch(s));
  }
  if (p.grad_x) {
    run_blocks(p, PFL_CPU_KERNEL(linear_grad_x), linear_blocks(s.inputs, kLinearColumns),
               kLinearColumns * s.rows * s.outputs, linear_grad_x_scratch(s));
  }
}

void step(const LinearStep& p) {
  const LinearSizes& s = p.sizes;
  run_blocks(p, PFL_CPU_KERNEL(linear_step), linear_blocks(s.outputs, kLinearOutputs),
             kLinearOutputs * s.rows * s.inputs, linear_grad_weight_scratch(s));
}

Tensor linear_cpu(Tensor x, Tensor weight, std::optional<Tensor> bias) {
  return linear(x, weight, bias, forward);
}

std::tuple<Tensor, Tensor, Tensor> linear_backward_cpu(Tensor grad, Tensor x, Tensor weight, bool needs_x,
                                                       bool needs_weight, bool needs_bias) {
  return linear_backward(grad, x, weight, needs_x, needs_weight, needs_bias, backward);
}

void linear_step_cpu(Tensor weight, Tensor grad, Tensor x, std::optional<Tensor> start, double lr,
                     double weight_decay) {
  linear_step(weight, grad, x, start, lr, weight_decay, step);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("linear", TORCH_BOX(&pfl::linear_cpu));
  m.impl("linear_backward", TORCH_BOX(&pfl::linear_backward_cpu));
  m.impl("linear_step_", TORCH_BOX(&pfl::linear_step_cpu));
}
