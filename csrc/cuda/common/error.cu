// Names of CUDA errors for files that are compiled without CUDA headers.
#include <cuda_runtime.h>

extern "C" const char* pfl_cuda_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
