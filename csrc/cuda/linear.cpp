#include "linear.h"

#include <torch/csrc/stable/library.h>

#include "launch.h"

namespace pfl {
namespace {

Tensor linear_cuda(Tensor x, Tensor weight, std::optional<Tensor> bias) {
  const Launch launch("pfl_fast::linear", x);
  return linear(x, weight, bias, [&](const Linear& problem) { launch(&pfl_cuda_linear, problem); });
}

std::tuple<Tensor, Tensor, Tensor> linear_backward_cuda(Tensor grad, Tensor x, Tensor weight, bool needs_x,
                                                        bool needs_weight, bool needs_bias) {
  const Launch launch("pfl_fast::linear_backward", x);
  return linear_backward(grad, x, weight, needs_x, needs_weight, needs_bias,
                         [&](const LinearBackward& problem) { launch(&pfl_cuda_linear_backward, problem); });
}

void linear_step_cuda(Tensor weight, Tensor grad, Tensor x, std::optional<Tensor> start, double lr,
                      double weight_decay) {
  const Launch launch("pfl_fast::linear_step_", x);
  linear_step(weight, grad, x, start, lr, weight_decay,
              [&](const LinearStep& problem) { launch(&pfl_cuda_linear_step, problem); });
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("linear", TORCH_BOX(&pfl::linear_cuda));
  m.impl("linear_backward", TORCH_BOX(&pfl::linear_backward_cuda));
  m.impl("linear_step_", TORCH_BOX(&pfl::linear_step_cuda));
}
