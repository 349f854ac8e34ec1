// `aggregate` on CUDA tensors: device, stream, launch. The arithmetic is in cuda_kernel.cu.

#include "cuda/common/launch.h"
#include "ops/aggregate/contract.h"

namespace pfl {
namespace {

class CudaKernel {
 public:
  static constexpr int64_t kMaxParts = kAggregateCudaParts;

  explicit CudaKernel(const Tensor& on) : launch_("pfl_fast::aggregate", on) {
  }

  // Copies the table of row pointers to the device.
  void prepare_rows(AggregateRows& rows, const AggregatePlan& plan) {
    if (rows.table == nullptr) {
      return;
    }
    const std::vector<int64_t> shape{static_cast<int64_t>(plan.table.size())};
    const Tensor host = torch::stable::empty(shape, ScalarType::Long);
    std::copy(plan.table.begin(), plan.table.end(), static_cast<const void**>(host.mutable_data_ptr()));
    table_ = torch::stable::to(host, plan.weights.device());
    rows.table = static_cast<const void* const*>(table_.const_data_ptr());
  }

  static void prepare_result(const Tensor&) {
  }

  void forward(const AggregateForward& problem) {
    launch_(&pfl_cuda_aggregate, problem);
  }

  void backward(const AggregateBackward& problem) {
    launch_(&pfl_cuda_aggregate_backward, problem);
  }

 private:
  Launch launch_;
  Tensor table_;
};

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  pfl::register_aggregate<pfl::CudaKernel>(m);
}
