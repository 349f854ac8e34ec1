#include "ops/sgd/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

void sgd_cuda(std::vector<Tensor> params, std::vector<Tensor> grads, std::vector<Tensor> momentum_buffers,
              std::vector<Tensor> center, double lr, double momentum, double dampening, double weight_decay,
              bool nesterov, double proximal, bool first_step) {
  const SgdOptions options{lr, momentum, dampening, weight_decay, nesterov, proximal, first_step};
  sgd(params, grads, momentum_buffers, center, options,
      [&](const Sgd& problem) { Launch("pfl_fast::sgd_", params[0])(&pfl_cuda_sgd, problem); });
}

void sgd_tensor_cuda(Tensor param, Tensor grad, std::optional<Tensor> momentum_buffer, std::optional<Tensor> center,
                     double lr, double momentum, double dampening, double weight_decay, bool nesterov, double proximal,
                     bool first_step) {
  sgd_cuda({param}, {grad}, as_list(momentum_buffer), as_list(center), lr, momentum, dampening, weight_decay, nesterov,
           proximal, first_step);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  m.impl("sgd_", TORCH_BOX(&pfl::sgd_cuda));
  m.impl("sgd_tensor_", TORCH_BOX(&pfl::sgd_tensor_cuda));
}
