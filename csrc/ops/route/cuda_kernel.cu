// CUDA kernels of `route`: one thread per 16 bytes of h. Each element is computed by the formulas of the CPU kernel, so
// the bits are the same.
#include "ops/route/problem.h"

#include "cuda/common/logistic.cuh"
#include "cuda/common/platform.cuh"

namespace pfl {
namespace {

constexpr int kThreads = 128;

// Features of a thread: [column, column + kCount) of one row.
struct Position {
  int64_t row;  // index among all C * b rows
  int64_t client;
  int64_t element;  // first element of the row in [b, K]
  int64_t column;
};

template <class T>
__device__ __forceinline__ Position position_of(const RouteSizes& sizes) {
  constexpr int kCount = Pack<T>::kCount;
  const int64_t packs = (sizes.features + kCount - 1) / kCount;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / packs;
  return {row, row / sizes.rows, row % sizes.rows * sizes.features, index % packs * kCount};
}

// Shares of one feature. Past the end of the row the logits are zeros, and the shares are not stored.
template <class T>
__device__ __forceinline__ Shares<accumulate_t<T>> shares_at(const Pack<T>& a0, const Pack<T>& a1, int i,
                                                             const RouteInputs& inputs, const Position& position,
                                                             LogisticRun& noise, accumulate_t<T> scale) {
  using A = accumulate_t<T>;
  A difference = widen(a0.values[i]) - widen(a1.values[i]);
  if (inputs.seeds) {
    difference = difference + noise.at<A>(static_cast<uint64_t>(position.element + position.column + i));
  }
  return shares_of(difference * scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteForward p) {
  using A = accumulate_t<T>;
  const int64_t features = p.sizes.features;
  const Position position = position_of<T>(p.sizes);
  if (position.client >= p.sizes.clients) {
    return;
  }
  const T* a = static_cast<const T*>(p.inputs.a) + position.row * 2 * features;
  const int64_t start = position.row * features;
  const Pack<T> a0 = load_pack(a, position.column, features);
  const Pack<T> a1 = load_pack(a + features, position.column, features);
  const Pack<T> h = load_pack(static_cast<const T*>(p.inputs.h) + start, position.column, features);
  LogisticRun noise(p.inputs.seeds ? static_cast<uint64_t>(p.inputs.seeds[position.client]) : 0);
  const A scale = static_cast<A>(1.0 / p.inputs.tau);
  Pack<T> global_part, personal_part;
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    const Shares<A> share = shares_at(a0, a1, i, p.inputs, position, noise, scale);
    global_part.values[i] = narrow<T>(share.global * widen(h.values[i]));
    personal_part.values[i] = narrow<T>(share.personal * widen(h.values[i]));
  }
  store_pack(static_cast<T*>(p.global_part) + start, position.column, features, global_part);
  store_pack(static_cast<T*>(p.personal_part) + start, position.column, features, personal_part);
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(const RouteBackward p) {
  using A = accumulate_t<T>;
  const int64_t features = p.sizes.features;
  const Position position = position_of<T>(p.sizes);
  if (position.client >= p.sizes.clients) {
    return;
  }
  const T* a = static_cast<const T*>(p.inputs.a) + position.row * 2 * features;
  const int64_t start = position.row * features;
  const Pack<T> a0 = load_pack(a, position.column, features);
  const Pack<T> a1 = load_pack(a + features, position.column, features);
  const Pack<T> h = load_pack(static_cast<const T*>(p.inputs.h) + start, position.column, features);
  const Pack<T> grad_global = load_pack(static_cast<const T*>(p.grad_global) + start, position.column, features);
  const Pack<T> grad_personal = load_pack(static_cast<const T*>(p.grad_personal) + start, position.column, features);
  LogisticRun noise(p.inputs.seeds ? static_cast<uint64_t>(p.inputs.seeds[position.client]) : 0);
  const A scale = static_cast<A>(1.0 / p.inputs.tau);
  Pack<T> grad_h, grad_a0, grad_a1;
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    const Shares<A> share = shares_at(a0, a1, i, p.inputs, position, noise, scale);
    const A g = widen(grad_global.values[i]), s = widen(grad_personal.values[i]);
    grad_h.values[i] = narrow<T>(share.global * g + share.personal * s);
    const A d = (share.global * share.personal * scale) * (widen(h.values[i]) * (g - s));
    grad_a0.values[i] = narrow<T>(d);
    grad_a1.values[i] = narrow<T>(-d);
  }
  T* grad_a = static_cast<T*>(p.grad_a) + position.row * 2 * features;
  store_pack(static_cast<T*>(p.grad_h) + start, position.column, features, grad_h);
  store_pack(grad_a, position.column, features, grad_a0);
  store_pack(grad_a + features, position.column, features, grad_a1);
}

template <class T>
unsigned blocks_for(const RouteSizes& sizes) {
  const int64_t packs = (sizes.features + Pack<T>::kCount - 1) / Pack<T>::kCount;
  return static_cast<unsigned>((sizes.clients * sizes.rows * packs + kThreads - 1) / kThreads);
}

template <class T>
int launch(const RouteForward& p, cudaStream_t stream) {
  if (const unsigned blocks = blocks_for<T>(p.sizes)) {
    PFL_LAUNCH(route_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream, p);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class T>
int launch(const RouteBackward& p, cudaStream_t stream) {
  if (const unsigned blocks = blocks_for<T>(p.sizes)) {
    PFL_LAUNCH(route_backward_kernel<T>, dim3(blocks), dim3(kThreads), 0, stream, p);
  }
  return static_cast<int>(cudaGetLastError());
}

template <class Problem>
int launch_type(const Problem& p, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return with_type(p.sizes.dtype, [&](auto type) { return launch<decltype(type)>(p, on); });
}

}  // namespace
}  // namespace pfl

int pfl_cuda_route(const pfl::RouteForward* problem, void* stream) {
  return pfl::launch_type(*problem, stream);
}

int pfl_cuda_route_backward(const pfl::RouteBackward* problem, void* stream) {
  return pfl::launch_type(*problem, stream);
}
