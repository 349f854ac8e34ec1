// CUDA kernel of `sgd_`: one launch per model, every value is read and written once. Fused multiply-adds are the same
// as in the CPU kernel: the same bits.
#include "ops/sgd/problem.h"

#include <cstdint>

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 256;
constexpr int kTensorsPerLaunch = 48;  // the most that fit into 4 KiB of kernel arguments

// Tensors of one launch, passed by value: no copy to the device, so the launch can be captured in a CUDA graph.
struct TensorList {
  void* params[kTensorsPerLaunch];
  const void* grads[kTensorsPerLaunch];
  void* momenta[kTensorsPerLaunch];
  const void* centers[kTensorsPerLaunch];
  int64_t stride[4 * kTensorsPerLaunch];
  int64_t columns[kTensorsPerLaunch];
  int blocks_per_row[kTensorsPerLaunch];
  int first_block[kTensorsPerLaunch + 1];
  int count;
};

template <class A>
struct Step {
  A minus_lr, momentum, one_minus_dampening, weight_decay, proximal;
  bool has_momentum, nesterov, first_step, has_decay, has_proximal;
};

__device__ int find_tensor(const TensorList& list, int block) {
  int low = 0;
  for (int high = list.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (list.first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

template <class A>
__device__ __forceinline__ void update(const Step<A>& step, A& p, A g, A& m, A center) {
  if (step.has_proximal) {
    g = multiply_add(step.proximal, p - center, g);
  }
  if (step.has_decay) {
    g = multiply_add(step.weight_decay, p, g);
  }
  if (step.has_momentum) {
    m = step.first_step ? g : multiply_add(step.one_minus_dampening, g, step.momentum * m);
    g = step.nesterov ? multiply_add(step.momentum, m, g) : m;
  }
  p = multiply_add(step.minus_lr, g, p);
}

// One thread per 16 bytes of a row of a tensor.
template <class T>
__global__ void __launch_bounds__(kThreads) sgd_kernel(const TensorList list, const Step<accumulate_t<T>> step) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  const int t = find_tensor(list, blockIdx.x);
  const int block = static_cast<int>(blockIdx.x) - list.first_block[t];
  const int64_t row = block / list.blocks_per_row[t];
  const int64_t column = (int64_t{block % list.blocks_per_row[t]} * kThreads + threadIdx.x) * kCount;
  const int64_t columns = list.columns[t];
  const int64_t* stride = list.stride + 4 * t;

  T* const params = static_cast<T*>(list.params[t]) + row * stride[0];
  T* const momenta = static_cast<T*>(list.momenta[t]) + row * stride[2];
  Pack<T> p = load_pack(params, column, columns);
  const Pack<T> g = load_pack(static_cast<const T*>(list.grads[t]) + row * stride[1], column, columns);
  Pack<T> m = {}, c = {};
  if (step.has_momentum) {
    m = load_pack(momenta, column, columns);
  }
  if (step.has_proximal) {
    c = load_pack(static_cast<const T*>(list.centers[t]) + row * stride[3], column, columns);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    A value = widen(p.values[i]), velocity = widen(m.values[i]);
    update(step, value, widen(g.values[i]), velocity, widen(c.values[i]));
    p.values[i] = narrow<T>(value);
    m.values[i] = narrow<T>(velocity);
  }
  store_pack(params, column, columns, p);
  if (step.has_momentum) {
    store_pack(momenta, column, columns, m);
  }
}

template <class T>
int run(const Sgd& p, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const Step<A> step{static_cast<A>(-p.lr),
                     static_cast<A>(p.momentum),
                     static_cast<A>(1 - p.dampening),
                     static_cast<A>(p.weight_decay),
                     static_cast<A>(p.proximal),
                     p.momenta != nullptr,
                     p.nesterov != 0,
                     p.first_step != 0,
                     p.weight_decay != 0,
                     p.centers != nullptr};
  constexpr int64_t kColumnsPerBlock = int64_t{kThreads} * Pack<T>::kCount;
  for (int64_t first = 0; first < p.tensors; first += kTensorsPerLaunch) {
    TensorList list = {};
    for (int64_t t = first; t < p.tensors && list.count < kTensorsPerLaunch; ++t) {
      const int i = list.count++;
      list.params[i] = p.params[t];
      list.grads[i] = p.grads[t];
      list.momenta[i] = p.momenta ? p.momenta[t] : nullptr;
      list.centers[i] = p.centers ? p.centers[t] : nullptr;
      for (int k = 0; k < 4; ++k) {
        list.stride[4 * i + k] = p.stride[4 * t + k];
      }
      list.columns[i] = p.columns[t];
      list.blocks_per_row[i] = static_cast<int>((p.columns[t] + kColumnsPerBlock - 1) / kColumnsPerBlock);
      list.first_block[i + 1] = list.first_block[i] + static_cast<int>(p.rows[t]) * list.blocks_per_row[i];
    }
    if (const int blocks = list.first_block[list.count]) {
      PFL_LAUNCH(sgd_kernel<T>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, list, step);
    }
    if (const cudaError_t error = cudaGetLastError()) {
      return static_cast<int>(error);
    }
  }
  return 0;
}

}  // namespace
}  // namespace pfl

int pfl_cuda_sgd(const pfl::Sgd* problem, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return pfl::with_type(problem->dtype, [&](auto type) { return pfl::run<decltype(type)>(*problem, on); });
}
