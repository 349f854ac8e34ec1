// CUDA kernels of `gumbel_mask`: one pass, whole Philox blocks of four values per thread. In float all values have the
// bits of the CPU kernel.
#include "ops/gumbel_mask/problem.h"

#include "common/elementary.h"
#include "common/philox.h"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 256;

// Values per thread: at least one Philox block and at least one pack.
template <class T>
constexpr int kValues = Pack<T>::kCount < 4 ? 4 : Pack<T>::kCount;

template <class T>
struct Run {
  accumulate_t<T> values[kValues<T>];
};

template <class T>
__device__ __forceinline__ Run<T> load_run(const T* row, int64_t column, int64_t numel) {
  Run<T> run;
#pragma unroll
  for (int first = 0; first < kValues<T>; first += Pack<T>::kCount) {
    const Pack<T> pack = load_pack(row, column + first, numel);
#pragma unroll
    for (int i = 0; i < Pack<T>::kCount; ++i) {
      run.values[first + i] = widen(pack.values[i]);
    }
  }
  return run;
}

template <class T>
__device__ __forceinline__ void store_run(T* row, int64_t column, int64_t numel, const Run<T>& run) {
#pragma unroll
  for (int first = 0; first < kValues<T>; first += Pack<T>::kCount) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::kCount; ++i) {
      pack.values[i] = narrow<T>(run.values[first + i]);
    }
    store_pack(row, column + first, numel, pack);
  }
}

// Values in the accumulation type.
template <class T>
__device__ __forceinline__ Run<T> load_wide(const accumulate_t<T>* row, int64_t column, int64_t numel) {
  using Wide = Pack<accumulate_t<T>>;
  Run<T> run;
#pragma unroll
  for (int first = 0; first < kValues<T>; first += Wide::kCount) {
    const Wide pack = load_pack(row, column + first, numel);
#pragma unroll
    for (int i = 0; i < Wide::kCount; ++i) {
      run.values[first + i] = pack.values[i];
    }
  }
  return run;
}

template <class T>
__device__ __forceinline__ void store_wide(accumulate_t<T>* row, int64_t column, int64_t numel, const Run<T>& run) {
  using Wide = Pack<accumulate_t<T>>;
#pragma unroll
  for (int first = 0; first < kValues<T>; first += Wide::kCount) {
    Wide pack;
#pragma unroll
    for (int i = 0; i < Wide::kCount; ++i) {
      pack.values[i] = run.values[first + i];
    }
    store_pack(row, column + first, numel, pack);
  }
}

// First value of a thread; threads past the last client return.
template <class T>
struct Position {
  int64_t client;
  int64_t column;

  __device__ __forceinline__ explicit Position(int64_t numel) {
    const int64_t runs = (numel + kValues<T> - 1) / kValues<T>;
    const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    client = index / runs;
    column = index % runs * kValues<T>;
  }
};

