// CUDA kernels of `mix`: one launch per model, every value is read and written once. Values have the bits of the CPU
// kernel; sums over a segment have another, but deterministic, order.
#include "ops/mix/problem.h"

#include <cstdint>

#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = static_cast<int>(kMixCudaTile);
constexpr int kTensorsPerLaunch = 32;  // the most that fit into 4 KiB of kernel arguments

// Tensors of one launch, passed by value: no copy to the device, so the launch can be captured in a CUDA graph.
struct TensorList {
  const void* local[kTensorsPerLaunch];
  const void* global[kTensorsPerLaunch];
  const void* choices[kTensorsPerLaunch];
  const void* grads[kTensorsPerLaunch];
  void* out[kTensorsPerLaunch];  // result, or gradient of the local tensor
  void* out_global[kTensorsPerLaunch];
  void* out_choice[kTensorsPerLaunch];
  int64_t stride[4 * kTensorsPerLaunch];
  int64_t columns[kTensorsPerLaunch];
  int segment[kTensorsPerLaunch];
  int tiles_per_row[kTensorsPerLaunch];
  int first_tile[kTensorsPerLaunch + 1];
  int count;
  const void* choice;
  int64_t segments;
  bool hard;
};

// Tile of a block: columns [begin, end) of one row of one tensor.
struct Tile {
  int tensor;
  int64_t row, begin, end;
};

__device__ __forceinline__ Tile find_tile(const TensorList& s) {
  const int block = static_cast<int>(blockIdx.x);
  int t = 0;
  for (int beyond = s.count; beyond - t > 1;) {
    const int middle = (t + beyond) / 2;
    (s.first_tile[middle] <= block ? t : beyond) = middle;
  }
  const int64_t row = (block - s.first_tile[t]) / s.tiles_per_row[t];
  const int64_t begin = int64_t{(block - s.first_tile[t]) % s.tiles_per_row[t]} * kTile;
  return {t, row, begin, min(begin + kTile, s.columns[t])};
}

template <class T>
__device__ __forceinline__ const T* row_of(const TensorList& s, const void* const* tensors, int kind,
                                           const Tile& tile) {
  return static_cast<const T*>(tensors[tile.tensor]) + tile.row * s.stride[4 * tile.tensor + kind];
}

template <class T>
__device__ __forceinline__ T* out_row(const TensorList& s, void* const* tensors, const Tile& tile) {
  return static_cast<T*>(tensors[tile.tensor]) + tile.row * s.columns[tile.tensor];
}

template <class A>
__device__ __forceinline__ A effective_choice(const TensorList& s, A choice) {
  return s.hard ? (choice >= A(0.5) ? A(1) : A(0)) : choice;
}

template <class A>
__device__ __forceinline__ A segment_choice(const TensorList& s, const Tile& tile) {
  return effective_choice(s, static_cast<const A*>(s.choice)[tile.row * s.segments + s.segment[tile.tensor]]);
}

template <class T, bool kElementwise>
__global__ void __launch_bounds__(kThreads) mix_kernel(const TensorList s) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  const Tile tile = find_tile(s);
  const T* local = row_of<T>(s, s.local, 0, tile);
  const T* global = row_of<T>(s, s.global, 1, tile);
  T* out = out_row<T>(s, s.out, tile);
  const A chosen = kElementwise ? A(0) : segment_choice<A>(s, tile);
  for (int64_t column = tile.begin + threadIdx.x * kCount; column < tile.end; column += kThreads * kCount) {
    // Copies the chosen tensor without reading the other one.
    if (!kElementwise && (chosen == A(0) || chosen == A(1))) {
      store_pack(out, column, tile.end, load_pack(chosen == A(0) ? local : global, column, tile.end));
      continue;
    }
    const Pack<T> l = load_pack(local, column, tile.end);
    const Pack<T> g = load_pack(global, column, tile.end);
    Pack<T> c = {}, result;
    if (kElementwise) {
      c = load_pack(row_of<T>(s, s.choices, 2, tile), column, tile.end);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const A choice = kElementwise ? effective_choice(s, widen(c.values[i])) : chosen;
      const A from = widen(l.values[i]), to = widen(g.values[i]);
      const A mixed = from + choice * (to - from);
      result.values[i] = choice == A(0) ? l.values[i] : choice == A(1) ? g.values[i] : narrow<T>(mixed);
    }
    store_pack(out, column, tile.end, result);
  }
}

// factor * grad; exactly 0 if the factor is 0.
template <class T>
__device__ __forceinline__ T scaled(accumulate_t<T> factor, T grad) {
  using A = accumulate_t<T>;
  return factor == A(0) ? narrow<T>(A(0)) : narrow<T>(factor * widen(grad));
}

