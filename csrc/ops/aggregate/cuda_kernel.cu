// CUDA kernels of `aggregate`. They take raw pointers only, so nvcc needs seconds and the emulation build can run them.
// Products are added client by client and never fused (--fmad=false): the same bits as the CPU kernel.
#include "ops/aggregate/problem.h"

#include <cstdint>

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 128;
constexpr int kManyMixtures = 4;       // mixtures per read of a row, if there is more than one
constexpr int kTile = 512;             // columns of the gradients staged in shared memory per block
constexpr int kBackwardBlocks = 6;     // resident blocks of the backward: 85 registers per thread, no spills
constexpr int kTensorsPerLaunch = 80;  // the most that fit into 4 KiB of kernel arguments

// Tensors of one launch, passed by value: no copy to the device, so the launch can be captured in a CUDA graph.
struct TensorList {
  const void* base[kTensorsPerLaunch];
  int64_t stride[kTensorsPerLaunch];
  int64_t numel[kTensorsPerLaunch];
  const void* grads[kTensorsPerLaunch];
  void* out[kTensorsPerLaunch];
  int first_block[kTensorsPerLaunch + 1];
  int count;
  int64_t first_tensor;
};

struct Shape {
  int64_t tensors_per_group, mixtures, clients, groups;
};

__device__ int find_tensor(const TensorList& list, int block) {
  int low = 0;
  for (int high = list.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (list.first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

template <class T>
__device__ __forceinline__ const T* row_of(const TensorList& list, const void* const* table, const Shape& shape, int t,
                                           int64_t n) {
  if (table) {
    return static_cast<const T*>(table[(list.first_tensor + t) * shape.clients + n]);
  }
  return static_cast<const T*>(list.base[t]) + n * list.stride[t];
}

__device__ __forceinline__ bool is_finite(double value) {
  return value - value == 0;
}
__device__ __forceinline__ bool is_finite(float value) {
  return value - value == 0;
}

// Block (b, y): consecutive columns of one tensor, mixtures [y * kMixtures, ...).
template <class T, int kMixtures>
__global__ void __launch_bounds__(kThreads)
    aggregate_kernel(const TensorList list, const void* const* table, const Shape shape, const accumulate_t<T>* weights,
                     int64_t* nonfinite) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  const int t = find_tensor(list, blockIdx.x);
  const int64_t numel = list.numel[t];
  const int64_t column =
      (int64_t{static_cast<int>(blockIdx.x) - list.first_block[t]} * kThreads + threadIdx.x) * kCount;
  const int64_t group = (list.first_tensor + t) / shape.tensors_per_group;
  const int64_t first = int64_t{blockIdx.y} * kMixtures;
  const int mixtures = static_cast<int>(min(shape.mixtures - first, kMixtures));
  const A* w = weights + (group * shape.mixtures + first) * shape.clients;
  const bool counts = nonfinite != nullptr && blockIdx.y == 0;

  A sums[kMixtures][kCount] = {};
  for (int64_t n = 0; n < shape.clients; ++n) {
    const Pack<T> x = load_pack(row_of<T>(list, table, shape, t, n), column, numel);
    int bad = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A value = widen(x.values[i]);
      bad += !is_finite(value);
#pragma unroll
      for (int m = 0; m < kMixtures; ++m) {
        if (m < mixtures) {
          sums[m][i] += w[m * shape.clients + n] * value;
        }
      }
    }
    // Non-finite values are rare: a warp vote avoids the sum and the atomic.
    if (counts && __any_sync(kAllLanes, bad)) {
      bad = warp_sum(bad);
      if (threadIdx.x % kWarp == 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(nonfinite + group * shape.clients + n),
                  static_cast<unsigned long long>(bad));
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMixtures; ++m) {
    if (m < mixtures) {
      Pack<T> result;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        result.values[i] = narrow<T>(sums[m][i]);
      }
      store_pack(static_cast<T*>(list.out[t]) + (first + m) * numel, column, numel, result);
    }
  }
}

// Each block loops over tiles of columns. The gradients of a tile are staged in shared memory once for all clients;
// each warp handles every (kThreads / kWarp)-th client, writes its gradient row and adds its dot products to the
// partial sums of the block.
template <class T, int kMixtures>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    aggregate_backward_kernel(const TensorList list, const void* const* table, const Shape shape,
                              const accumulate_t<T>* weights, bool writes_rows, double* partial, int tiles) {
  using A = accumulate_t<T>;
  PFL_SHARED(A, staged, kMixtures * kTile);
  const int lane = threadIdx.x % kWarp;
  const int64_t pairs = shape.mixtures * shape.clients;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int t = find_tensor(list, tile);
    const int64_t numel = list.numel[t];
    const int64_t begin = int64_t{tile - list.first_block[t]} * kTile;
    const int count = static_cast<int>(min(numel - begin, kTile));
    const int64_t group = (list.first_tensor + t) / shape.tensors_per_group;
    const A* w = weights + group * pairs;
    const T* grads = static_cast<const T*>(list.grads[t]) + begin;
    for (int64_t first = 0; first < shape.mixtures; first += kMixtures) {
      const int mixtures = static_cast<int>(min(shape.mixtures - first, kMixtures));
      __syncthreads();  // wait for reads of the previous gradients
      for (int i = threadIdx.x; i < mixtures * count; i += kThreads) {
        const int m = i / count;
        const int j = i % count;
        staged[m * kTile + j] = widen(grads[(first + m) * numel + j]);
      }
      __syncthreads();
      for (int64_t n = threadIdx.x / kWarp; n < shape.clients; n += kThreads / kWarp) {
        const T* x = row_of<T>(list, table, shape, t, n) + begin;
        T* out = static_cast<T*>(list.out[t]) + n * numel + begin;
        A dots[kMixtures] = {};
#pragma unroll 1  // the compiler would unroll until registers spill
        for (int j = lane; j < count; j += kWarp) {
          const A value = partial ? widen(x[j]) : A(0);
          A sum = 0;
#pragma unroll
          for (int m = 0; m < kMixtures; ++m) {
            if (m < mixtures) {
              const A g = staged[m * kTile + j];
              sum += w[(first + m) * shape.clients + n] * g;
              dots[m] += g * value;
            }
          }
          if (writes_rows && first == 0) {
            // Reads the other mixtures from global memory, so a row is rounded and written only once.
#pragma unroll 1
            for (int64_t m = kMixtures; m < shape.mixtures; ++m) {
              sum += w[m * shape.clients + n] * widen(grads[m * numel + j]);
            }
            out[j] = narrow<T>(sum);
          }
        }
#pragma unroll
        for (int m = 0; m < kMixtures; ++m) {
          const A dot = warp_sum(dots[m]);
          if (partial && lane == 0 && m < mixtures) {
            partial[(blockIdx.x * shape.groups + group) * pairs + (first + m) * shape.clients + n] += dot;
          }
        }
      }
    }
  }
}

