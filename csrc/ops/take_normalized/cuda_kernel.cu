// CUDA kernel of `take_normalized`: one thread per 16 bytes. It computes every value, because each block would have to
// build its own table. Formula and bits are those of the CPU kernel.
#include "ops/take_normalized/problem.h"

#include <cmath>
#include <cstdint>

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 256;

// Value of an image at index `element` of the result.
template <class A>
__device__ __forceinline__ A value_of(const TakeNormalized& p, const uint8_t* image, int64_t element) {
  const int64_t channel = p.channels_last ? element % p.channels : element / p.pixels;
  const int64_t source = p.channels_last ? element : element % p.pixels * p.channels + channel;
  const A mean = static_cast<const A*>(p.mean)[channel];
  const A std = static_cast<const A*>(p.std)[channel];
  return (static_cast<A>(image[source]) / A(255) - mean) / std;
}

template <class T>
__global__ void __launch_bounds__(kThreads) take_normalized_kernel(const TakeNormalized p) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  const int64_t numel = p.pixels * p.channels;
  const int64_t total = p.batch * numel;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (first >= total) {
    return;
  }
  int64_t b = first / numel, element = first % numel, picked = p.index[b];
  Pack<T> result = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i < total) {
      if (element == numel) {  // the pack continues in the next image
        element = 0;
        picked = p.index[++b];
      }
      const bool exists = picked >= 0 && picked < p.count;
      const A value = exists ? value_of<A>(p, p.images + picked * numel, element) : A(NAN);
      result.values[i] = narrow<T>(value);
      ++element;
    }
  }
  store_pack(static_cast<T*>(p.out), first, total, result);
}

template <class T>
int run(const TakeNormalized& p, cudaStream_t stream) {
  const int64_t packs = (p.batch * p.pixels * p.channels + Pack<T>::kCount - 1) / Pack<T>::kCount;
  if (packs == 0) {
    return 0;
  }
  const dim3 grid(static_cast<unsigned>((packs + kThreads - 1) / kThreads));
  PFL_LAUNCH(take_normalized_kernel<T>, grid, dim3(kThreads), 0, stream, p);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace pfl

int pfl_cuda_take_normalized(const pfl::TakeNormalized* problem, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return pfl::with_type(problem->dtype, [&](auto type) { return pfl::run<decltype(type)>(*problem, on); });
}