template <class T, bool kElementwise>
__global__ void __launch_bounds__(kThreads)
    mix_backward_kernel(const TensorList s, bool to_local, bool to_global, bool to_choice, double* partial) {
  using A = accumulate_t<T>;
  constexpr int kCount = Pack<T>::kCount;
  const Tile tile = find_tile(s);
  const T* grads = row_of<T>(s, s.grads, 3, tile);
  const A chosen = kElementwise ? A(0) : segment_choice<A>(s, tile);
  A sum = 0;
  for (int64_t column = tile.begin + threadIdx.x * kCount; column < tile.end; column += kThreads * kCount) {
    const Pack<T> grad = load_pack(grads, column, tile.end);
    Pack<T> c = {}, l = {}, g = {}, result;
    if (kElementwise) {
      c = load_pack(row_of<T>(s, s.choices, 2, tile), column, tile.end);
    }
    if (to_choice || partial) {
      l = load_pack(row_of<T>(s, s.local, 0, tile), column, tile.end);
      g = load_pack(row_of<T>(s, s.global, 1, tile), column, tile.end);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const A choice_gradient = widen(grad.values[i]) * (widen(g.values[i]) - widen(l.values[i]));
        result.values[i] = narrow<T>(choice_gradient);
        sum += choice_gradient;  // values past the end were loaded as zeros
      }
      if (to_choice) {
        store_pack(out_row<T>(s, s.out_choice, tile), column, tile.end, result);
      }
    }
    if (to_local) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const A choice = kElementwise ? effective_choice(s, widen(c.values[i])) : chosen;
        result.values[i] = scaled<T>(A(1) - choice, grad.values[i]);
      }
      store_pack(out_row<T>(s, s.out, tile), column, tile.end, result);
    }
    if (to_global) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const A choice = kElementwise ? effective_choice(s, widen(c.values[i])) : chosen;
        result.values[i] = scaled<T>(choice, grad.values[i]);
      }
      store_pack(out_row<T>(s, s.out_global, tile), column, tile.end, result);
    }
  }
  if (partial) {
    PFL_SHARED(A, warp_sums, kWarps);
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) {
      warp_sums[threadIdx.x / kWarp] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        total += static_cast<double>(warp_sums[warp]);
      }
      partial[blockIdx.x] = total;
    }
  }
}

// A block sums one row and segment: each lane every kWarp-th tile of the segment's tensors, then the lanes are added.
__global__ void __launch_bounds__(kWarp)
    sum_tiles_kernel(const TensorList s, const double* partial, double* grad_choice) {
  const int64_t row = blockIdx.x / s.segments;
  const int segment = static_cast<int>(blockIdx.x % s.segments);
  double sum = 0;
  for (int t = 0; t < s.count; ++t) {
    if (s.segment[t] != segment) {
      continue;
    }
    const double* row_tiles = partial + s.first_tile[t] + row * s.tiles_per_row[t];
    for (int tile = threadIdx.x; tile < s.tiles_per_row[t]; tile += kWarp) {
      sum += row_tiles[tile];
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) {
    grad_choice[row * s.segments + segment] += sum;
  }
}

const void* entry(const void* const* tensors, int64_t t) {
  return tensors ? tensors[t] : nullptr;
}
void* entry(void* const* tensors, int64_t t) {
  return tensors ? tensors[t] : nullptr;
}

// Calls launch(list, tiles) for all tensors, kTensorsPerLaunch at a time.
template <class Launch>
int for_each_tensor_list(const MixTensors& in, const void* const* grads, void* const* out, void* const* out_global,
                         void* const* out_choice, Launch launch) {
  for (int64_t first = 0; first < in.tensors; first += kTensorsPerLaunch) {
    TensorList s = {};
    s.choice = in.choice;
    s.segments = in.segments;
    s.hard = in.hard != 0;
    for (int64_t t = first; t < in.tensors && s.count < kTensorsPerLaunch; ++t) {
      const int i = s.count++;
      s.local[i] = in.local[t];
      s.global[i] = in.global[t];
      s.choices[i] = entry(in.choices, t);
      s.grads[i] = entry(grads, t);
      s.out[i] = entry(out, t);
      s.out_global[i] = entry(out_global, t);
      s.out_choice[i] = entry(out_choice, t);
      for (int k = 0; k < 4; ++k) {
        s.stride[4 * i + k] = in.stride[4 * t + k];
      }
      s.columns[i] = in.columns[t];
      s.segment[i] = in.choices ? 0 : static_cast<int>(in.segment[t]);
      s.tiles_per_row[i] = static_cast<int>(mix_tiles_per_row(in, t, kTile));
      s.first_tile[i + 1] = s.first_tile[i] + static_cast<int>(in.rows[t]) * s.tiles_per_row[i];
    }
    if (const int tiles = s.first_tile[s.count]) {
      launch(s, tiles);
    }
    if (const cudaError_t error = cudaGetLastError()) {
      return static_cast<int>(error);
    }
  }
  return 0;
}

template <class T, bool kElementwise>
int run(const MixForward& p, cudaStream_t stream) {
  return for_each_tensor_list(p.in, nullptr, p.out, nullptr, nullptr, [&](const TensorList& s, int tiles) {
    PFL_LAUNCH((mix_kernel<T, kElementwise>), dim3(static_cast<unsigned>(tiles)), dim3(kThreads), 0, stream, s);
  });
}

template <class T, bool kElementwise>
int run(const MixBackward& p, cudaStream_t stream) {
  double* partial = p.partial;
  return for_each_tensor_list(
      p.in, p.grads, p.grad_local, p.grad_global, p.grad_choices, [&](const TensorList& s, int tiles) {
        PFL_LAUNCH((mix_backward_kernel<T, kElementwise>), dim3(static_cast<unsigned>(tiles)), dim3(kThreads), 0,
                   stream, s, p.grad_local != nullptr, p.grad_global != nullptr, p.grad_choices != nullptr, partial);
        if (partial) {
          const dim3 grid(static_cast<unsigned>(p.in.rows[0] * p.in.segments));  // gridDim.y has a limit of 65,535
          PFL_LAUNCH(sum_tiles_kernel, grid, dim3(kWarp), 0, stream, s, partial, p.grad_choice);
          partial += tiles;
        }
      });
}

template <class T, class Problem>
int dispatch(const Problem& p, cudaStream_t stream) {
  return p.in.choices ? run<T, true>(p, stream) : run<T, false>(p, stream);
}

template <class Problem>
int dispatch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.in.dtype, [&](auto type) { return dispatch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_mix(const pfl::MixForward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}

int pfl_cuda_mix_backward(const pfl::MixBackward* problem, void* stream) {
  return pfl::dispatch_type(*problem, stream);
}