template <class T>
__device__ __forceinline__ Run<T> noisy_logits(const GumbelMaskForward& p, const Position<T>& at) {
  using A = accumulate_t<T>;
  Run<T> noisy = load_run(static_cast<const T*>(p.logits) + at.client * p.logits_stride, at.column, p.numel);
  if (p.seeds) {
    const uint64_t seed = static_cast<uint64_t>(p.seeds[at.client]);
#pragma unroll
    for (int first = 0; first < kValues<T>; first += 4) {
      const Philox bits = philox(seed, static_cast<uint64_t>((at.column + first) / 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const A u = uniform_from(bits.x[i]);
        noisy.values[first + i] += log_of(u / (A(1) - u));
      }
    }
  }
  return noisy;
}

template <class T>
__global__ void __launch_bounds__(kThreads) gumbel_mask_kernel(const GumbelMaskForward p) {
  using A = accumulate_t<T>;
  const Position<T> at(p.numel);
  if (at.client >= p.clients) {
    return;
  }
  const Run<T> z = load_run(static_cast<const T*>(p.z) + at.client * p.z_stride, at.column, p.numel);
  const Run<T> noisy = noisy_logits<T>(p, at);
  Run<T> selected, rest;
#pragma unroll
  for (int i = 0; i < kValues<T>; ++i) {
    const A value = z.values[i];
    if (p.mask.hard) {
      const bool selects = noisy.values[i] >= static_cast<A>(p.mask.logit_threshold);
      selected.values[i] = selects ? value : A(0);
      rest.values[i] = selects ? A(0) : value;
    } else {
      const A soft = sigmoid_of(noisy.values[i] * static_cast<A>(p.mask.inverse_tau));
      selected.values[i] = value * soft;
      rest.values[i] = value * (A(1) - soft);
    }
  }
  const int64_t row = at.client * p.numel;
  store_run(static_cast<T*>(p.selected) + row, at.column, p.numel, selected);
  store_run(static_cast<T*>(p.rest) + row, at.column, p.numel, rest);
  store_wide(static_cast<A*>(p.noisy) + row, at.column, p.numel, noisy);
}

template <class T>
__global__ void __launch_bounds__(kThreads) gumbel_mask_backward_kernel(const GumbelMaskBackward p) {
  using A = accumulate_t<T>;
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kValues<T>;
  if (column >= p.numel) {
    return;
  }
  const Run<T> z = load_run(static_cast<const T*>(p.z), column, p.numel);
  const Run<T> noisy = load_wide<T>(static_cast<const A*>(p.noisy), column, p.numel);
  const Run<T> g_selected = load_run(static_cast<const T*>(p.grad_selected), column, p.numel);
  const Run<T> g_rest = load_run(static_cast<const T*>(p.grad_rest), column, p.numel);
  Run<T> grad_z, grad_logits;
#pragma unroll
  for (int i = 0; i < kValues<T>; ++i) {
    const A inverse_tau = static_cast<A>(p.mask.inverse_tau);
    const A soft = sigmoid_of(noisy.values[i] * inverse_tau);
    const A left = g_selected.values[i], right = g_rest.values[i];
    grad_z.values[i] = p.mask.hard ? (noisy.values[i] >= static_cast<A>(p.mask.logit_threshold) ? left : right)
                                   : soft * left + (A(1) - soft) * right;
    const A derivative = soft * (A(1) - soft) * inverse_tau;
    grad_logits.values[i] = derivative * (z.values[i] * (left - right));
  }
  store_run(static_cast<T*>(p.grad_z), column, p.numel, grad_z);
  store_run(static_cast<T*>(p.grad_logits), column, p.numel, grad_logits);
}

template <class T>
dim3 grid_for(int64_t clients, int64_t numel) {
  const int64_t threads = clients * ((numel + kValues<T> - 1) / kValues<T>);
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

template <class T>
void launch(const GumbelMaskForward& p, cudaStream_t stream) {
  PFL_LAUNCH(gumbel_mask_kernel<T>, grid_for<T>(p.clients, p.numel), dim3(kThreads), 0, stream, p);
}

template <class T>
void launch(const GumbelMaskBackward& p, cudaStream_t stream) {
  PFL_LAUNCH(gumbel_mask_backward_kernel<T>, grid_for<T>(1, p.numel), dim3(kThreads), 0, stream, p);
}

template <class Problem>
int dispatch(const Problem& p, int64_t numel, void* on) {
  if (numel == 0) {
    return 0;
  }
  const cudaStream_t stream = static_cast<cudaStream_t>(on);
  with_type(p.mask.dtype, [&](auto type) { launch<decltype(type)>(p, stream); });
  return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace pfl

int pfl_cuda_gumbel_mask(const pfl::GumbelMaskForward* problem, void* stream) {
  return pfl::dispatch(*problem, problem->clients * problem->numel, stream);
}

int pfl_cuda_gumbel_mask_backward(const pfl::GumbelMaskBackward* problem, void* stream) {
  return pfl::dispatch(*problem, problem->numel, stream);
}
