// Device guard, current stream and error check of a CUDA launch.
#pragma once

#include "common/check.h"

extern "C" const char* pfl_cuda_error_string(int error);

namespace pfl {

class Launch {
 public:
  Launch(const char* op, const Tensor& on)
      : op_(op),
        guard_(on.get_device_index()),
        stream_(torch::stable::accelerator::getCurrentStream(on.get_device_index()).nativeHandle()) {
  }

  // launch(pfl_cuda_<op>, problem)
  template <class Problem>
  void operator()(int (*launcher)(const Problem*, void*), const Problem& problem) const {
    const int error = launcher(&problem, stream_);
    PFL_CHECK(error == 0, op_, ": the CUDA kernel could not be launched: ", pfl_cuda_error_string(error),
              " (cudaError_t ", error, ")");
  }

 private:
  const char* op_;
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_;
};

}  // namespace pfl
