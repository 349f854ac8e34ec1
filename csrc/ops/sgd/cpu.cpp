#include "ops/sgd/contract.h"

namespace pfl {
namespace {

void sgd_cpu(std::vector<Tensor> params, std::vector<Tensor> grads, std::vector<Tensor> momentum_buffers,
             std::vector<Tensor> center, double lr, double momentum, double dampening, double weight_decay,
             bool nesterov, double proximal, bool first_step) {
  const SgdOptions options{lr, momentum, dampening, weight_decay, nesterov, proximal, first_step};
  sgd(params, grads, momentum_buffers, center, options, [](const Sgd& problem) {
    std::vector<int64_t> first_tile{0};
    for (int64_t t = 0; t < problem.tensors; ++t) {
      const int64_t tiles_per_row = (problem.columns[t] + kSgdTile - 1) / kSgdTile;
      first_tile.push_back(first_tile.back() + problem.rows[t] * tiles_per_row);
    }
    torch::stable::parallel_for(0, first_tile.back(), kSgdTilesPerThread, [&](int64_t begin, int64_t end) {
      PFL_CPU_KERNEL(sgd)(problem, first_tile.data(), begin, end);
    });
  });
}

void sgd_tensor_cpu(Tensor param, Tensor grad, std::optional<Tensor> momentum_buffer, std::optional<Tensor> center,
                    double lr, double momentum, double dampening, double weight_decay, bool nesterov, double proximal,
                    bool first_step) {
  sgd_cpu({param}, {grad}, as_list(momentum_buffer), as_list(center), lr, momentum, dampening, weight_decay, nesterov,
          proximal, first_step);
}

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CPU, m) {
  m.impl("sgd_", TORCH_BOX(&pfl::sgd_cpu));
  m.impl("sgd_tensor_", TORCH_BOX(&pfl::sgd_tensor_cpu));
}