// Adds all parts to the first one, in their order.
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(double* partial, int64_t parts, int64_t pairs) {
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair < pairs) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) {
      total += partial[part * pairs + pair];
    }
    partial[pair] = total;
  }
}

// Calls launch(list, blocks) for all tensors, kTensorsPerLaunch at a time.
template <class Launch>
int for_each_tensor_list(const AggregateSizes& sizes, const AggregateRows& rows, const void* const* grads,
                         void* const* out, int64_t columns_per_block, Launch launch) {
  for (int64_t first = 0; first < sizes.tensors; first += kTensorsPerLaunch) {
    TensorList list = {};
    list.first_tensor = first;
    for (int64_t t = first; t < sizes.tensors && list.count < kTensorsPerLaunch; ++t) {
      const int i = list.count++;
      list.base[i] = rows.base[t];
      list.stride[i] = rows.stride[t];
      list.numel[i] = rows.numel[t];
      list.grads[i] = grads ? grads[t] : nullptr;
      list.out[i] = out ? out[t] : nullptr;
      const int64_t blocks = (rows.numel[t] + columns_per_block - 1) / columns_per_block;
      list.first_block[i + 1] = list.first_block[i] + static_cast<int>(blocks);
    }
    const int blocks = list.first_block[list.count];
    if (blocks > 0) {
      launch(list, blocks);
    }
    if (const cudaError_t error = cudaGetLastError()) {
      return static_cast<int>(error);
    }
  }
  return 0;
}

Shape shape_of(const AggregateSizes& sizes) {
  return {sizes.tensors / sizes.groups, sizes.mixtures, sizes.clients, sizes.groups};
}

template <class T, int kMixtures>
int forward(const AggregateForward& p, cudaStream_t stream) {
  const unsigned mixture_blocks = static_cast<unsigned>((p.sizes.mixtures + kMixtures - 1) / kMixtures);
  if (p.sizes.tensors == 0 || mixture_blocks == 0) {
    return 0;
  }
  return for_each_tensor_list(
      p.sizes, p.rows, nullptr, p.out, int64_t{kThreads} * Pack<T>::kCount, [&](const TensorList& list, int blocks) {
        PFL_LAUNCH((aggregate_kernel<T, kMixtures>), dim3(blocks, mixture_blocks), dim3(kThreads), 0, stream, list,
                   p.rows.table, shape_of(p.sizes), static_cast<const accumulate_t<T>*>(p.weights), p.nonfinite);
      });
}

template <class T, int kMixtures>
int backward(const AggregateBackward& p, cudaStream_t stream) {
  if (p.sizes.tensors == 0 || p.sizes.mixtures == 0 || p.sizes.clients == 0) {
    return 0;
  }
  const int error =
      for_each_tensor_list(p.sizes, p.rows, p.grads, p.grad_rows, kTile, [&](const TensorList& list, int tiles) {
        const int blocks = static_cast<int>(min(tiles, p.parts));
        PFL_LAUNCH((aggregate_backward_kernel<T, kMixtures>), dim3(blocks), dim3(kThreads), 0, stream, list,
                   p.rows.table, shape_of(p.sizes), static_cast<const accumulate_t<T>*>(p.weights),
                   p.grad_rows != nullptr, p.grad_weights, tiles);
      });
  if (error != 0 || p.grad_weights == nullptr) {
    return error;
  }
  const int64_t pairs = p.sizes.groups * p.sizes.mixtures * p.sizes.clients;
  PFL_LAUNCH(sum_parts_kernel, dim3(static_cast<unsigned>((pairs + kThreads - 1) / kThreads)), dim3(kThreads), 0,
             stream, p.grad_weights, p.parts, pairs);
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int dispatch(const AggregateForward& p, cudaStream_t stream) {
  return p.sizes.mixtures == 1 ? forward<T, 1>(p, stream) : forward<T, kManyMixtures>(p, stream);
}

template <class T>
int dispatch(const AggregateBackward& p, cudaStream_t stream) {
  return p.sizes.mixtures == 1 ? backward<T, 1>(p, stream) : backward<T, kManyMixtures>(p, stream);
}

template <class Problem>
int dispatch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.sizes.dtype, [&](auto type) { return dispatch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_aggregate(const pfl::AggregateForward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_aggregate_backward(const pfl::AggregateBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
