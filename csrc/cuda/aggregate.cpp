// `aggregate` on CUDA tensors: device, stream, launch. The arithmetic is in aggregate_kernel.cu.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "aggregate_kernel_cuda.h"
#include "aggregate_tensors.h"

namespace pfl {
namespace {

class CudaKernel {
 public:
  static constexpr int64_t kMostParts = kAggregateCudaParts;

  explicit CudaKernel(const Tensor& on)
      : guard_(on.get_device_index()),
        stream_(torch::stable::accelerator::getCurrentStream(on.get_device_index()).nativeHandle()) {
  }

  // Rows that lie apart are found through a table, which the kernel reads: it moves to the device.
  void use(AggregateRows& rows, const AggregatePlan& plan) {
    if (rows.table == nullptr) {
      return;
    }
    const std::vector<int64_t> shape{static_cast<int64_t>(plan.table.size())};
    const Tensor host = torch::stable::empty(shape, ScalarType::Long);
    std::copy(plan.table.begin(), plan.table.end(), static_cast<const void**>(host.mutable_data_ptr()));
    table_ = torch::stable::to(host, plan.weights.device());
    rows.table = static_cast<const void* const*>(table_.const_data_ptr());
  }

  void forward(const AggregateForward& problem) {
    check_launch(pfl_cuda_aggregate(&problem, stream_));
  }

  void backward(const AggregateBackward& problem) {
    check_launch(pfl_cuda_aggregate_backward(&problem, stream_));
  }

 private:
  static void check_launch(int error) {
    PFL_CHECK(error == 0, "pfl_fast::aggregate: the CUDA kernel could not be launched, error code ", error);
  }

  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_;
  Tensor table_;
};

}  // namespace
}  // namespace pfl

STABLE_TORCH_LIBRARY_IMPL(pfl_fast, CUDA, m) {
  pfl::register_aggregate<pfl::CudaKernel>(m);
}
