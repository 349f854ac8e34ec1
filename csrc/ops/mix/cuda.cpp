#include "ops/mix/contract.h"

#include "cuda/common/launch.h"

namespace pfl {
namespace {

class CudaKernel {
 public:
  static constexpr int64_t kTile = kMixCudaTile;

  explicit CudaKernel(const Tensor& on) : launch_("pfl_fast::mix", on) {
  }

  void forward(const MixForward& problem, const MixPlan&) {
    launch_(&pfl_cuda_mix, problem);
  }

  void backward(const MixBackward& problem, const MixPlan&) {
    launch_(&pfl_cuda_mix_backward, problem);
  }

 private:
  Launch launch_;
};

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  pfl::register_mix<pfl::CudaKernel>(m);
}
